"""Who holds what: the paper's Dirichlet split, an even one, one by classes, or a plug-in; then 70/30 on each client.

Of the 70, ``data.validation_fraction`` can be held out once more, to choose settings by.

A partition is a function ``deal(labels, settings, rng)`` that gives each client its samples. Whichever it is, a draw
that leaves a client with fewer than ``data.min_size`` of them is drawn again, and in the end repaired.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedetf.config import validated
from fedetf.data.samples import Dataset
from fedetf.errors import UserError
from fedetf.own_code import guarded
from fedetf.plugins import Registry
from fedetf.rng import derive, numpy_stream
from fedetf.settings import DataSettings, Settings

Indices = NDArray[np.int64]
# A partition: from ``[N]`` labels to the indices of each client's samples; it draws from the generator alone. Only
# ``_draw`` reads what it gives, and only ``Partition`` carries it on: more than indices would be added in these two.
Deal = Callable[[Indices, DataSettings, np.random.RandomState], list[Indices]]
REDRAWS = 100
LEAST_TO_VALIDATE = 10  # a client that trains on fewer samples spares none
NOBODY = -1  # the owner of a sample that a partition leaves out


@dataclass(frozen=True)
class Partition:
    """Which samples of the training set each client trains on, which it tests its personal model on, which neither."""

    train: list[Indices]
    test: list[Indices]
    counts: NDArray[np.int64]  # n_{k,c} of the training splits, [clients, classes]
    classes: list[str]
    draws: int = 1
    repaired: list[int] = field(default_factory=list)  # clients that were given samples of the largest ones
    sites: list[str] = field(default_factory=list)  # the clients' names, where the data has such
    elsewhere: bool = False  # the data is with its owners: nothing but the names is known here
    validation: list[Indices] = field(default_factory=list)  # held out of the training splits; empty if none are

    @classmethod
    def of_sites(cls, sites: list[str], classes: list[str]) -> Partition:
        """What a server knows of the data of its sites: whose they are."""
        nothing = [np.empty(0, np.int64)] * len(sites)
        counts = np.zeros((len(sites), len(classes)), np.int64)
        return cls(nothing, nothing, counts, classes, sites=sites, elsewhere=True)

    def __len__(self) -> int:
        return len(self.train)

    @property
    def holders(self) -> int:
        """How many clients have something to train on; a site that has not does not join."""
        return len(self) if self.elsewhere else sum(len(part) > 0 for part in self.train)

    @property
    def single_class(self) -> int:
        """How many clients hold one class only; their personal accuracy is near 1 whatever the method."""
        return int(((self.counts > 0).sum(axis=1) == 1).sum())

    def held_out(self, client: int) -> Indices:
        """The samples that a client holds out of its training split to validate."""
        return self.validation[client] if self.validation else np.empty(0, np.int64)

    def to_json(self) -> str:
        """The partition as JSON: per client the class counts and the indices into the training set."""
        splits = {
            "train": self.train,
            "test": self.test,
            **({"validation": self.validation} if self.validation else {}),
        }
        clients = [
            {
                "client": k,
                "counts": self.counts[k].tolist(),
                **{name: split[k].tolist() for name, split in splits.items()},
            }
            for k in range(len(self))
        ]
        head: dict[str, Any] = {"classes": self.classes, "draws": self.draws, "repaired": self.repaired}
        if self.sites:
            head["sites"] = self.sites
        if self.elsewhere:
            head["elsewhere"] = True
        return json.dumps({**head, "clients": clients})

    def name(self, client: int) -> str:
        """What a client is called: its site, or its number."""
        return self.sites[client] if self.sites else str(client)


def deal_out(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Who holds what of a dataset: its sites, if it has such, or what ``settings`` say."""
    labels, sites = dataset.train.y.numpy(), dataset.train.sites
    if sites is None:
        return make_partition(labels, dataset.classes, settings, seed)
    names, owner = np.unique(sites, return_inverse=True)
    parts = _parts(owner.astype(np.int64), len(names))
    return replace(split_as(settings, parts, labels, dataset.classes, seed), sites=names.tolist())


def make_partition(labels: Indices, classes: list[str], settings: DataSettings, seed: int) -> Partition:
    """Deal the training set out as ``settings`` say and split each client's share into train and test."""
    if settings.partition == "given":
        raise UserError("data.partition = 'given' needs run(data=[...]) in Python; see: fedetf list partitions")
    drawn = _draw(labels, settings, seed)
    partition = split_as(settings, drawn.parts, labels, classes, seed)
    return replace(partition, draws=drawn.draws, repaired=drawn.repaired)


def split_as(
    settings: DataSettings, parts: Sequence[Indices], labels: Indices, classes: list[str], seed: int
) -> Partition:
    """Split each client's samples as ``settings`` say."""
    return split_parts(parts, labels, classes, settings.test_fraction, seed, settings.validation_fraction)


def split_parts(
    parts: Sequence[Indices],
    labels: Indices,
    classes: list[str],
    test_fraction: float,
    seed: int,
    validation_fraction: float = 0.0,
) -> Partition:
    """Shuffle each client's samples; the first floor(test_fraction·n) are its test split, the rest it trains on.

    Of the m that it would train on, floor(validation_fraction·m) are held out by a draw of its own, at least one; none
    if m < 10. So the test splits are the same whatever is held out to validate.
    """
    train, test = [], []
    for k, part in enumerate(parts):
        shuffled = numpy_stream(seed, "split", k).permutation(part)
        n_test = int(test_fraction * len(part) + 1e-9)
        test.append(np.sort(shuffled[:n_test]))
        train.append(np.sort(shuffled[n_test:]))
    validation = []
    if validation_fraction:
        validation = [_held_out(part, validation_fraction, seed, k) for k, part in enumerate(train)]
        train = [np.setdiff1d(part, out, assume_unique=True) for part, out in zip(train, validation, strict=True)]
    counts = np.stack([np.bincount(labels[part], minlength=len(classes)) for part in train])
    return Partition(train, test, counts, classes, validation=validation)


def _held_out(part: Indices, fraction: float, seed: int, client: int) -> Indices:
    """What a client's training split loses to validation."""
    number = max(1, int(fraction * len(part) + 1e-9)) if len(part) >= LEAST_TO_VALIDATE else 0
    return np.sort(numpy_stream(seed, "validation", client).permutation(part)[:number])


def dirichlet_partition(
    labels: Sequence[Any] | NDArray[Any],
    clients: int,
    alpha: float,
    seed: int = 0,
    min_size: int = 4,
    strict: bool = False,
) -> list[Indices]:
    """The paper's Non-IID split: for each class, a Dirichlet(α) draw says how much of it each client gets.

    Class mixes differ from client to client, and so do sizes. A draw that leaves a client with fewer than ``min_size``
    samples is drawn again, at most 100 times; then samples are moved from the largest clients, with a warning, or an
    error if ``strict``.

    Parameters
    ----------
    labels:
        ``[N]``, the class of each sample.
    clients:
        K.
    alpha:
        The concentration, > 0; smaller is more skewed.

    Returns
    -------
    K sorted index arrays; every sample is in exactly one.

    Examples
    --------
    >>> parts = dirichlet_partition([0, 1] * 50, clients=4, alpha=0.5, seed=1)
    >>> sum(len(part) for part in parts)
    100
    """
    given = {"clients": clients, "alpha": alpha, "min_size": min_size, "strict": strict}
    return _parts_of(labels, given, seed)


def iid_partition(labels: Sequence[Any] | NDArray[Any], clients: int, seed: int = 0) -> list[Indices]:
    """An even random split of ``[N]`` labels into K index arrays whose sizes differ by at most one."""
    return _parts_of(labels, {"clients": clients, "partition": "iid", "min_size": 1}, seed)


def shard_partition(labels: Sequence[Any] | NDArray[Any], clients: int, shards: int, seed: int = 0) -> list[Indices]:
    """Give each of K clients ``shards`` classes; a class is shared evenly by the clients that hold it."""
    return _parts_of(labels, {"clients": clients, "partition": "shards", "shards": shards, "min_size": 1}, seed)


def _parts_of(labels: Sequence[Any] | NDArray[Any], given: dict[str, Any], seed: int) -> list[Indices]:
    """Check what a caller of the public functions gave, and draw; labels may be of any kind that can be sorted."""
    checked = validated(Settings, {"seed": seed, "data": given})
    if np.ndim(labels) != 1:
        raise UserError(f"labels have shape {np.shape(labels)}; expected [n], one class for each sample")
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    return _draw(classes.astype(np.int64), checked.data, checked.seed).parts


# --- the ways to share, each (labels, settings, RandomState) -> the samples of each client ----------------------------


def dirichlet(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """Of each class, clients get shares that are drawn from Dirichlet(data.alpha) (paper)."""
    return _parts(_by_dirichlet(_by_class(labels), settings.clients, settings.alpha, rng), settings.clients)


def iid(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """An even random split."""
    return _parts(rng.permutation(np.arange(len(labels)) % settings.clients), settings.clients)


def shards(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """Each client holds data.shards classes."""
    return _parts(_by_shards(_by_class(labels), settings.clients, settings.shards, rng), settings.clients)


def _by_class(labels: Indices) -> list[Indices]:
    return [np.flatnonzero(labels == c) for c in np.unique(labels)]


def _by_dirichlet(by_class: list[Indices], K: int, alpha: float, rng: np.random.RandomState) -> Indices:
    """Per class p ~ Dirichlet(α·1_K); client k gets round(p_k·N_c) samples, the last one what remains.

    The order of the draws is the authors', so that the same seed gives the client sizes of their runs.
    """
    shuffled = [rng.permutation(indices) for indices in by_class]
    shares = rng.dirichlet([alpha] * K, size=len(by_class))
    owner = np.empty(sum(map(len, by_class)), dtype=np.int64)
    for indices, p in zip(shuffled, shares, strict=True):
        if not np.isfinite(p).all():  # α so small that every gamma draw underflowed: one client gets the class
            p = np.eye(K)[rng.randint(K)]
        ends = np.minimum(np.round(p * len(indices)).astype(np.int64).cumsum(), len(indices))
        ends[-1] = len(indices)
        owner[indices] = np.repeat(np.arange(K), np.diff(ends, prepend=0))
    return owner


def _by_shards(by_class: list[Indices], K: int, shards: int, rng: np.random.RandomState) -> Indices:
    """Each client takes the ``shards`` classes that the fewest clients hold so far, ties broken at random."""
    C = len(by_class)
    if shards > C:
        raise UserError(f"data.shards = {shards} classes per client, but there are only {C} classes")
    if K * shards < C:
        raise UserError(f"{K} clients with {shards} classes each cannot hold {C} classes; raise data.shards")
    holders: list[list[int]] = [[] for _ in range(C)]
    for k in rng.permutation(K).tolist():
        order = np.lexsort((rng.rand(C), np.array([len(held) for held in holders])))
        for c in order[:shards]:
            holders[c].append(k)
    owner = np.empty(sum(map(len, by_class)), dtype=np.int64)
    for indices, held in zip(by_class, holders, strict=True):
        for k, part in zip(held, np.array_split(rng.permutation(indices), len(held)), strict=True):
            owner[part] = k
    return owner


# --- partitions by name ---------------------------------------------------------------------------------------------


def _plugin(found: Any, name: str) -> Deal:
    """A package's or the user's own way to share: its errors are one line, and what it gives is checked."""
    if not callable(found):
        raise UserError(f"{name} is not a function that deals samples out; see docs/guides/plugins.md")

    def deal(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
        given = guarded(lambda: [np.asarray(part) for part in found(labels, settings, rng)], f"{name} failed")
        if len(given) != settings.clients:
            raise UserError(f"{name} gives {len(given)} parts for {settings.clients} clients; give one for each")
        if any(part.ndim != 1 or (len(part) and part.dtype.kind not in "iu") for part in given):
            raise UserError(f"{name} gives parts that are not lists of whole numbers; give indices of samples")
        parts = [np.sort(part).astype(np.int64) for part in given]
        dealt = np.concatenate(parts)
        if len(dealt) and not 0 <= dealt.min() <= dealt.max() < len(labels):
            raise UserError(f"{name} gives samples that do not exist; indices go from 0 to {len(labels) - 1}")
        if len(np.unique(dealt)) < len(dealt):
            raise UserError(f"{name} gives a sample twice; a sample belongs to one client at most")
        return parts

    deal.__doc__ = found.__doc__
    return deal


_ALL = (dirichlet, iid, shards)
_PARTITIONS: dict[str, Deal] = {deal.__name__: deal for deal in _ALL}
registry = Registry("partition", "fedetf.partitions", "data.partition =", _PARTITIONS, _plugin)


def check_partition(settings: DataSettings) -> None:
    """Raise UserError if there is no such partition, or its code cannot be imported."""
    if settings.partition != "given" and settings.site_column is None:
        registry.find(settings.partition)


# --- bounded redraws and the repair ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Drawn:
    parts: list[Indices]
    draws: int
    repaired: list[int]


def _draw(labels: Indices, settings: DataSettings, seed: int) -> _Drawn:
    K, min_size, name = settings.clients, settings.min_size, settings.describe()
    if K * min_size > len(labels):
        raise UserError(
            f"{len(labels)} samples cannot give {K} clients {min_size} each; lower --clients or data.min_size"
        )
    deal = registry.find(settings.partition)
    smallest = 0
    for draw in range(REDRAWS + 1):
        # The first draw takes the plain seed, as the authors did; see _by_dirichlet.
        rng = np.random.RandomState(seed if draw == 0 else derive(seed, "partition", draw) % 2**32)
        parts = deal(labels, settings, rng)
        sizes = np.array([len(part) for part in parts])
        if sizes.min() >= min_size:
            return _Drawn(parts, draw + 1, [])
        smallest = max(smallest, int(sizes.min()))
    if settings.strict:
        raise UserError(
            f"no draw of {REDRAWS + 1} with {name}, {K} clients and {len(np.unique(labels))} classes gave every client "
            f"{min_size} samples (at best {smallest}); change them or the seed, or leave data.strict off"
        )
    small = np.flatnonzero(sizes < min_size).tolist()
    owner = np.full(len(labels), NOBODY)
    for k, part in enumerate(parts):
        owner[part] = k
    _repair(owner, sizes, min_size, rng)
    warnings.warn(
        f"after {REDRAWS} redraws with {name}, {len(small)} of {K} clients still had fewer than {min_size} samples; "
        "they were given some of the largest clients' (recorded in partition.json)",
        stacklevel=2,
    )
    return _Drawn(_parts(owner, K), REDRAWS + 1, small)


def _repair(owner: Indices, sizes: Indices, min_size: int, rng: np.random.RandomState) -> None:
    """Move samples one by one from the client that is largest at that moment to those that lack them, in place."""
    for k in np.flatnonzero(sizes < min_size):
        while sizes[k] < min_size:
            largest = int(sizes.argmax())
            owner[rng.choice(np.flatnonzero(owner == largest))] = k
            sizes[largest] -= 1
            sizes[k] += 1


def _parts(owner: Indices, K: int) -> list[Indices]:
    """The samples of each of K owners, in order; those of nobody are left out."""
    order = np.argsort(owner, kind="stable")
    ends = np.bincount(owner - NOBODY, minlength=K + 1).cumsum()
    return np.split(order, ends[:-1])[1:]
