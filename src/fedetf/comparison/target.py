"""What it costs to reach a given general accuracy: rounds, bytes, image passes, seconds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fedetf.errors import UserError
from fedetf.runs.read import Run
from fedetf.runs.records import RoundLine
from fedetf.settings import LAST


@dataclass(frozen=True)
class Cost:
    """What was spent by the end of a round."""

    rounds: float
    bytes: float  # sent and received, all clients together
    image_passes: float  # images that clients trained on, every pass counted
    seconds: float


@dataclass(frozen=True)
class ToTarget:
    """What a method needs to reach a target, over its seeds."""

    reached: int  # so many seeds did
    seeds: int  # of so many that have a general accuracy at all
    mean: Cost | None  # over seeds; None unless all of them did: a mean of those that did would look too good


def by_name(cost: Cost | None) -> dict[str, float | None]:
    """A cost as columns of a table; None where the target was not reached.

    >>> by_name(Cost(3, 60, 300, 1.5))
    {'rounds_to_target': 3, 'bytes_to_target': 60, 'image_passes_to_target': 300, 'seconds_to_target': 1.5}
    """
    return {f"{each.name}_to_target": None if cost is None else getattr(cost, each.name) for each in fields(Cost)}


def check_target(target: float) -> float:
    """The target, if it can be one."""
    if not 0 < target <= 1:
        raise UserError(f"a target is an accuracy above 0 and up to 1, such as 0.5, not {target:g}")
    return target


def to_target(runs: Sequence[Run], target: float) -> ToTarget:
    """What the runs of a method, one for each seed, need to reach a general accuracy."""
    able = [run for run in runs if any(line.value("general") is not None for line in run.rounds)]
    costs = [cost for run in able if (cost := cost_to_target(run, target)) is not None]
    if not costs or len(costs) < len(able):
        return ToTarget(len(costs), len(able), None)
    means = {name: statistics.mean(vars(cost)[name] for cost in costs) for name in vars(costs[0])}
    return ToTarget(len(costs), len(able), Cost(**means))


def cost_to_target(run: Run, target: float) -> Cost | None:
    """What one run had spent when its general accuracy reached the target; None if it never did.

    One lucky round does not count: what has to reach the target is the mean of the last five rounds that were measured,
    or of all so far if they are fewer, as in the tables. It is looked at where the accuracy was measured.
    """
    seen: list[float] = []
    for number, line in enumerate(run.rounds, start=1):
        value = line.value("general")
        if value is None:
            continue
        seen = [*seen, value][-LAST:]
        if statistics.mean(seen) >= target:
            return spent(run, number)
    return None


def spent(run: Run, rounds: int) -> Cost:
    """What a run had spent by the end of its first so many rounds.

    Where a method completes its model, what counts of the last rounds is the completed one: its exchange is added.
    """
    lines = run.rounds[:rounds]
    completing = _bytes(run.rounds) if lines and lines[-1].completed is not None else None
    extra = 0.0 if completing is None else run.result.bytes_up + run.result.bytes_down - completing
    return Cost(
        rounds=rounds,
        bytes=_bytes(lines) + extra,
        image_passes=sum(line.images for line in lines),
        seconds=sum(line.seconds for line in lines),
    )


def _bytes(lines: Sequence[RoundLine]) -> float:
    return sum(line.bytes_up + line.bytes_down for line in lines)
