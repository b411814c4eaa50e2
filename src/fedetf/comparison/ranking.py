"""Which two are best: one ranking, which every table and page only renders.

A seed decides who holds what, so that means over different seeds tell little about methods. Rivals are ranked on the
seeds that all of them have, however many more some of them have.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BEST = 2  # so many places are marked, as in the paper's tables

Scores = Mapping[int, float]  # seed -> what was reached


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (population, as the paper's authors compute it)."""

    mean: float
    std: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None of nothing."""
        there = list(values)
        return cls(statistics.mean(there), statistics.pstdev(there), len(there)) if there else None

    def percent(self) -> str:
        """Mean±std in percent; of a single value, that value.

        >>> Spread(0.5, 0.1, 2).percent(), Spread(0.5, 0.0, 1).percent()
        ('50.00±10.00', '50.00')
        """
        return f"{100 * self.mean:.2f}" + (f"±{100 * self.std:.2f}" if self.count > 1 else "")


@dataclass(frozen=True)
class Ranking:
    """Rivals on the seeds that all who have any have."""

    seeds: list[int]
    spreads: list[Spread | None]  # of each rival on those seeds; None if it has none
    places: list[int | None]  # 1 or 2; None behind that, without a value, or with nobody to compare with


def rank(rivals: Sequence[Scores]) -> Ranking:
    """Who is best and second best; higher is better, and equal means share a place.

    >>> rank([{7: 0.4, 8: 0.9}, {7: 0.5}, {}]).places  # seed 8 is the first one's alone
    [2, 1, None]
    """
    having = [set(scores) for scores in rivals if scores]
    seeds = sorted(set.intersection(*having)) if having else []
    spreads = [Spread.of(scores[seed] for seed in seeds) if scores else None for scores in rivals]
    means = [spread.mean for spread in spreads if spread is not None]
    places = [None if spread is None else 1 + sum(mean > spread.mean for mean in means) for spread in spreads]
    if len(means) < 2:
        places = [None] * len(rivals)
    return Ranking(seeds, spreads, [place if place is not None and place <= BEST else None for place in places])
