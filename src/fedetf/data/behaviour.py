"""Clients as they behave (``system.*``): some fail in a round, some finish only a part of their work.

Who does is a function of (seed, round, client) alone, so that every method meets the same failures.
"""

from collections.abc import Sequence

from fedetf.rng import numpy_stream
from fedetf.settings import SystemSettings


def present(participants: Sequence[int], round: int, system: SystemSettings, seed: int) -> list[int]:
    """The participants that answer: each drops out with probability ``system.dropout``, but never all of them."""
    if not system.dropout:
        return list(participants)
    draws = {client: numpy_stream(seed, "dropout", round, client).random() for client in participants}
    luckiest = max(draws, key=lambda client: draws[client])
    return [client for client in participants if draws[client] >= system.dropout or client == luckiest]


def share_done(client: int, round: int, system: SystemSettings, seed: int) -> float:
    """How much of its local training a participant finishes: all of it, or for a straggler a uniform share."""
    if not system.stragglers:
        return 1.0
    is_slow, share = numpy_stream(seed, "stragglers", round, client).random(2)
    return float(share) if is_slow < system.stragglers else 1.0
