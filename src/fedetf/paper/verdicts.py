"""What came of an experiment's runs, and whether the paper's claims hold in it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedetf.errors import UserError
from fedetf.files import UnfitFile
from fedetf.paper.experiment import Claim, Experiment, Trial
from fedetf.runs.read import ACCURACIES, FIRST_STEP, Run, by_seed, read_run
from fedetf.statistics import Paired, Verdict, paired, verdicts

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
        raise UserError(f"{error}; or remove {folder}, and the same command makes it anew") from None


EQUAL = 5e-4  # 0.05 points of accuracy: less than is printed


@dataclass(frozen=True)
class Finding:
    """A claim in one setting, against the strongest rival, over the seeds that both have."""

    setting: str
    missing: tuple[str, ...]  # rivals without a run to compare with
    more: tuple[str, float] | None = None  # who, and how much; None if nothing can be compared
    less: tuple[str, float] | None = None
    difference: Paired | None = None  # of these two, seed by seed
    shown: Verdict | None = None  # ahead: of every rival that was run


def judge(claim: Claim, results: Results, columns: Sequence[str]) -> list[Finding]:
    """The claim in each of the columns that were planned, or in the two that it compares."""
    if claim.more_column is not None and claim.less_column is not None:
        return [_judge(claim, results, claim.more_column, claim.less_column)]
    return [_judge(claim, results, column, column) for column in columns]


def _judge(claim: Claim, results: Results, left: str, right: str) -> Finding:
    """To be above all is shown if each pair shows it: no correction is due, since all of them must."""
    mine = results.by_seed(claim.more, left, claim.metric)
    theirs = {rival: results.by_seed(rival, right, claim.metric) for rival in claim.less}
    pairs = {rival: pair for rival, scores in theirs.items() if (pair := paired(mine, scores)) is not None}
    missing = tuple(rival for rival in claim.less if rival not in pairs)
    setting = left if left == right else f"{left} against {right}"
    if not pairs:
        return Finding(setting, missing)
    words = {rival: verdicts([pair])[0] for rival, pair in pairs.items()}
    strongest = min(pairs, key=lambda rival: pairs[rival].mean)
    word = words[strongest]
    if word is Verdict.AHEAD and set(words.values()) != {Verdict.AHEAD}:
        word = Verdict.NOT_SHOWN
    names = (claim.more, strongest) if left == right else (left, right)
    seeds = pairs[strongest].differences
    more, less = (statistics.mean(scores[seed] for seed in seeds) for scores in (mine, theirs[strongest]))
    return Finding(setting, missing, (names[0], more), (names[1], less), pairs[strongest], word)


def sentence(claim: Claim, findings: Sequence[Finding]) -> str:
    """The claim in one line: ``FedETF above FedAvg: yes, +9.8 points [+4.1, +15.5], 3 seeds``.

    The word follows the 95 % interval of the paired differences: yes, no, or not shown.
    """
    known = [finding for finding in findings if finding.difference is not None]
    if not known:
        return f"{claim.text}: cannot be said, values are missing"
    differences = [_difference(claim.metric, finding, len(findings) > 1, len(claim.less) > 1) for finding in known]
    unknown = [finding.setting for finding in findings if finding.difference is None]
    absent = [f"no runs for {', '.join(unknown)}"] if unknown else []
    return f"{claim.text}: {_word(known)}, {'; '.join([*differences, *absent])}"


def _word(known: Sequence[Finding]) -> str:
    """What the settings show together."""
    shown = sum(finding.shown is Verdict.AHEAD for finding in known)
    opposite = sum(finding.shown is Verdict.BEHIND for finding in known)
    if shown == len(known):
        return "yes so far" if any(finding.missing for finding in known) else "yes"
    if opposite == len(known):
        return "no"
    if all(finding.difference is not None and abs(finding.difference.mean) <= EQUAL for finding in known):
        return "level"
    if not shown and not opposite:
        return "not shown"
    against = f", the opposite in {opposite}" if opposite else ""
    return f"shown in {shown} of {len(known)} settings{against}"


def _difference(metric: str, finding: Finding, named: bool, against_several: bool) -> str:
    assert finding.more is not None
    assert finding.less is not None
    assert finding.difference is not None
    (winner, more), (loser, less), pair = finding.more, finding.less, finding.difference
    if metric in (*ACCURACIES, FIRST_STEP):
        text = f"{100 * pair.mean:+.1f} points" + (f" over {loser}" if against_several else "")
        ends = [] if pair.low is None or pair.high is None else [f"{100 * end:+.1f}" for end in (pair.low, pair.high)]
    else:
        text = f"{winner} {more:.4g}, {loser} {less:.4g} ({pair.mean:+.2g})"
        ends = [] if pair.low is None or pair.high is None else [f"{end:+.2g}" for end in (pair.low, pair.high)]
    interval = f" [{', '.join(ends)}]" if ends else ""
    seeds = f", {pair.n} seed{'s' if pair.n != 1 else ''}"
    where = [finding.setting] if named else []
    absent = [f"without {', '.join(finding.missing)}, not run"] if finding.missing else []
    note = f" ({'; '.join([*where, *absent])})" if where or absent else ""
    return f"{text}{interval}{seeds}{note}"


def in_the_paper(claim: Claim, experiment: Experiment) -> str:
    """How often the claim holds in the paper's own table: it is not always so."""
    if claim.metric not in ACCURACIES or claim.more_column is not None:
        return ""
    printed = {row.name: row.values for row in experiment.row}
    holding, settings = 0, 0
    for place in range(len(experiment.column)):
        which = ACCURACIES.index(claim.metric)
        values = {row: paper_values(printed, row, place)[which] for row in (claim.more, *claim.less)}
        means = {row: float(value.split("±")[0]) for row, value in values.items() if value != "-"}
        rivals = [mean for row, mean in means.items() if row != claim.more]
        if claim.more in means and rivals:
            settings += 1
            holding += means[claim.more] > max(rivals)
    return f" [the paper: in {holding} of {settings}]" if settings else ""


def paper_values(rows: Mapping[str, Sequence[str]], row: str, column: int) -> tuple[str, str]:
    """What the paper printed, general and personal; a dash where it has none."""
    printed = rows.get(row, [])
    words = printed[column].split() if column < len(printed) else []
    general, personal = [*words, "-", "-"][:2]
    return general, personal
