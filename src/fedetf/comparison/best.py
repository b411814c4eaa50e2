"""Each method at its best: of several settings of a method, the one with the highest validation accuracy.

What can be chosen for a method is said by :func:`fedetf.runs.identity.is_choice`: a learning rate, a method's own
numbers. All else is what methods are compared on, and there each of them is chosen anew. Test data decides nothing.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedetf.runs.identity import decides_numbers, is_choice
from fedetf.runs.read import Run

CHOSEN = "Each at its best: of the settings of each method, the one with the highest validation accuracy"
NOT_CHOSEN = (
    "Several settings of a method were run, and none can be called its best: these runs have no validation split to "
    "choose by, and test data is not for choosing. Set data.validation_fraction, such as 0.2"
)


@dataclass(frozen=True)
class Best:
    """The runs of each method at its best; none if no method was run in several settings, or nothing can be chosen."""

    runs: list[Run]
    note: str = ""  # how they were chosen, or why they were not


def at_their_best(runs: Sequence[Run]) -> Best:
    """Of the settings of each method, the runs of the best, judged on the seeds that all of its settings have.

    Where two settings have the same general validation accuracy, as of one model with several personal stages, the
    personal one decides.
    """
    methods: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        methods.setdefault(_key(run, choices=False), {}).setdefault(_key(run, choices=True), []).append(run)
    if all(len(settings) == 1 for settings in methods.values()):
        return Best([])
    best: list[Run] = []
    for settings in methods.values():
        seeds = set.intersection(*({run.seed for run in those} for those in settings.values()))
        scores = [_score([run for run in those if run.seed in seeds]) for those in settings.values()]
        if len(settings) > 1 and (not seeds or any(score == NOTHING for score in scores)):
            return Best([], NOT_CHOSEN)
        best += list(settings.values())[scores.index(max(scores))]
    return Best(best, CHOSEN)


NOTHING = (-1.0, -1.0)


def _score(runs: Sequence[Run]) -> tuple[float, float]:
    """General and personal validation accuracy, means over some runs; −1 where there is none."""
    seen = [run.result.validation for run in runs if run.result.validation is not None]
    if len(seen) < len(runs):
        return NOTHING
    return _mean([each.general_last5 for each in seen]), _mean([each.personal for each in seen])


def _mean(values: Sequence[float | None]) -> float:
    there = [value for value in values if value is not None]
    return statistics.mean(there) if there else -1.0


def _key(run: Run, choices: bool) -> str:
    """What tells runs apart, but for the seed: the settings that are chosen for a method, or all others."""
    values = {k: v for k, v in run.settings.items() if decides_numbers(k) and k != "seed" and is_choice(k) == choices}
    return repr(sorted(values.items()))
