"""The table of a comparison, line by line, with the places of each; ``report/comparison.py`` writes it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedetf.comparison.plan import PlannedRun
from fedetf.comparison.ranking import Spread, rank
from fedetf.runs.identity import is_methods_own
from fedetf.runs.read import ACCURACIES, by_seed, read_run


@dataclass(frozen=True)
class Line:
    """One line of the table: a method in one setting, over its seeds. Accuracies are fractions."""

    row: dict[str, str]
    seeds: list[int]
    scores: dict[str, dict[int, float]]  # general and personal accuracy by seed, where there is one
    epochs: float  # local epochs per client, the personal stage included
    bytes_up: float  # sent per client

    @property
    def general(self) -> list[float]:
        """General accuracy of each seed, the mean of its last five rounds."""
        return list(self.scores["general"].values())

    @property
    def personal(self) -> list[float]:
        """Personal accuracy of each seed."""
        return list(self.scores["personal"].values())

    @property
    def setting(self) -> dict[str, str]:
        """What it is tried in: lines with the same are rivals, be they methods or variants of one."""
        return {key: value for key, value in self.row.items() if key != "method" and not is_methods_own(key)}

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation over its seeds."""
        return Spread.of(self.scores[metric].values())


def places(lines: Sequence[Line], metric: str) -> list[int | None]:
    """The place of each line in its setting, on the seeds that all lines there have; see :func:`rank`."""
    found: dict[int, int | None] = {}
    for setting in (line.setting for line in lines):
        rivals = [number for number, line in enumerate(lines) if line.setting == setting]
        ranking = rank([lines[number].scores[metric] for number in rivals])
        found.update(zip(rivals, ranking.places, strict=True))
    return [found[number] for number in range(len(lines))]


def table_lines(runs: Sequence[PlannedRun]) -> list[Line]:
    """One line for each row of the table, from the finished runs of its seeds."""
    lines = []
    for row in dict.fromkeys(run.row for run in runs):
        done = [read_run(run.folder) for run in runs if run.row == row]
        lines.append(
            Line(
                row=dict(row),
                seeds=[run.seed for run in done],
                scores={metric: by_seed(done, metric) for metric in ACCURACIES},
                epochs=statistics.mean(run.result.epochs_train + run.result.epochs_personal for run in done),
                bytes_up=statistics.mean(run.result.bytes_up / run.result.clients for run in done),
            )
        )
    return lines
