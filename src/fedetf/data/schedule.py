"""Who takes part when: the sampling list, drawn once, saved, and the same for every method."""

from fedetf.errors import UserError
from fedetf.rng import numpy_stream

MOST = 100_000_000  # places in the list, about a gigabyte


def make_schedule(clients: int, participation: float, rounds: int, seed: int) -> list[list[int]]:
    """The participants A_1 … A_T, each ascending: max(1, floor(participation·K)) clients without replacement.

    A round's draw depends on (seed, round) only, so a longer run begins with the list of a shorter one.
    """
    size = max(1, int(participation * clients + 1e-9))  # the 1e-9 guards products such as 0.29·100
    if rounds * size > MOST:
        raise UserError(f"{rounds:,} rounds of {size:,} clients are too many to list; at most {MOST:,} in all")
    return [
        sorted(numpy_stream(seed, "sampling", t).choice(clients, size, replace=False).tolist())
        for t in range(1, rounds + 1)
    ]
