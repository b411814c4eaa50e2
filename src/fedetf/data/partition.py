"""Who holds what: one of the ways of ``deals.py``, or the sites of the data; then 70/30 on each client.

Of the 70, ``data.validation_fraction`` can be held out once more, to choose settings by. A draw that leaves a client
with fewer than ``data.min_size`` samples is drawn again, and in the end repaired.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedetf.config import validated
from fedetf.data.deals import NOBODY, Indices, parts_of, registry
from fedetf.data.label_noise import noisy_clients, wrong_labels
from fedetf.data.samples import Dataset
from fedetf.data.shift import Shift, draw_shift, shifted
from fedetf.data.unseen import draw_unseen
from fedetf.errors import UserError
from fedetf.rng import derive, numpy_stream
from fedetf.settings import DataSettings, Settings

REDRAWS = 100
LEAST_TO_VALIDATE = 10  # a client that trains on fewer samples spares none


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
    unseen: list[int] = field(default_factory=list)  # clients that never train, ascending; see data/unseen.py
    shift: Shift | None = None  # what looks different at each client
    wrong: dict[int, Indices] = field(default_factory=dict)  # of noisy clients: [m, 2], samples and their wrong labels

    @classmethod
    def of_sites(cls, sites: list[str], classes: list[str], unseen: int = 0, seed: int = 0) -> Partition:
        """What a server knows of the data of its sites: whose they are, and which of them never train."""
        nothing = [np.empty(0, np.int64)] * len(sites)
        counts = np.zeros((len(sites), len(classes)), np.int64)
        never = draw_unseen(len(sites), unseen, seed)
        return cls(nothing, nothing, counts, classes, sites=sites, elsewhere=True, unseen=never)

    def __len__(self) -> int:
        return len(self.train)

    @property
    def seen(self) -> list[int]:
        """The clients that take part in rounds: all but the unseen ones."""
        never = set(self.unseen)
        return [client for client in range(len(self)) if client not in never]

    @property
    def holders(self) -> int:
        """How many of those have something to train on; a site that has not does not join."""
        return len(self.seen) if self.elsewhere else sum(len(self.train[client]) > 0 for client in self.seen)

    @property
    def single_class(self) -> int:
        """How many of those hold one class only; their personal accuracy is near 1 whatever the method."""
        return int(((self.counts[self.seen] > 0).sum(axis=1) == 1).sum())

    def pooled(self) -> tuple[Indices, Indices]:
        """All samples that are trained on, ascending, and their class counts."""
        return np.sort(np.concatenate([self.train[k] for k in self.seen])), self.counts[self.seen].sum(axis=0)

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
        if self.unseen:
            head["unseen"] = self.unseen
        if self.shift is not None:
            head["shift"] = {"kind": self.shift.kind, "amounts": self.shift.amounts}
        if self.wrong:
            head["wrong_labels"] = {k: pairs.tolist() for k, pairs in self.wrong.items()}
        return json.dumps({**head, "clients": clients})

    def everything(self, client: int) -> Indices:
        """All samples that a client holds, in whichever split."""
        return np.concatenate([self.train[client], self.test[client], self.held_out(client)])

    def name(self, client: int) -> str:
        """What a client is called: its site, or its number."""
        return self.sites[client] if self.sites else str(client)


def deal_samples(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Who holds what of a dataset whose samples stand for themselves; see :func:`fedetf.data.deal_out`."""
    labels, sites = dataset.train.y.numpy(), dataset.train.sites
    if sites is None:
        partition = make_partition(labels, dataset.classes, settings, seed)
    else:
        names, owner = np.unique(sites, return_inverse=True)
        parts = parts_of(owner.astype(np.int64), len(names))
        partition = replace(split_as(settings, parts, labels, dataset.classes, seed), sites=names.tolist())
    return altered(partition, dataset, settings, seed)


def altered(partition: Partition, dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """The partition with what ``data.shift`` and ``data.label_noise`` do to each client; :func:`as_seen` applies it."""
    if settings.shift != "none" and dataset.note is not None and dataset.note.kind == "text":
        raise UserError(f"data.shift = {settings.shift!r} is for images and numbers, not for texts; leave it out")
    shift = draw_shift(settings, len(partition), dataset.shape, seed)
    if not settings.label_noise:
        return replace(partition, shift=shift)
    labels, C = dataset.train.y.numpy(), len(dataset.classes)
    wrong = {}
    for k in noisy_clients(len(partition), settings.noisy_clients, seed):
        trained_on = np.concatenate([partition.train[k], partition.held_out(k)])
        wrong[k] = wrong_labels(labels, trained_on, C, settings.label_noise, seed, k)
    seen = _relabelled(labels, wrong)
    counts = np.stack([np.bincount(seen[part], minlength=C) for part in partition.train])
    return replace(partition, shift=shift, wrong=wrong, counts=counts)


def as_seen(dataset: Dataset, partition: Partition, seed: int) -> Dataset:
    """The dataset as the clients see it, with what is different at each of them."""
    if partition.shift is None and not partition.wrong:
        return dataset
    x, y = dataset.train.x, dataset.train.y
    if partition.shift is not None:
        looks = shifted(x, partition.shift, [partition.everything(k) for k in range(len(partition))], seed)
        x = looks if dataset.note is None else torch.where(dataset.note.numbers, looks, x)
    if partition.wrong:
        y = torch.from_numpy(_relabelled(y.numpy(), partition.wrong))
    return replace(dataset, train=replace(dataset.train, x=x, y=y))


def _relabelled(labels: Indices, wrong: dict[int, Indices]) -> Indices:
    changed = labels.copy()
    for pairs in wrong.values():
        changed[pairs[:, 0]] = pairs[:, 1]
    return changed


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
    """Split each client's samples as ``settings`` say, and draw those who never train."""
    partition = split_parts(parts, labels, classes, settings.test_fraction, seed, settings.validation_fraction)
    return replace(partition, unseen=draw_unseen(len(parts), settings.unseen, seed))


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
    return _drawn_parts(labels, given, seed)


def iid_partition(labels: Sequence[Any] | NDArray[Any], clients: int, seed: int = 0) -> list[Indices]:
    """An even random split of ``[N]`` labels into K index arrays whose sizes differ by at most one."""
    return _drawn_parts(labels, {"clients": clients, "partition": "iid", "min_size": 1}, seed)


def shard_partition(labels: Sequence[Any] | NDArray[Any], clients: int, shards: int, seed: int = 0) -> list[Indices]:
    """Give each of K clients ``shards`` classes; a class is shared evenly by the clients that hold it."""
    return _drawn_parts(labels, {"clients": clients, "partition": "shards", "shards": shards, "min_size": 1}, seed)


def _drawn_parts(labels: Sequence[Any] | NDArray[Any], given: dict[str, Any], seed: int) -> list[Indices]:
    """Check what a caller of the public functions gave, and draw; labels may be of any kind that can be sorted."""
    checked = validated(Settings, {"seed": seed, "data": given})
    if np.ndim(labels) != 1:
        raise UserError(f"labels have shape {np.shape(labels)}; expected [n], one class for each sample")
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    return _draw(classes.astype(np.int64), checked.data, checked.seed).parts


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
    return _Drawn(parts_of(owner, K), REDRAWS + 1, small)


def _repair(owner: Indices, sizes: Indices, min_size: int, rng: np.random.RandomState) -> None:
    """Move samples one by one from the client that is largest at that moment to those that lack them, in place."""
    for k in np.flatnonzero(sizes < min_size):
        while sizes[k] < min_size:
            largest = int(sizes.argmax())
            owner[rng.choice(np.flatnonzero(owner == largest))] = k
            sizes[largest] -= 1
            sizes[k] += 1
