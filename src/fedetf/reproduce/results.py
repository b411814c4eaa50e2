"""What came of an experiment's runs, and whether the paper's claims hold in it."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedetf.config import LAST
from fedetf.reproduce.experiment import Claim, Trial

ACCURACIES = ("general", "personal")


@dataclass
class Run:
    """A finished run, from its folder."""

    seed: int
    result: dict[str, Any]
    rounds: list[dict[str, Any]]
    folder: Path

    def value(self, metric: str) -> float | None:
        """An accuracy, or a measure of neural collapse as the mean over the last five rounds; None if it has none."""
        if metric in ACCURACIES:
            found: float | None = self.result["general_last5" if metric == "general" else metric]
            return found
        values = [r.get("measures", {}).get(metric) for r in self.rounds[-LAST:]]
        known = [value for value in values if value is not None]
        return statistics.mean(known) if known else None

    def curve(self, metric: str) -> list[float]:
        """A value per round, NaN where it was not measured."""
        values = (r.get(metric) if metric == "general" else r.get("measures", {}).get(metric) for r in self.rounds)
        return [math.nan if value is None else value for value in values]


Place = tuple[str, str]  # row, column


@dataclass
class Results:
    """The finished runs of an experiment by their place in it."""

    runs: dict[Place, list[Run]] = field(default_factory=dict)

    def values(self, row: str, column: str, metric: str) -> list[float]:
        """Of each seed that has it."""
        found = (run.value(metric) for run in self.runs.get((row, column), []))
        return [value for value in found if value is not None]

    @property
    def columns(self) -> list[str]:
        """In the experiment's order."""
        return list(dict.fromkeys(column for _, column in self.runs))

    def rows(self, column: str) -> list[str]:
        """Those of a column, in the experiment's order."""
        return [row for row, other in self.runs if other == column]


def collect(trials: Sequence[Trial]) -> Results:
    """Read what is done."""
    results = Results()
    for trial in trials:
        if trial.cell.done:
            results.runs.setdefault((trial.row, trial.column), []).append(read_run(trial.cell.folder))
    return results


def read_run(folder: Path) -> Run:
    """A run folder's result and rounds."""
    result = json.loads((folder / "result.json").read_text("utf-8"))
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text("utf-8").splitlines()]
    return Run(result["seed"], result, rounds, folder)


@dataclass(frozen=True)
class Verdict:
    """A claim in one column: its two values, or None where a run is missing."""

    column: str
    more: float | None
    less: float | None

    @property
    def holds(self) -> bool | None:
        """Whether there is more of it; None if it cannot be said."""
        return None if self.more is None or self.less is None else self.more > self.less


def judge(claim: Claim, results: Results) -> list[Verdict]:
    """The claim in every column, against the strongest of the others; seeds are averaged."""

    def mean(row: str, column: str) -> float | None:
        values = results.values(row, column, claim.metric)
        return statistics.mean(values) if values else None

    if claim.more_column is not None and claim.less_column is not None:
        pairs = [(f"{claim.more_column} against {claim.less_column}", claim.more_column, claim.less_column)]
    else:
        pairs = [(column, column, column) for column in results.columns]
    verdicts = []
    for name, left, right in pairs:
        others = [value for row in claim.less if (value := mean(row, right)) is not None]
        verdicts.append(Verdict(name, mean(claim.more, left), max(others) if others else None))
    return verdicts


def sentence(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    """The claim in one line: ``FedETF above FedAvg in general accuracy: yes, +9.8 points``."""
    known = [verdict for verdict in verdicts if verdict.holds is not None]
    if not known:
        return f"{claim.text}: cannot be said, runs are missing"
    held = sum(bool(verdict.holds) for verdict in known)
    word = "yes" if held == len(known) else "no" if held == 0 else f"in {held} of {len(known)} settings"
    differences = ", ".join(_difference(claim.metric, verdict, len(known) > 1) for verdict in known)
    return f"{claim.text}: {word}, {differences}"


def _difference(metric: str, verdict: Verdict, named: bool) -> str:
    assert verdict.more is not None
    assert verdict.less is not None
    if metric in ACCURACIES:
        text = f"{100 * (verdict.more - verdict.less):+.1f} points"
    else:
        text = f"{verdict.more:.4g} against {verdict.less:.4g}"
    return f"{text} ({verdict.column})" if named else text


def paper_values(rows: Mapping[str, Sequence[str]], row: str, column: int) -> tuple[str, str]:
    """What the paper printed, general and personal; a dash where it has none."""
    printed = rows.get(row, [])
    words = printed[column].split() if column < len(printed) else []
    general, personal = [*words, "-", "-"][:2]
    return general, personal
