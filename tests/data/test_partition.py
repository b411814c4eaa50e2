"""Who holds what: the authors' sizes, the bounds on redraws, and the repair."""

import json
import warnings

import numpy as np
import pytest

from fedetf import UserError, dirichlet_partition, iid_partition, shard_partition
from fedetf.data.partition import _repair, make_partition, split_parts
from fedetf.settings import DataSettings

CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)
DIGITS = np.repeat(np.arange(10), 144)


# Smallest and largest client of the authors' partition routine, replayed for the paper's seeds.
@pytest.mark.parametrize(
    ("labels", "alpha", "clients", "seed", "smallest", "largest"),
    [
        (CIFAR10, 0.1, 20, 7, 53, 9409),
        (CIFAR10, 0.1, 20, 8, 429, 6825),
        (CIFAR10, 0.1, 20, 9, 82, 6957),
        (CIFAR10, 0.1, 20, 10, 607, 8116),
        (CIFAR10, 0.05, 20, 7, 29, 11924),
        (CIFAR10, 0.05, 20, 8, 13, 9814),
        (CIFAR10, 0.05, 20, 9, 10, 10673),
        (CIFAR10, 0.05, 20, 10, 2, 7546),
        (CIFAR100, 0.1, 20, 7, 1576, 3159),
        (CIFAR100, 0.05, 20, 10, 1146, 4315),
        (CIFAR10, 0.1, 50, 7, 9, 4842),
        (CIFAR10, 0.1, 50, 9, 34, 3657),
        (CIFAR10, 0.1, 100, 8, 2, 2158),
        (CIFAR10, 0.1, 100, 10, 7, 2027),
    ],
)
def test_dirichlet_gives_the_sizes_of_the_paper(labels, alpha, clients, seed, smallest, largest) -> None:
    sizes = [len(part) for part in dirichlet_partition(labels, clients, alpha, seed, min_size=1)]
    assert (min(sizes), max(sizes)) == (smallest, largest)


def assert_partition(parts: list[np.ndarray], n: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def test_small_alpha_is_skewed_and_large_alpha_even() -> None:
    def shares(alpha: float) -> np.ndarray:
        parts = dirichlet_partition(CIFAR10, 10, alpha, seed=1)
        return np.stack([np.bincount(CIFAR10[part], minlength=10) for part in parts])

    assert (shares(0.05) == 0).mean() > 0.4
    np.testing.assert_allclose(shares(1e6), 500, rtol=0.02)


def test_a_tiny_client_is_redrawn() -> None:
    """Seed 10 at alpha 0.05 draws a client of two samples first."""
    parts = dirichlet_partition(CIFAR10, 20, 0.05, seed=10)
    assert min(map(len, parts)) >= 4
    assert_partition(parts, len(CIFAR10))


def test_extreme_skew_ends_with_a_repair_and_a_warning() -> None:
    settings = DataSettings(clients=50, alpha=0.01)
    with pytest.warns(UserWarning, match=r"of 50 clients still had fewer than 4 samples"):
        partition = make_partition(DIGITS, [str(c) for c in range(10)], settings, seed=7)
    sizes = [len(a) + len(b) for a, b in zip(partition.train, partition.test, strict=True)]
    assert min(sizes) == 4
    assert all(sizes[k] == 4 for k in partition.repaired)
    assert partition.draws == 101
    assert all(len(part) > 0 for part in [*partition.train, *partition.test])
    recorded = json.loads(partition.to_json())
    assert recorded["repaired"] == partition.repaired
    assert_partition([*partition.train, *partition.test], len(DIGITS))


def test_repair_takes_from_the_largest() -> None:
    with pytest.warns(UserWarning, match="fewer"):
        parts = dirichlet_partition(DIGITS, 50, 0.01, seed=7)
    sizes = np.array([len(part) for part in parts])
    assert (sizes >= 4).all()
    assert sizes.max() > 50  # it moves no more than it must


def test_repair_takes_each_sample_from_the_client_that_is_largest_then() -> None:
    """Sizes (1, 9, 6, 8) and a minimum of 4: three samples move, from 9, then from 8 and 8 (the first of equals)."""
    owner = np.repeat(np.arange(4), [1, 9, 6, 8])
    sizes = np.bincount(owner)
    _repair(owner, sizes, 4, np.random.RandomState(0))
    assert sizes.tolist() == [4, 7, 6, 7]
    assert np.bincount(owner).tolist() == [4, 7, 6, 7]


def test_redraws_of_neighbouring_seeds_are_unrelated() -> None:
    """Seed 10's second draw must not be seed 11's first."""
    redrawn = dirichlet_partition(CIFAR10, 20, 0.05, seed=10)
    neighbour = dirichlet_partition(CIFAR10, 20, 0.05, seed=11, min_size=1)
    assert [len(part) for part in redrawn] != [len(part) for part in neighbour]


def test_clients_with_equal_shares_are_split_differently() -> None:
    partition = split_parts([np.arange(10), np.arange(10, 20)], np.arange(20) % 2, ["a", "b"], 0.3, seed=1)
    assert partition.test[0].tolist() != (partition.test[1] - 10).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dirichlet_partition(DIGITS, 5, 0), "data.alpha"),
        (lambda: dirichlet_partition(DIGITS, 5, float("nan")), "data.alpha"),
        (lambda: dirichlet_partition(DIGITS, 0, 0.1), "data.clients"),
        (lambda: dirichlet_partition(DIGITS, 3.5, 0.1), "data.clients"),
        (lambda: dirichlet_partition(DIGITS, 5, 0.1, seed=-1), "seed"),
        (lambda: dirichlet_partition(DIGITS, 5, 0.1, seed=None), "seed"),
        (lambda: dirichlet_partition(DIGITS.reshape(-1, 2), 5, 0.1), "labels have shape"),
        (lambda: dirichlet_partition([], 5, 0.1), "0 samples cannot give 5 clients"),
        (lambda: iid_partition(DIGITS, 0), "data.clients"),
        (lambda: shard_partition(DIGITS, 3, 0), "data.shards"),
    ],
)
def test_bad_input_of_the_public_functions(call, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_labels_of_any_kind() -> None:
    names = np.array(list("abcdefghij"))[DIGITS]
    a, b = dirichlet_partition(names, 5, 0.5, seed=1), dirichlet_partition(DIGITS * 7 - 3, 5, 0.5, seed=1)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_strict_makes_it_an_error_that_names_the_numbers() -> None:
    with pytest.raises(UserError, match=r"alpha = 0.01, 50 clients and 10 classes gave every client 4 samples"):
        dirichlet_partition(DIGITS, 50, 0.01, seed=7, strict=True)


def test_more_clients_than_samples_allow() -> None:
    with pytest.raises(UserError, match="cannot give 400 clients 4 each"):
        dirichlet_partition(DIGITS, 400, 0.1)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6])
def test_alpha_so_small_that_draws_underflow(alpha: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_partition(dirichlet_partition(DIGITS, 5, alpha, seed=1), len(DIGITS))


def test_iid() -> None:
    parts = iid_partition(DIGITS, 7, seed=1)
    assert_partition(parts, len(DIGITS))
    assert {len(part) for part in parts} == {205, 206}
    counts = np.stack([np.bincount(DIGITS[part], minlength=10) for part in parts])
    assert counts.min() > 5


@pytest.mark.parametrize(("clients", "shards"), [(10, 2), (7, 3), (5, 2), (3, 10)])
def test_shards(clients: int, shards: int) -> None:
    parts = shard_partition(DIGITS, clients, shards, seed=1)
    assert_partition(parts, len(DIGITS))
    assert all(len(np.unique(DIGITS[part])) == shards for part in parts)
    holders = np.stack([np.bincount(DIGITS[part], minlength=10) > 0 for part in parts]).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_impossible_shards() -> None:
    with pytest.raises(UserError, match="only 10 classes"):
        shard_partition(DIGITS, 5, 11)
    with pytest.raises(UserError, match="cannot hold 10 classes"):
        shard_partition(DIGITS, 3, 2)


def test_split_is_70_30_and_seeded() -> None:
    def make(seed: int):
        return make_partition(DIGITS, [str(c) for c in range(10)], DataSettings(clients=5), seed)

    partition = make(3)
    for a, b in zip(partition.train, partition.test, strict=True):
        assert len(b) == int(0.3 * (len(a) + len(b)))
    again = make(3)
    assert all(np.array_equal(a, b) for a, b in zip(partition.train, again.train, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(partition.train, make(4).train, strict=True))
    for counts, part in zip(partition.counts, partition.train, strict=True):
        assert np.array_equal(counts, np.bincount(DIGITS[part], minlength=10))


def test_given_is_for_python_only() -> None:
    with pytest.raises(UserError, match="given"):
        make_partition(DIGITS, [str(c) for c in range(10)], DataSettings(partition="given"), 0)


def test_sizes_are_skewed_and_the_mix_is_not() -> None:
    settings = DataSettings(clients=10, partition="quantity", size_alpha=0.5)
    labels = np.arange(50_000) % 10
    parts = make_partition(labels, [str(c) for c in range(10)], settings, seed=3)
    sizes = np.array([len(a) + len(b) for a, b in zip(parts.train, parts.test, strict=True)])
    assert sizes.sum() == 50_000
    assert sizes.max() > 5 * sizes.min()
    large = parts.counts[sizes > 1000]
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.1).max() < 0.04


def test_labels_and_sizes_have_a_number_each() -> None:
    """Of s ~ Dirichlet(a·1_K) the variance is (K − 1)/(K²(Ka + 1)); mixes are as skewed as alpha says."""
    labels, names = np.arange(40_000) % 10, [str(c) for c in range(10)]

    def spread(size_alpha: float, alpha: float) -> tuple[float, float]:
        settings = DataSettings(clients=20, alpha=alpha, size_alpha=size_alpha, min_size=1, test_fraction=0.0)
        made = [make_partition(labels, names, settings, seed) for seed in range(12)]
        assert all(partition.counts.sum() == 40_000 for partition in made)
        sizes = np.stack([partition.counts.sum(axis=1) / 40_000 for partition in made])
        mixes = np.concatenate([p.counts / p.counts.sum(axis=1, keepdims=True) for p in made])
        return float(sizes.var()), float(mixes.max(axis=1).mean())

    for size_alpha in (1.0, 10.0):
        assert spread(size_alpha, 1.0)[0] == pytest.approx(19 / (400 * (20 * size_alpha + 1)), rel=0.35)
    assert spread(10.0, 0.1)[1] > spread(10.0, 1.0)[1] > spread(10.0, 100.0)[1]
