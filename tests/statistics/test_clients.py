"""How accuracies are spread over clients, and the bootstrap over them."""

import numpy as np
import pytest
from scipy import stats

from fedetf.statistics import bootstrap, describe_clients

WORKED = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.95, 0.85, 0.75, 0.1]


def test_worked_numbers() -> None:
    found = describe_clients(WORKED)
    assert (found.mean, found.std, found.worst_decile, found.jain, found.gini) == pytest.approx(
        (0.655, 0.248445, 0.1, 0.874223, 0.206870), abs=5e-7
    )
    assert found.jain == pytest.approx(1 / (1 + (found.std / found.mean) ** 2))
    assert found.quartiles == pytest.approx(np.percentile(WORKED, [25, 50, 75]))
    assert describe_clients([*WORKED, 0.2]).worst_decile == pytest.approx(0.15)  # two of eleven


def test_equal_clients() -> None:
    found = describe_clients([0.5] * 7)
    assert (found.std, found.jain, found.gini, found.worst) == pytest.approx((0, 1, 0, 0.5))
    assert describe_clients([0.0, 0.0]).jain == 1.0


def test_what_small_test_splits_add_is_taken_off() -> None:
    rng = np.random.default_rng(0)
    skills = rng.uniform(0.4, 0.9, 4000)
    sizes = rng.integers(3, 30, 4000)
    found = describe_clients(list(rng.binomial(sizes, skills) / sizes), list(sizes))
    assert found.std > skills.std() + 0.02
    assert found.std_beyond_chance == pytest.approx(skills.std(), abs=0.01)
    assert describe_clients([0.0, 1.0], [1, 1]).std_beyond_chance is None
    assert describe_clients([0.5, 0.5], [10, 10]).std_beyond_chance == 0.0


def test_bootstrap() -> None:
    rng = np.random.default_rng(1)
    assert bootstrap([1.4, 0.8, 2.1, -0.3, 1.8], rng) == pytest.approx((0.36, 1.84))  # all 3125 resamples
    values = rng.normal(size=40)
    low, high = bootstrap(list(values), rng)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=rng).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert low < values.mean() < high
    assert bootstrap([0.5] * 20, rng) == pytest.approx((0.5, 0.5))
