"""Label skew against closed forms and definitions written out."""

import itertools
import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fedetf.metrics.skew import label_skew

LN2 = math.log(2)


def test_two_clients_with_one_class_each() -> None:
    skew = label_skew([[4, 0], [0, 4]])
    for client in skew.clients:
        assert (client.entropy, client.effective_classes, client.tv) == (0, 1, 0.5)
        assert client.kl == pytest.approx(LN2)
        assert (client.samples, client.classes, client.missing, client.largest) == (4, 1, 0.5, 1)
    assert skew.mutual_information == pytest.approx(LN2)
    assert skew.jensen_shannon == pytest.approx(LN2)
    assert (skew.size_gini, skew.size_variation, skew.size_ratio) == (0, 0, 1)
    assert (skew.single_class, skew.empty, skew.holders) == (2, 0, (1, 1, 1))


def test_identical_mixes_have_no_skew() -> None:
    skew = label_skew([[1, 2, 3], [2, 4, 6], [10, 20, 30]])
    for value in (skew.mean("tv"), skew.mean("kl"), skew.mutual_information, skew.jensen_shannon):
        assert value == pytest.approx(0, abs=1e-12)


def test_sizes_one_and_three() -> None:
    skew = label_skew([[1], [3]])
    assert (skew.size_gini, skew.size_variation, skew.size_ratio) == (0.25, 0.5, 3)
    assert math.isnan(skew.clients[0].entropy_normalised)  # of one class there is none


def test_against_the_definitions() -> None:
    """scipy's entropy and Jensen-Shannon distance, and sums over all pairs written out."""
    n = np.random.default_rng(0).integers(0, 20, (6, 4))
    skew = label_skew(n)
    overall = n.sum(axis=0) / n.sum()
    for client, row in zip(skew.clients, n, strict=True):
        assert client.entropy == pytest.approx(entropy(row))
        assert client.entropy_normalised == pytest.approx(entropy(row, base=4))
        assert client.kl == pytest.approx(entropy(row, overall))
        assert client.tv == pytest.approx(np.abs(row / row.sum() - overall).sum() / 2)
    pairs = [jensenshannon(a, b) ** 2 for a, b in itertools.combinations(n, 2)]
    assert skew.jensen_shannon == pytest.approx(np.mean(pairs))
    sizes = n.sum(axis=1)
    differences = sum(abs(int(a) - int(b)) for a in sizes for b in sizes)
    assert skew.size_gini == pytest.approx(differences / (2 * 36 * sizes.mean()))
    joint = n / n.sum()
    independent = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    assert skew.mutual_information == pytest.approx(entropy(joint.ravel(), independent.ravel()))
    assert skew.mean("kl", weighted=True) == pytest.approx(skew.mutual_information)


def test_effective_classes_of_an_even_client() -> None:
    assert label_skew([[5, 5, 5, 0], [0, 0, 0, 5]]).clients[0].effective_classes == pytest.approx(3)


def test_empty_clients_are_left_out_and_counted() -> None:
    skew = label_skew([[4, 0], [0, 0], [0, 4]])
    assert (skew.empty, [client.client for client in skew.clients]) == (1, [0, 2])
    assert skew.mutual_information == pytest.approx(LN2)


def test_nothing_gives_nan_and_not_zero() -> None:
    nobody, alone = label_skew([[0, 0]]), label_skew([[2, 2]])
    assert nobody.empty == 1
    for value in (nobody.mutual_information, nobody.size_gini, nobody.mean("tv"), alone.jensen_shannon):
        assert math.isnan(value)
