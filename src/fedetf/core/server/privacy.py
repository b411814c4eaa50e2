"""Central differential privacy for whole clients: updates are clipped, their mean gets noise, an accountant adds it up.

The server is trusted with the updates. Who sees the models that it sends out learns little of any one client's update.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedetf.core.soundness import is_variance
from fedetf.core.state import State, widest

ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 257))  # of Rényi divergences, as accountants try them


def clipped(model: State, received: State, length: float) -> State:
    """The model whose update of ``received`` is scaled down to at most ``length``; one that is shorter stays as it is.

    The update are all floating tensors, BatchNorm's statistics too: they are data like the rest.
    """
    update = {name: _wide(model[name]) - _wide(received[name]) for name in model if model[name].is_floating_point()}
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in update.values()))
    if norm <= length:
        return model
    scale = length / norm
    scaled = {name: (_wide(received[name]) + scale * tensor).to(model[name].dtype) for name, tensor in update.items()}
    return {**model, **scaled}


@dataclass(frozen=True)
class Noise:
    """Normal numbers from a key and the number of the release, by SHAKE-256 and Box-Muller.

    torch's generators have at most 64 bits of seed. Whoever knows the key can take the noise off again: a simulation
    derives it from the seed, so that a run can be repeated; real sites never learn it, see ``flower/privacy.py``.
    """

    key: bytes

    def draw(self, shape: Sequence[int], release: int, name: str) -> Tensor:
        """Independent standard normal numbers in double precision."""
        count = math.prod(shape)
        source = hashlib.shake_256(b"%s/%d/%s" % (self.key, release, name.encode()))
        uniform = np.frombuffer(source.digest(16 * count), np.uint64) >> np.uint64(11)  # 53 bits
        radius = np.sqrt(-2 * np.log((uniform[:count] + 1.0) * 2.0**-53))
        return torch.from_numpy(radius * np.cos(2 * np.pi * uniform[count:] * 2.0**-53)).reshape(tuple(shape))

    def on(self, mean: State, received: State, scale: float, release: int) -> State:
        """The mean of clipped models with noise of that deviation on every floating number.

        Counters tell the size of a client's data: the received ones stay. A variance stays a variance.
        """
        noised = {name: received[name] for name in mean}
        for name, tensor in mean.items():
            if tensor.is_floating_point():
                noise = self.draw(tensor.shape, release, name).to(_wide(tensor))
                noised[name] = (_wide(tensor) + scale * noise).to(tensor.dtype)
                if is_variance(name):
                    noised[name].clamp_(min=0)
        return noised


def epsilon(noise: float, delta: float, releases: int) -> float:
    """What the given number of noised means reveals of one client at most, as the ε that belongs to ``delta``.

    Rényi accounting of the Gaussian mechanism, RDP(a) = a/(2z²) a release, converted as by Balle et al. (2020). Who
    takes part when follows from the settings, which all parties know: no amplification by sampling.
    """
    if releases == 0:
        return 0.0
    values = (
        releases * a / (2 * noise**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in ORDERS
    )
    return max(0.0, min(values))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(widest(tensor.device))
