"""Two methods over the seeds that both have. The same seed is the same partition, sampling and start: pairs."""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedetf.statistics.many import holm

LEVEL = 0.05  # a difference that chance makes less often is shown
DIGITS = 12  # after the point; the rest of a difference is rounding, which must not make equal ones differ


class Verdict(enum.Enum):
    """What the differences show."""

    AHEAD = "ahead"
    BEHIND = "behind"
    SAME = "identical"  # with every seed, to the last digit
    NOT_SHOWN = "no difference shown"


@dataclass(frozen=True)
class Paired:
    """The differences A − B, seed by seed, and what follows from them."""

    differences: dict[int, float]  # by seed
    mean: float
    std: float | None  # sample standard deviation; None of a single seed
    low: float | None  # the 95 % t interval of the mean difference; None of a single seed
    high: float | None
    t: float | None  # None of a single seed, and where all differences are the same
    p: float | None  # of t, two-sided; where all differences are the same, that of the sign test
    sign_p: float  # exact, two-sided; zeros are dropped
    rank_sum: float  # Wilcoxon's W, the smaller sum of signed ranks; zeros are dropped
    wilcoxon_p: float  # exact, two-sided
    zeros: int  # seeds without a difference

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.differences)


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Paired | None:
    """A − B on the seeds of which both have a number; None if there are none.

    >>> found = paired({7: 0.6, 8: 0.7, 9: 0.9}, {7: 0.5, 8: 0.5, 9: 0.6})
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (0.2, -0.048, 0.448)
    """
    seeds = sorted(seed for seed in a.keys() & b.keys() if math.isfinite(a[seed] - b[seed]))
    if not seeds:
        return None
    d = np.array([a[seed] - b[seed] for seed in seeds]).round(DIGITS)
    n, mean = len(d), float(d.mean())
    others = d[d != 0]
    sign_p = _signs(int((others > 0).sum()), len(others))
    rank_sum, wilcoxon_p = _signed_ranks(others)
    std = low = high = t = p = None
    if n > 1:
        std = float(d.std(ddof=1)) if np.ptp(d) > 0 else 0.0
        # Student's t: what scipy.stats calls in the end, without what it does before, which takes ten times as long.
        half = float(scipy.special.stdtrit(n - 1, 1 - LEVEL / 2)) * std / math.sqrt(n)
        low, high = mean - half, mean + half
        t = mean / (std / math.sqrt(n)) if std > 0 else None
        p = sign_p if t is None else float(2 * scipy.special.stdtr(n - 1, -abs(t)))
    differences = dict(zip(seeds, d.tolist(), strict=True))
    return Paired(differences, mean, std, low, high, t, p, sign_p, rank_sum, wilcoxon_p, n - len(others))


def _signs(plus: int, n: int) -> float:
    """The exact two-sided p of the sign test: so few of one sign, or fewer."""
    fewer = sum(math.comb(n, k) for k in range(min(plus, n - plus) + 1))
    return min(1.0, 2 * fewer / (1 << n))


def _signed_ranks(d: np.ndarray) -> tuple[float, float]:
    """Wilcoxon's W of differences that are not zero, and its exact two-sided p by all 2ⁿ signs, ties included."""
    if not len(d):
        return 0.0, 1.0
    sizes = np.abs(d)
    smaller, alike = sizes[:, None] > sizes, sizes[:, None] == sizes
    ranks = 2 * smaller.sum(1) + alike.sum(1) + 1  # twice the mid-ranks: whole numbers
    chances = np.ones(1)  # of every sum of the ranks with a plus
    for rank in ranks:
        chances = np.convolve(chances, np.concatenate([[0.5], np.zeros(rank - 1), [0.5]]))
    plus = int(ranks[d > 0].sum())
    least = min(plus, int(ranks.sum()) - plus)
    return least / 2, min(1.0, 2 * float(chances[: least + 1].sum()))


def corrected(family: Sequence[Paired | None]) -> list[float | None]:
    """The p values of several comparisons after Holm's correction for their number; None where there is none."""
    raw = [None if pair is None else pair.p for pair in family]
    known = iter(holm([p for p in raw if p is not None]))
    return [None if p is None else next(known) for p in raw]


def verdicts(family: Sequence[Paired | None]) -> list[Verdict | None]:
    """What each of several comparisons shows; None where there was nothing to compare.

    A method is ahead or behind if the interval is on one side of zero, and stays so after Holm's correction for the
    number of comparisons. A single seed shows nothing.
    """
    pairs = zip(family, corrected(family), strict=True)
    return [None if pair is None else _verdict(pair, 1.0 if p is None else p) for pair, p in pairs]


def _verdict(pair: Paired, p: float) -> Verdict:
    if pair.zeros == pair.n:
        return Verdict.SAME
    if p >= LEVEL:
        return Verdict.NOT_SHOWN
    return Verdict.AHEAD if pair.mean > 0 else Verdict.BEHIND
