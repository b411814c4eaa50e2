"""Clients that never train: what a federation is worth to who was not there."""

from collections.abc import Sequence

from fedetf.errors import UserError
from fedetf.rng import numpy_stream


def draw_unseen(clients: int, number: int, seed: int) -> list[int]:
    """Which of so many clients never train, ascending: a function of (seed, clients) only.

    They are the first ``number`` of one order of all clients, so that a larger number adds clients and replaces none.
    """
    if number >= clients:
        raise UserError(f"data.unseen = {number} of {clients} clients leaves nobody to train; lower it")
    return sorted(numpy_stream(seed, "unseen").permutation(clients)[:number].tolist()) if number else []


def without_unseen(schedule: Sequence[list[int]], clients: int, unseen: Sequence[int], seed: int) -> list[list[int]]:
    """The sampling list less the clients that never train.

    Everybody else takes part when they would have anyway. A round whose places all fell to unseen clients goes to one
    of the others, drawn for that round.
    """
    if not unseen:
        return list(schedule)
    out = set(unseen)
    seen = [client for client in range(clients) if client not in out]
    rest = [[client for client in participants if client not in out] for participants in schedule]
    return [
        participants or [int(numpy_stream(seed, "sampling-instead", t).choice(seen))]
        for t, participants in enumerate(rest, start=1)
    ]
