"""Who does what next: longest step first, results in their fixed order, a bounded number of them in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol

from fedetf.engines.base import Tick
from fedetf.engines.steps import Result, Step
from fedetf.errors import RunError

TRIES = 3  # a step that ends so many workers is not tried again


class Crew(Protocol):
    """Workers that do one step at a time. One that dies is replaced by its crew."""

    def has_room(self) -> bool:
        """Whether a worker is free to take a step."""

    def give(self, place: int, step: Step) -> None:
        """Hand a step to a free worker; ``place`` is how the step is called."""

    def take(self) -> tuple[int, Result | None]:
        """Wait for a worker: the place of its step, and what came of it; None if the worker died of it."""


def in_order(crew: Crew, steps: Sequence[Step], ahead: int, tick: Tick) -> Iterator[Result]:
    """Results in the order of ``steps``.

    At most ``ahead`` steps beyond the first unfinished one are begun, so that no more results than that wait for their
    turn. Among those, the longest goes first: nobody waits at the end of a round for a client that began last.
    """
    waiting: dict[int, Result] = {}  # done before their turn
    open_steps: list[tuple[int, int]] = []  # (−cost, place), a heap
    deaths: dict[int, int] = {}
    seen = 0  # steps that went into the heap
    first = 0  # the first whose result is not there
    turn = 0  # the next result to hand out
    while turn < len(steps):
        while seen < min(first + ahead, len(steps)):
            heapq.heappush(open_steps, (-steps[seen].cost, seen))
            seen += 1
        while open_steps and crew.has_room():
            _, place = heapq.heappop(open_steps)
            crew.give(place, steps[place])
        while turn < first:
            yield waiting.pop(turn)  # the workers are busy meanwhile
            turn += 1
        if turn == len(steps):
            return
        place, result = crew.take()
        if result is None:
            deaths[place] = deaths.get(place, 0) + 1
            if deaths[place] == TRIES:
                raise RunError(f"{steps[place]}: its worker died {TRIES} times without a word; is there enough memory?")
            heapq.heappush(open_steps, (-steps[place].cost, place))
            continue
        tick()
        waiting[place] = result
        while first in waiting:
            first += 1
