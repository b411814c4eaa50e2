"""What came of an experiment's runs, and whether the paper's claims hold in it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedetf.errors import UserError
from fedetf.files import UnfitFile
from fedetf.paper.experiment import Claim, Experiment, Trial
from fedetf.runs.read import ACCURACIES, FIRST_STEP, Run, by_seed, read_run

Place = tuple[str, str]  # row, column


@dataclass
class Results:
    """The finished runs of an experiment by their place in it."""

    runs: dict[Place, list[Run]] = field(default_factory=dict)

    def by_seed(self, row: str, column: str, metric: str) -> dict[int, float]:
        """A value for each seed that has it."""
        return by_seed(self.runs.get((row, column), []), metric)

    def values(self, row: str, column: str, metric: str) -> list[float]:
        """The same without the seeds."""
        return list(self.by_seed(row, column, metric).values())


def collect(trials: Sequence[Trial]) -> Results:
    """Read what is done."""
    results = Results()
    for trial in trials:
        if trial.run.done:
            results.runs.setdefault((trial.row, trial.column), []).append(_finished(trial.run.folder))
    return results


def _finished(folder: Path) -> Run:
    try:
        return read_run(folder)
    except UnfitFile as error:
        raise UserError(f"{error}; remove {folder}, and the same command makes it anew") from None


LEVEL = 5e-4  # 0.05 points of accuracy: what is not shown decides nothing


@dataclass(frozen=True)
class Verdict:
    """A claim in one setting, against the strongest rival, over the seeds that both have."""

    setting: str
    more: tuple[str, float] | None  # who, and how much; None if nothing can be compared
    less: tuple[str, float] | None
    missing: tuple[str, ...]  # rivals without a run to compare with

    @property
    def holds(self) -> bool | None:
        """Whether there is more of it; None if it cannot be said."""
        return None if self.difference is None else self.difference > LEVEL

    @property
    def difference(self) -> float | None:
        """How much more."""
        return None if self.more is None or self.less is None else self.more[1] - self.less[1]


def judge(claim: Claim, results: Results, columns: Sequence[str]) -> list[Verdict]:
    """The claim in each of the columns that were planned, or in the two that it compares."""
    if claim.more_column is not None and claim.less_column is not None:
        return [_judge(claim, results, claim.more_column, claim.less_column)]
    return [_judge(claim, results, column, column) for column in columns]


def _judge(claim: Claim, results: Results, left: str, right: str) -> Verdict:
    pairs: dict[str, tuple[float, float]] = {}
    for rival in claim.less:
        mine, theirs = results.by_seed(claim.more, left, claim.metric), results.by_seed(rival, right, claim.metric)
        common = sorted(mine.keys() & theirs.keys())  # a seed decides who holds what: only the same can be compared
        if common:
            pairs[rival] = statistics.mean(mine[s] for s in common), statistics.mean(theirs[s] for s in common)
    missing = tuple(rival for rival in claim.less if rival not in pairs)
    setting = left if left == right else f"{left} against {right}"
    if not pairs:
        return Verdict(setting, None, None, missing)
    strongest = min(pairs, key=lambda rival: pairs[rival][0] - pairs[rival][1])
    more, less = pairs[strongest]
    names = (claim.more, strongest) if left == right else (left, right)
    return Verdict(setting, (names[0], more), (names[1], less), missing)


def sentence(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    """The claim in one line: ``FedETF above FedAvg in general accuracy: yes, +9.8 points``."""
    known = [verdict for verdict in verdicts if verdict.holds is not None]
    if not known:
        return f"{claim.text}: cannot be said, values are missing"
    held, several = sum(bool(verdict.holds) for verdict in known), len(verdicts) > 1
    word = "yes" if held == len(known) else "no" if held == 0 else f"in {held} of {len(known)} settings"
    if all(abs(verdict.difference or 0.0) <= LEVEL for verdict in known):
        word = "level"
    elif held and any(verdict.missing for verdict in known):
        word += " so far"
    differences = [_difference(claim.metric, verdict, several, len(claim.less) > 1) for verdict in known]
    unknown = [verdict.setting for verdict in verdicts if verdict.holds is None]
    absent = [f"no runs for {', '.join(unknown)}"] if unknown else []
    return f"{claim.text}: {word}, {'; '.join([*differences, *absent])}"


def _difference(metric: str, verdict: Verdict, named: bool, against_several: bool) -> str:
    assert verdict.more is not None
    assert verdict.less is not None
    (winner, more), (loser, less) = verdict.more, verdict.less
    if metric in (*ACCURACIES, FIRST_STEP):
        text = f"{100 * (more - less):+.1f} points" + (f" over {loser}" if against_several else "")
    else:
        text = f"{winner} {more:.4g}, {loser} {less:.4g} ({more - less:+.2g})"
    where = [verdict.setting] if named else []
    absent = [f"without {', '.join(verdict.missing)}, not run"] if verdict.missing else []
    return f"{text} ({'; '.join([*where, *absent])})" if where or absent else text


def in_the_paper(claim: Claim, experiment: Experiment) -> str:
    """How often the claim holds in the paper's own table: it is not always so."""
    if claim.metric not in ACCURACIES or claim.more_column is not None:
        return ""
    printed = {row.name: row.values for row in experiment.row}
    held, settings = 0, 0
    for place in range(len(experiment.column)):
        which = ACCURACIES.index(claim.metric)
        found = {row: paper_values(printed, row, place)[which] for row in (claim.more, *claim.less)}
        means = {row: float(value.split("±")[0]) for row, value in found.items() if value != "-"}
        rivals = [mean for row, mean in means.items() if row != claim.more]
        if claim.more in means and rivals:
            settings += 1
            held += means[claim.more] > max(rivals)
    return f" [the paper: in {held} of {settings}]" if settings else ""


def paper_values(rows: Mapping[str, Sequence[str]], row: str, column: int) -> tuple[str, str]:
    """What the paper printed, general and personal; a dash where it has none."""
    printed = rows.get(row, [])
    words = printed[column].split() if column < len(printed) else []
    general, personal = [*words, "-", "-"][:2]
    return general, personal
