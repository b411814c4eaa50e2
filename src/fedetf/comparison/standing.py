"""How rivals stand: one judgement, which every table and page only renders.

A seed decides who holds what, so that means over different seeds tell little about methods: all values of a column are
on the seeds that all rivals have. Words and marks follow the interval of the paired differences, never the mean alone.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fedetf.statistics import Paired, Spread, Verdict, corrected, paired, verdicts

Scores = Mapping[int, float]  # seed -> what was reached


@dataclass(frozen=True)
class Standing:
    """How one rival stands in one column. Differences are to the chosen rival, and None for itself."""

    spread: Spread | None  # on the seeds that all rivals have; on its own, if there are no such seeds
    difference: Paired | None = None
    p: float | None = None  # of the t test, after Holm's correction for all comparisons of the setting
    verdict: Verdict | None = None
    best: bool = False  # the best, or not shown to be behind it, where others are

    @property
    def words(self) -> str:
        """What the difference shows; empty where there is none."""
        if self.difference is None or self.verdict is None:
            return ""
        count = f" (n = {self.difference.n})" if self.verdict is Verdict.NOT_SHOWN else ""
        return f"{self.verdict.value}{count}"


@dataclass(frozen=True)
class Column:
    """A column of a table in one setting."""

    seeds: list[int]  # those that all rivals have who have any
    standings: list[Standing]


def judge_columns(
    columns: Mapping[str, Sequence[Scores]],
    against: int | None = None,
    references: Sequence[int] = (),
    lower: bool = False,
) -> dict[str, Column]:
    """How rivals stand in the columns of one setting.

    Parameters
    ----------
    columns:
        For each column the scores of every rival, empty where it has none.
    against:
        The number of the rival that all others are compared with.
    references:
        The numbers of those that are there to compare with, and no rivals: they have no difference and no mark.
    lower:
        Whether lower values are better.

    Examples
    --------
    >>> found = judge_columns({"general": [{7: 0.4, 8: 0.5, 9: 0.6}, {7: 0.6, 8: 0.7, 9: 0.81}]}, against=1)["general"]
    >>> [standing.words for standing in found.standings], [standing.best for standing in found.standings]
    (['behind', ''], [False, True])
    """
    judged = {name: _column(scores, references) for name, scores in columns.items()}
    family = {
        (name, rival): _difference(columns[name], column.seeds, rival, against)
        for name, column in judged.items()
        for rival in range(len(column.standings))
        if against is not None and against not in references and rival != against and rival not in references
    }
    toward_better = [_turned(each) if lower else each for each in family.values()]
    said = zip(family.items(), corrected(toward_better), verdicts(toward_better), strict=True)
    for ((name, rival), difference), p, verdict in said:
        standings = judged[name].standings
        standings[rival] = replace(standings[rival], difference=difference, p=p, verdict=verdict)
    for name, column in judged.items():
        for rival in _best(columns[name], column, against, references, lower) if column.seeds else ():
            column.standings[rival] = replace(column.standings[rival], best=True)
    return judged


def _column(rivals: Sequence[Scores], references: Sequence[int]) -> Column:
    seeds = common_seeds([scores for number, scores in enumerate(rivals) if number not in references])
    return Column(seeds, [Standing(Spread.of(on_seeds(seeds, scores).values())) for scores in rivals])


def common_seeds(rivals: Sequence[Collection[int]]) -> list[int]:
    """The seeds that all rivals have who have any."""
    having = [set(seeds) for seeds in rivals if seeds]
    return sorted(set.intersection(*having)) if having else []


def on_seeds(seeds: Sequence[int], scores: Scores) -> Scores:
    """The scores of some seeds; all of them where there are no such seeds."""
    return {seed: scores[seed] for seed in seeds if seed in scores} if seeds else scores


def _difference(rivals: Sequence[Scores], seeds: Sequence[int], rival: int, against: int) -> Paired | None:
    return paired(on_seeds(seeds, rivals[rival]), on_seeds(seeds, rivals[against]))


def _best(
    columns: Sequence[Scores], column: Column, against: int | None, references: Sequence[int], lower: bool
) -> set[int]:
    """The leader and those who are not shown to be behind it; nobody if nobody is.

    The leader is chosen by the same numbers, so Holm's correction is for all pairs, not only for its own. Of the rival
    that all are compared with, the words have said who is ahead and who behind: marks say nothing else.
    """
    rivals = [on_seeds(column.seeds, scores) for scores in columns]
    there = [number for number, scores in enumerate(rivals) if scores and number not in references]
    if len(there) < 2:
        return set()
    means = {number: sum(rivals[number].values()) / len(rivals[number]) for number in there}
    leader = (min if lower else max)(there, key=lambda number: means[number])
    others = [number for number in there if number != leader]
    pairs = [(leader, number) for number in others] + list(itertools.combinations(others, 2))
    words = verdicts([paired(rivals[a], rivals[b]) for a, b in pairs])[: len(others)]
    shown = {Verdict.AHEAD, Verdict.BEHIND}  # of the leader: the interval is away from zero
    behind = {number for number, word in zip(others, words, strict=True) if word in shown}
    if against in there:
        said = {number: column.standings[number].verdict for number in there}
        behind -= {against} if leader != against else behind
        behind |= {number for number, word in said.items() if word is Verdict.BEHIND}
        behind |= {against} if said[leader] is Verdict.AHEAD else set()
    return set(there) - behind if behind else set()


def _turned(difference: Paired | None) -> Paired | None:
    """The same with the sign that makes more of it better."""
    return None if difference is None else replace(difference, mean=-difference.mean)


def chosen_rival(names: Sequence[Sequence[str]], wanted: str | None, references: Sequence[int] = ()) -> int | None:
    """The number of the rival that others are compared with; ``names`` are those that each goes by.

    Without a wish it is FedETF, or the first if that is not there.

    >>> chosen_rival([["fedavg"], ["fedetf", "FedETF"]], None), chosen_rival([["fedavg"], ["fedetf"]], "FedAvg")
    (1, 0)
    """
    rivals = [number for number in range(len(names)) if number not in references]
    known = {name.lower(): number for number in reversed(rivals) for name in names[number]}
    if wanted is not None:
        return known.get(wanted.lower())
    return known.get("fedetf", rivals[0] if rivals else None)
