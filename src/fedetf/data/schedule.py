"""Who takes part when: the sampling list, drawn once, saved, and the same for every method."""

from fedetf.rng import numpy_stream


def make_schedule(clients: int, participation: float, rounds: int, seed: int) -> list[list[int]]:
    """The participants A_1 … A_T, each ascending: max(1, floor(participation·K)) clients without replacement.

    A round's draw depends on (seed, round) only, so a longer run begins with the list of a shorter one.
    """
    size = max(1, int(participation * clients + 1e-9))  # the 1e-9 guards products such as 0.29·100
    return [
        sorted(numpy_stream(seed, "sampling", t).choice(clients, size, replace=False).tolist())
        for t in range(1, rounds + 1)
    ]
