"""What kind of heterogeneity there is: sites that look different are told apart, those with other classes are not."""

import re

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from fedetf.api import prepare
from fedetf.config import resolve
from fedetf.data import Dataset, Partition, Samples
from fedetf.heterogeneity import Heterogeneity, heterogeneity, judged, label_level, looks, tell_sites_apart
from fedetf.methods import METHODS
from fedetf.metrics.skew import label_skew
from fedetf.report.diagnosis import MADE_FOR


def found(seed: int = 7, **data: object) -> Heterogeneity:
    settings = {f"data.{key}": value for key, value in {"clients": 5, **data}.items()}
    job = prepare(resolve(None, {**settings, "seed": seed}))
    return heterogeneity(label_skew(job.partition.counts), job.partition, job.dataset, seed)


@pytest.mark.parametrize("shift", ["rotate", "noise", "blur"])
def test_sites_that_see_other_inputs_are_told_apart(shift: str) -> None:
    assert found(partition="iid", shift=shift).features in ("mild", "strong", "extreme")
    assert found(partition="iid", shift=shift).labels == "none"


def test_even_sites_are_not() -> None:
    even = [found(seed, partition="iid") for seed in range(5)]
    assert [(each.labels, each.sizes, each.features) for each in even] == [("none", "none", "none")] * 5


def test_label_skew_alone_is_no_heterogeneity_of_features() -> None:
    """The site is guessed far better than evenly, but no better than by the class alone."""
    skewed = [found(seed, alpha=0.1) for seed in range(5)]
    assert {each.labels for each in skewed} <= {"strong", "extreme"}
    assert [each.features for each in skewed] == ["none"] * 5
    assert all(each.told_apart is not None and each.told_apart.accuracy > 0.4 for each in skewed)
    both = found(alpha=0.1, shift="rotate")
    assert (both.labels != "none", both.features != "none") == (True, True)


def test_sizes_alone() -> None:
    uneven = found(partition="quantity", size_alpha=0.3)
    assert (uneven.labels, uneven.features) == ("none", "none")
    assert uneven.sizes != "none"


def test_with_one_class_chance_and_level_are_cohens() -> None:
    """Kappa is agreement beyond that of exchanged places; and with two sites the test is Fisher's exact one."""
    sites, guesses = np.array([0] * 12 + [1] * 10), np.array([0] * 10 + [1] * 2 + [0] * 2 + [1] * 8)
    seen = judged(guesses, sites, np.zeros(22, np.int64), np.random.default_rng(0))
    assert seen.level == pytest.approx(cohen_kappa_score(sites, guesses))
    exact = stats.fisher_exact([[10, 2], [2, 8]], alternative="greater").pvalue
    assert seen.p == pytest.approx(exact, abs=3 * np.sqrt(exact / 1000) + 1e-3)


def test_within_classes_places_are_exchanged_and_not_between_them() -> None:
    """Each class at one site: guesses by the class are all right, and worth nothing."""
    sites = np.repeat([0, 1], 30)
    seen = judged(sites, sites, sites, np.random.default_rng(0))
    assert (seen.accuracy, seen.chance, seen.p, seen.level) == (1.0, 1.0, 1.0, 0.0)


def test_chance_is_rarely_taken_for_a_difference() -> None:
    """The p value is that of a test: with random guesses it is below a tenth in a tenth of cases."""
    rng = np.random.default_rng(1)
    draws = [judged(rng.integers(0, 4, 80), rng.integers(0, 4, 80), rng.integers(0, 3, 80), rng).p for _ in range(60)]
    assert stats.binomtest(sum(p <= 0.1 for p in draws), 60, 0.1).pvalue > 0.001


def test_the_level_of_labels_is_the_share_of_mutual_information() -> None:
    counts = np.array([[90, 10], [10, 90]])
    share = 1 - stats.entropy([0.9, 0.1]) / np.log(2)
    assert label_level(label_skew(counts), counts) == pytest.approx(share)
    few = np.array([[3, 1], [1, 3]])  # as uneven, but it may be chance
    assert label_level(label_skew(few), few) == 0.0
    assert label_level(label_skew(counts[:1]), counts[:1]) == 0.0


def table(n: int, shift: float) -> tuple[Partition, Dataset]:
    """Two sites with two classes each; the second site's first column is moved."""
    rng = np.random.default_rng(0)
    x, y, half = rng.normal(size=(n, 3)), np.arange(n) % 2, n // 2
    x[half:, 0] += shift
    samples = Samples(torch.from_numpy(x).float(), torch.from_numpy(y))
    parts = [np.arange(half), np.arange(half, n)]
    counts = np.array([np.bincount(y[part], minlength=2) for part in parts])
    return Partition(parts, parts, counts, ["a", "b"]), Dataset(samples, samples, ["a", "b"])


def test_tables() -> None:
    """Two normal distributions four deviations apart are told apart in Φ(2) of cases."""
    seen = tell_sites_apart(*table(2000, 4.0), seed=1)
    assert seen is not None
    assert seen.accuracy == pytest.approx(stats.norm.cdf(2), abs=4 * np.sqrt(0.98 * 0.02 / 1000))
    assert tell_sites_apart(*table(40, 4.0), seed=1) is None  # too few


def test_signals_and_texts_can_be_looked_at() -> None:
    coarse, rest = looks(torch.arange(2 * 3 * 40.0).view(2, 3, 40))
    assert (coarse.shape, rest.shape) == ((2, 48), (2, 9))
    np.testing.assert_allclose(rest[0], [19.5, 59.5, 99.5, *[np.std(np.arange(40))] * 3, 1, 1, 1], rtol=1e-6)
    counts, _ = looks(torch.tensor([[3, 3, 256 + 3, 0]]))
    assert (counts[0, 3], counts[0, 0], counts.sum()) == (0.75, 0.25, 1.0)


def test_the_methods_that_are_named_exist() -> None:
    named = set(re.findall(r"\b(?:fed\w+|ccvr|ditto|apfl|spherefed)\b", " ".join(MADE_FOR.values())))
    assert len(named) > 9
    assert named <= set(METHODS)
