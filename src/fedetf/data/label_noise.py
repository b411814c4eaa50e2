"""Wrong labels at some clients (``data.label_noise``): in what they train on, never in what they are tested on."""

import numpy as np
from numpy.typing import NDArray

from fedetf.rng import numpy_stream

Indices = NDArray[np.int64]


def noisy_clients(clients: int, share: float, seed: int) -> list[int]:
    """Which clients have wrong labels, ascending: the first of one order of all, so that a larger share adds some."""
    number = max(1, round(share * clients))
    return sorted(numpy_stream(seed, "noisy-clients").permutation(clients)[:number].tolist())


def wrong_labels(labels: Indices, samples: Indices, classes: int, share: float, seed: int, client: int) -> Indices:
    """``[m, 2]``: which samples of a noisy client get another label, and which, uniform among the other classes.

    m = round(share·n) of its n ``samples``, in ascending order; ``labels`` are the right ones ``[N]``.
    """
    rng = numpy_stream(seed, "label-noise", client)
    chosen = np.sort(rng.permutation(samples)[: round(share * len(samples))])
    return np.stack([chosen, (labels[chosen] + rng.integers(1, classes, len(chosen))) % classes], axis=1)
