"""The table of a comparison, line by line; ``report/comparison.py`` writes it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedetf.comparison.judged import Judged
from fedetf.comparison.metric import ACCURACY
from fedetf.comparison.plan import PlannedRun
from fedetf.comparison.references import is_reference
from fedetf.runs.identity import is_methods_own
from fedetf.runs.read import SCORES, Run, read_run, scores_by_seed


@dataclass(frozen=True)
class Line:
    """One line of the table: a method in one setting, over its seeds. Accuracies are fractions."""

    row: dict[str, str]
    seeds: list[int]
    scores: dict[str, dict[int, float]]  # general (mean of the last five rounds), final and personal, by seed
    epochs: float  # local epochs per client, the personal stage included
    bytes_up: float  # sent per client
    own: frozenset[str] = frozenset()  # keys of the row that were set for single methods
    runs: list[Run] = field(default_factory=list)

    @property
    def general(self) -> list[float]:
        """General accuracy of each seed, the mean of its last five rounds."""
        return list(self.scores["general"].values())

    @property
    def personal(self) -> list[float]:
        """Personal accuracy of each seed."""
        return list(self.scores["personal"].values())

    @property
    def setting(self) -> str:
        """What it is tried in: lines with the same are rivals, be they methods or variants of one."""
        own = {"method", *self.own}
        axes = ((k, v) for k, v in self.row.items() if k not in own and not is_methods_own(k))
        return ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in axes)

    @property
    def reference(self) -> bool:
        """Whether it is there to compare with, and no rival."""
        return is_reference(self.row["method"])

    @property
    def method(self) -> str:
        """The method, whatever its numbers are."""
        return self.row["method"]

    @property
    def names(self) -> list[str]:
        """What it can be called by."""
        return [self.method, self.name]

    def on_seeds(self, seeds: Sequence[int]) -> "Line":
        """The same, over the runs of some seeds; all of them if it has none of these."""
        kept = [run for run in self.runs if run.seed in seeds]
        return replace(self, runs=kept, epochs=_epochs(kept), bytes_up=_bytes_up(kept)) if kept else self

    @property
    def name(self) -> str:
        """What it is called among its rivals: the method, and its own numbers where they are an axis."""
        own = {k: v for k, v in self.row.items() if (k in self.own or is_methods_own(k)) and v != "-"}
        return ", ".join([self.row["method"], *(f"{key.rpartition('.')[2]} = {value}" for key, value in own.items())])


Table = Judged[Line]


def table_lines(runs: Sequence[PlannedRun], metric: str = ACCURACY.name) -> list[Line]:
    """One line for each row of the table, from the finished runs of its seeds; references come last."""
    lines = []
    for row, own in dict.fromkeys((run.row, run.own) for run in runs):
        done = [read_run(run.folder) for run in runs if run.row == row]
        lines.append(
            Line(
                row=dict(row),
                seeds=[run.seed for run in done],
                scores={which: scores_by_seed(done, which, metric) for which in SCORES},
                epochs=_epochs(done),
                bytes_up=_bytes_up(done),
                own=own,
                runs=done,
            )
        )
    return sorted(lines, key=lambda line: line.reference)


def _epochs(runs: Sequence[Run]) -> float:
    return statistics.mean(run.result.epochs_train + run.result.epochs_personal for run in runs)


def _bytes_up(runs: Sequence[Run]) -> float:
    return statistics.mean(run.result.bytes_up / run.result.training for run in runs)
