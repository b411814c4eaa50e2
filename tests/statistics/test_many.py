"""Friedman, Nemenyi and Holm: worked numbers, SciPy, and the published example of Demšar (2006)."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedetf.statistics import critical_difference, friedman, groups
from fedetf.statistics.many import DRAWS, from_ranks

WORKED = [
    (52.8, 55.1, 59.6, 58.0),
    (60.3, 61.0, 66.2, 66.9),
    (31.5, 33.0, 35.2, 34.1),
    (40.2, 39.8, 45.5, 44.0),
    (70.1, 71.4, 74.9, 73.0),
    (22.0, 24.3, 23.9, 26.5),
]

# Demšar (2006), Table 6: AUC of C4.5, with m, with cf, and with both tuned, on 14 datasets
C45 = [
    (0.763, 0.768, 0.771, 0.798), (0.599, 0.591, 0.590, 0.569), (0.954, 0.971, 0.968, 0.967),
    (0.628, 0.661, 0.654, 0.657), (0.882, 0.888, 0.886, 0.898), (0.936, 0.931, 0.916, 0.931),
    (0.661, 0.668, 0.609, 0.685), (0.583, 0.583, 0.563, 0.625), (0.775, 0.838, 0.866, 0.875),
    (1.000, 1.000, 1.000, 1.000), (0.940, 0.962, 0.965, 0.962), (0.619, 0.666, 0.614, 0.669),
    (0.972, 0.981, 0.975, 0.975), (0.957, 0.978, 0.946, 0.970),
]  # fmt: skip
PUBLISHED = [3.143, 2.000, 2.893, 1.964]  # its mean ranks, from values with more digits


def test_worked_numbers() -> None:
    found = friedman(WORKED)
    assert found.ranks == pytest.approx([3.833333, 3, 1.5, 1.666667], abs=5e-7)
    assert (found.chi2, found.chi2_p) == pytest.approx((13.4, 0.003847), abs=5e-7)
    assert (found.f, found.p) == pytest.approx((14.565217, 0.000103), abs=5e-7)
    assert found.width == pytest.approx(1.914843, abs=5e-7)
    assert found.groups == [(2, 3, 1), (1, 0)]  # a differs from c and d, b from nobody
    assert found.drawable


def test_against_scipy() -> None:
    for number in range(10):
        scores = np.random.default_rng(number).normal(size=(8, 5))
        theirs = stats.friedmanchisquare(*scores.T)
        found = friedman(scores)
        assert (found.chi2, found.chi2_p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_the_published_example() -> None:
    found = from_ranks(PUBLISHED, 14)
    assert found.chi2 == pytest.approx(9.28, abs=0.01)
    assert found.f == pytest.approx(3.69, abs=0.01)
    assert found.width == pytest.approx(1.25, abs=0.005)
    assert found.groups == [(3, 1, 2, 0)]  # even the best and the worst are nearer than that
    at_ten = critical_difference(4, 14, level=0.10)
    assert at_ten == pytest.approx(1.12, abs=0.005)
    both = [(3, 1, 2), (2, 0)]  # Figure 1(a): C4.5 is worse than two of them, C4.5+cf cannot be told
    assert groups(PUBLISHED, at_ten) == both
    assert friedman(C45).ranks == pytest.approx(PUBLISHED, abs=0.04)  # one tie is none in three digits
    assert groups(friedman(C45).ranks, at_ten) == both


def test_studentised_range() -> None:
    published = {2: 1.960, 3: 2.344, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.948, 8: 3.031, 9: 3.102, 10: 3.164, 12: 3.268}
    for k, q in published.items():
        assert critical_difference(k, 1) / math.sqrt(k * (k + 1) / 6) == pytest.approx(q, abs=6e-4)


# Exact chances for three methods, as printed in tables of Friedman's statistic (Siegel 1956, Table N)
SIEGEL = [
    ([[3, 2, 1]] * 2, 4.0, 0.167),
    ([[3, 2, 1]] * 3, 6.0, 0.028),
    ([[3, 2, 1], [3, 2, 1], [3, 1, 2]], 4.667, 0.194),
    ([[3, 2, 1]] * 4, 8.0, 0.0046),
    ([[3, 2, 1], [3, 2, 1], [3, 2, 1], [3, 1, 2]], 6.5, 0.042),
    ([[3, 2, 1], [3, 2, 1], [3, 1, 2], [3, 1, 2]], 6.0, 0.069),
]


@pytest.mark.parametrize(("scores", "chi2", "p"), SIEGEL)
def test_a_few_blocks_have_the_chances_of_the_tables(scores: list[list[int]], chi2: float, p: float) -> None:
    found = friedman(scores)
    assert found.chi2 == pytest.approx(chi2, abs=5e-4)
    assert found.permuted == pytest.approx(p, abs=6e-4)
    assert found.differ == (p < 0.05)
    assert (len(found.groups) == 1) == (found.width > 2 or not found.differ)  # not shown to differ: all in one group


def test_many_blocks_are_drawn_and_agree_with_what_they_are_drawn_from() -> None:
    scores = np.random.default_rng(3).normal(size=(4, 4)) + np.array([0.0, 0.3, 0.6, 0.9])
    ranks = stats.rankdata(-scores, axis=1)
    ways = [np.array(rows).sum(axis=0) for rows in itertools.product(*map(itertools.permutations, ranks[:3]))]
    apart = ((np.array(ways) + ranks[3]) ** 2).sum(axis=1)  # one block may stay as it is
    exact = (apart >= (ranks.sum(axis=0) ** 2).sum() - 1e-9).mean()
    assert len(ways) > DRAWS
    assert friedman(scores).permuted == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / DRAWS))
    assert friedman(scores).permuted == friedman(scores).permuted


@pytest.mark.slow
def test_chance_alone_rarely_ranks_methods_over_a_few_settings() -> None:
    """Where F is too bold: three methods that are the same code, over three settings."""
    rng, shown, bold = np.random.default_rng(1), 0, 0
    for _ in range(1000):
        found = friedman(rng.normal(size=(3, 3)))
        shown, bold = shown + found.differ, bold + (found.p < 0.05)
    assert shown / 1000 <= 0.05
    assert bold / 1000 > 0.05  # F would call chance a difference too often


def test_the_same_order_everywhere_is_certain_and_none_at_all_is_nothing() -> None:
    same = friedman([[3, 2, 1]] * 6)
    assert (same.f, same.p, same.permuted) == (math.inf, 0, pytest.approx(6**-5))
    assert friedman([[1, 1, 1]] * 6).permuted == 1
    assert friedman([[1, 1, 1]] * 6).chi2 == pytest.approx(0)
    assert not friedman([[3, 2, 1]] * 4).drawable  # too few blocks
    assert not friedman([[3, 2]] * 9).drawable  # too few methods


def test_against_one_method() -> None:
    found = friedman(WORKED)
    error = math.sqrt(4 * 5 / (6 * 6))
    raw = [2 * stats.norm.sf(abs(rank - found.ranks[0]) / error) for rank in found.ranks[1:]]
    assert found.against(0) == pytest.approx([1, raw[0], 3 * raw[1], max(2 * raw[2], 3 * raw[1])])


def test_groups_are_the_largest() -> None:
    assert groups([1.0, 2.0, 3.0], 0.5) == []
    assert groups([1.0, 1.2, 1.4, 5.0], 1.0) == [(0, 1, 2)]
    assert groups([1.0, 2.0], 1.0) == []  # a difference of the width is one
