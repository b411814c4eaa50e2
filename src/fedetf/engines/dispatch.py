"""Who does what next: longest step first, results in their fixed order, a bounded number of them in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol

from fedetf.engines.base import Tick
from fedetf.engines.steps import Result, Step
from fedetf.errors import RunError

TRIES = 3  # a step that has ended this many workers is not tried again


ENOUGH = 64  # images: so much work is worth a message of its own


class Crew(Protocol):
    """Workers that do some steps at a time, one after the other. One that dies is replaced by its crew."""

    def has_room(self) -> bool:
        """Whether a worker is free to take steps."""

    def give(self, place: int, steps: Sequence[Step]) -> None:
        """Hand steps to a free worker; ``place``, that of the first of them, is how they are called."""

    def take(self) -> tuple[int, list[Result] | None]:
        """Wait for a worker: the place of its steps, and what came of them; None if the worker died of them."""


def in_order(crew: Crew, steps: Sequence[Step], ahead: int, tick: Tick, together: int = 1) -> Iterator[Result]:
    """Results in the order of ``steps``.

    At most ``ahead`` steps beyond the first unfinished one are begun, so that no more results than that wait for their
    turn. Among those, the longest goes first: nobody waits at the end of a round for a client that began last. Small
    steps that follow each other go to a worker in one message, ``together`` at most. If it dies, each is tried alone.
    """
    waiting: dict[int, Result] = {}  # done before their turn
    open_steps: list[tuple[int, int, int]] = []  # (−cost, from this place, to that), a heap
    ends: dict[int, int] = {}  # of what workers do: from a place -> to a place
    deaths: dict[int, int] = {}
    seen = 0  # steps that went into the heap
    first = 0  # the first whose result is not there
    turn = 0  # the next result to hand out
    while turn < len(steps):
        while seen < min(first + ahead, len(steps)):
            end, cost = _portion(steps, seen, min(together, first + ahead - seen))
            heapq.heappush(open_steps, (-cost, seen, end))
            seen = end
        while open_steps and crew.has_room():
            _, place, end = heapq.heappop(open_steps)
            ends[place] = end
            crew.give(place, steps[place:end])
        while turn < first:
            yield waiting.pop(turn)  # the workers are busy meanwhile
            turn += 1
        if turn == len(steps):
            return
        place, results = crew.take()
        places = range(place, ends.pop(place))
        if results is None:
            for each in places:
                deaths[each] = deaths.get(each, 0) + 1
                if deaths[each] == TRIES:
                    died = f"its worker died {TRIES} times without an error message"
                    raise RunError(f"{steps[each]}: {died}; is there enough memory?")
                heapq.heappush(open_steps, (-steps[each].cost, each, each + 1))
            continue
        for each, result in zip(places, results, strict=True):
            tick()
            waiting[each] = result
        while first in waiting:
            first += 1


def _portion(steps: Sequence[Step], start: int, most: int) -> tuple[int, int]:
    """How far the small steps from ``start`` on make up one message, and how much work that is."""
    end, cost = start + 1, steps[start].cost
    while end < min(start + most, len(steps)) and cost + steps[end].cost <= ENOUGH:
        cost += steps[end].cost
        end += 1
    return end, cost
