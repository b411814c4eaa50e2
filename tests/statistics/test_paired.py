"""Two methods over seeds: worked numbers, SciPy, all signs by hand, and what chance alone makes of it."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedetf.rng import numpy_stream
from fedetf.statistics import Paired, Spread, Verdict, holm, paired, verdicts

A = dict(enumerate([61.2, 58.9, 63.0, 60.1, 62.4]))
B = dict(enumerate([59.8, 58.1, 60.9, 60.4, 60.6]))


def of(*differences: float) -> Paired:
    found = paired(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0))
    assert found is not None
    return found


def test_worked_numbers() -> None:
    found = paired(A, B)
    assert list(found.differences.values()) == pytest.approx([1.4, 0.8, 2.1, -0.3, 1.8])
    assert (found.mean, found.std, found.t, found.p) == pytest.approx((1.16, 0.950263, 2.729601, 0.052465), abs=5e-7)
    assert (found.low, found.high) == pytest.approx((-0.019908, 2.339908), abs=1e-6)
    assert (found.rank_sum, found.wilcoxon_p) == (1, 0.125)
    assert found.n == 5


def test_against_scipy() -> None:
    for number in range(20):
        rng = np.random.default_rng(number)
        a, b = rng.normal(size=(2, 7))
        found = paired(dict(enumerate(a)), dict(enumerate(b)))
        theirs = stats.ttest_rel(a, b)
        interval = theirs.confidence_interval(0.95)
        assert (found.t, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
        signed = stats.wilcoxon(a, b, method="exact")
        assert (found.rank_sum, found.wilcoxon_p) == pytest.approx((signed.statistic, signed.pvalue))


def test_half_widths_and_smallest_p_values() -> None:
    for n, width, smallest in ((3, 2.484, 0.25), (5, 1.242, 0.0625), (10, 0.715, 2**-9)):
        values = np.arange(1.0, n + 1)
        found = of(*values)
        assert (found.high - found.mean) / found.std == pytest.approx(width, abs=5e-4)
        assert found.wilcoxon_p == found.sign_p == smallest


def test_ties_and_zeros_by_all_signs() -> None:
    found = of(0.5, 0.5, -0.5, 1.0, 0.0, 2.0)  # mid-ranks 2, 2, 2, 4, 5; the zero is dropped
    ranks = [2, 2, 2, 4, 5]
    sums = [
        sum(r for r, plus in zip(ranks, signs, strict=True) if plus) for signs in itertools.product((0, 1), repeat=5)
    ]
    expected = sum(min(s, 15 - s) <= 2 for s in sums) / 32
    assert (found.rank_sum, found.zeros) == (2, 1)
    assert found.wilcoxon_p == pytest.approx(expected)
    assert found.sign_p == pytest.approx(2 * (1 + 5) / 32)  # one minus among five


def test_the_same_difference_with_every_seed_has_no_t() -> None:
    same = of(0.5, 0.5, 0.5)
    assert (same.low, same.high, same.t) == (0.5, 0.5, None)
    assert same.p == same.sign_p == 0.25
    assert verdicts([same, of(0.0, 0.0), of(*[0.25] * 8)]) == [Verdict.NOT_SHOWN, Verdict.SAME, Verdict.AHEAD]


def test_rounding_does_not_make_equal_differences_differ() -> None:
    a, b = {7: 0.6, 8: 0.7, 9: 0.8}, {7: 0.5, 8: 0.6, 9: 0.7}
    assert len({a[seed] - b[seed] for seed in a}) > 1  # 0.1 each, but for the last digit
    found = paired(a, b)
    assert (found.std, found.t, found.p) == (0.0, None, 0.25)
    assert verdicts([found]) == [Verdict.NOT_SHOWN]
    assert verdicts([paired({7: 0.1 + 0.2}, {7: 0.3})]) == [Verdict.SAME]
    assert paired({7: 0.6, 8: 0.6}, {7: 0.5, 8: 0.7}).rank_sum == 1.5  # a tie


def test_one_seed_shows_nothing_and_no_seed_is_nothing() -> None:
    one = of(3.0)
    assert (one.std, one.low, one.p) == (None, None, None)
    assert verdicts([one, None]) == [Verdict.NOT_SHOWN, None]
    assert paired({7: 0.5}, {8: 0.5}) is None
    assert paired({7: math.nan}, {7: 0.5}) is None
    assert paired({7: math.nan, 8: 0.75}, {7: 0.5, 8: 0.5}).differences == {8: 0.25}


def test_the_interval_holds_the_mean() -> None:
    for number in range(50):
        found = of(*np.random.default_rng(number).normal(size=3))
        assert found.low <= found.mean <= found.high


def test_words_follow_the_interval_and_holm() -> None:
    clear, back = of(1.0, 1.1, 0.9, 1.05), of(-1.0, -1.1, -0.9, -1.05)
    close = of(0.5, 1.0, 0.2, 0.8)  # p = 0.03: shown alone, not among three
    assert close.low > 0
    assert verdicts([close]) == [Verdict.AHEAD]
    assert verdicts([clear, back, of(1.0, -1.0, 2.0)]) == [Verdict.AHEAD, Verdict.BEHIND, Verdict.NOT_SHOWN]
    dull = of(1.0, -1.0, 0.5, -0.7)
    assert verdicts([close, dull, dull]) == [Verdict.NOT_SHOWN] * 3


def test_holm() -> None:
    assert holm([0.01, 0.03, 0.04]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def same_code_under_two_names(count: int, seeds: int, methods: int = 2) -> tuple[int, int]:
    """In how many simulated comparisons nothing is shown: of general accuracy, and of general and personal accuracy.

    A seed moves all methods, and chance moves each. Both accuracies of all methods are one family.
    """
    rng, quiet, all_quiet = numpy_stream(7, "simulation", seeds, methods), 0, 0
    for _ in range(count):
        level = rng.normal(0.5, 0.05, seeds)
        general, personal = level + rng.normal(0, 0.01, (2, methods, seeds))
        pairs = [(scores[i], scores[0]) for scores in (general, personal) for i in range(1, methods)]
        words = verdicts([paired(dict(enumerate(a)), dict(enumerate(b))) for a, b in pairs])
        quiet += {Verdict.NOT_SHOWN} == set(words[: methods - 1])
        all_quiet += {Verdict.NOT_SHOWN} == set(words)
    return quiet, all_quiet


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "methods"), [(3, 2), (5, 2), (5, 6)])
def test_chance_alone_is_rarely_called_a_difference(seeds: int, methods: int) -> None:
    count = 2000
    _, all_quiet = same_code_under_two_names(count, seeds, methods)
    assert all_quiet / count > 0.95 - 3 * math.sqrt(0.05 * 0.95 / count)
    assert same_code_under_two_names(100, seeds, methods)[0] >= 95


def test_spread_is_that_of_a_sample() -> None:
    values = [0.5, 0.7, 0.9]
    spread = Spread.of(values)
    assert spread.std == pytest.approx(np.std(values, ddof=1))
    assert spread.population == pytest.approx(np.std(values))
    assert Spread.of([]) is None
    assert Spread.of([0.5]).std is None
