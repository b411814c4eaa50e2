"""Many methods over many settings (Demšar 2006): Friedman's test, Nemenyi's critical difference, Holm's correction."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike

LEAST_BLOCKS, LEAST_METHODS = 5, 3  # fewer are too few for a critical-difference diagram
LEVEL = 0.05  # ranks that chance sets so far apart less often are shown to differ
DRAWS = 9_999  # of orders within blocks, where there are more than can be counted


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of the p values of several comparisons, in their order.

    >>> [round(value, 6) for value in holm([0.03, 0.01, 0.04])]
    [0.06, 0.03, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for place, number in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - place) * p[number]))
        corrected[number] = largest
    return corrected


def critical_difference(methods: int, blocks: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks that differ by so much differ at that level.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    q = float(scipy.stats.studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def groups(ranks: Sequence[float], width: float) -> list[tuple[int, ...]]:
    """The largest sets of neighbours whose extremes differ by less than ``width``, by number; none of one alone.

    >>> groups([3.8, 3.0, 1.5, 1.7], 1.9)
    [(2, 3, 1), (1, 0)]
    """
    order = sorted(range(len(ranks)), key=lambda i: ranks[i])
    sets: list[tuple[int, ...]] = []
    for start, first in enumerate(order):
        near = tuple(i for i in order[start:] if ranks[i] - ranks[first] < width)
        if len(near) > 1 and not (sets and set(near) <= set(sets[-1])):
            sets.append(near)
    return sets


@dataclass(frozen=True)
class Friedman:
    """Whether methods differ over blocks, and who differs from whom."""

    blocks: int
    ranks: list[float]  # mean rank of each method, 1 is best
    chi2: float
    chi2_p: float
    f: float  # Iman and Davenport's, which is less conservative
    p: float  # of f
    width: float  # Nemenyi's critical difference at 5 %
    permuted: float | None = None  # p by permutation, which holds for a few blocks too; None of mean ranks alone

    @property
    def differ(self) -> bool:
        """Whether the methods are shown to differ."""
        return (self.p if self.permuted is None else self.permuted) < LEVEL

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The methods that are not shown to differ, by number, best first; see :func:`groups`."""
        return groups(self.ranks, self.width if self.differ else math.inf)

    @property
    def drawable(self) -> bool:
        """Whether there are enough blocks and methods for a critical-difference diagram."""
        return self.blocks >= LEAST_BLOCKS and len(self.ranks) >= LEAST_METHODS

    def against(self, control: int) -> list[float]:
        """Holm-corrected p of each method against one, which Nemenyi's test is too conservative for; 1 for itself."""
        k, others = len(self.ranks), [i for i in range(len(self.ranks)) if i != control]
        error = math.sqrt(k * (k + 1) / (6 * self.blocks))
        raw = [2 * float(scipy.stats.norm.sf(abs(self.ranks[i] - self.ranks[control]) / error)) for i in others]
        corrected = dict(zip(others, holm(raw), strict=True))
        return [corrected.get(i, 1.0) for i in range(k)]


def friedman(scores: ArrayLike) -> Friedman:
    """Of scores ``[blocks, methods]``, higher is better, at least two of each; equal ones share their ranks."""
    ranks = scipy.stats.rankdata(-np.asarray(scores, float), axis=1)
    return replace(from_ranks(ranks.mean(axis=0).tolist(), len(ranks)), permuted=permuted_p(ranks))


def permuted_p(ranks: np.ndarray) -> float:
    """How often mean ranks are as far apart if the ranks of each block ``[blocks, methods]`` are dealt out anew.

    χ² and F are approximations that need many blocks: for two blocks of the same order F gives p = 0, where one pair of
    orders of three methods in six is the same. All ways are counted where they are few; else :data:`DRAWS` are drawn,
    the same ones each time.

    >>> round(permuted_p(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])), 4)
    0.1667
    """
    first, *others = ranks
    k = len(first)
    if math.factorial(k) ** len(others) <= DRAWS:
        orders, sums = np.array(list(itertools.permutations(range(k)))), first[None]
        for row in others:
            sums = (sums[:, None] + row[orders]).reshape(-1, k)
    else:
        drawn = np.random.default_rng(0).permuted(np.broadcast_to(ranks, (DRAWS, *ranks.shape)), axis=-1).sum(axis=1)
        sums = np.concatenate([ranks.sum(axis=0)[None], drawn])  # the order that was seen is one of the ways
    apart = (sums**2).sum(axis=1)  # grows with χ², ties or not
    return float((apart >= (ranks.sum(axis=0) ** 2).sum() - 1e-9).mean())


def from_ranks(ranks: Sequence[float], blocks: int) -> Friedman:
    """Of the mean rank of each method over ``blocks``."""
    N, k = blocks, len(ranks)
    chi2 = 12 * N / (k * (k + 1)) * (sum(rank**2 for rank in ranks) - k * (k + 1) ** 2 / 4)
    rest = N * (k - 1) - chi2  # zero if all blocks have the same order
    f = (N - 1) * chi2 / rest if rest > 1e-9 else math.inf
    return Friedman(
        blocks=N,
        ranks=list(ranks),
        chi2=chi2,
        chi2_p=float(scipy.stats.chi2.sf(chi2, k - 1)),
        f=f,
        p=float(scipy.stats.f.sf(f, k - 1, (k - 1) * (N - 1))),
        width=critical_difference(k, N),
    )
