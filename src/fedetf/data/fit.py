"""Preparation fitted to what the clients train on: the same sums, whether they are simulated or real."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedetf.data.kinds import KINDS, Note, Sums, making
from fedetf.data.partition import Partition
from fedetf.data.samples import Dataset
from fedetf.errors import UserError
from fedetf.settings import DataSettings


def tested(dataset: Dataset, partition: Partition) -> Dataset:
    """The dataset with its test set in place, where that is what the clients hold out."""
    if not dataset.by_clients:
        return dataset
    held_out = np.concatenate([np.empty(0, np.int64), *(partition.test[k] for k in partition.seen)])
    if not len(held_out):
        raise UserError("no site holds anything out, so there is nothing to test on; raise data.test_fraction")
    test = dataset.train.take(torch.from_numpy(held_out))
    sites = np.concatenate([np.full(len(partition.test[k]), partition.name(k)) for k in partition.seen])
    return replace(dataset, test=replace(test, sites=sites), by_clients=False)


def fitted(dataset: Dataset, partition: Partition, settings: DataSettings) -> Dataset:
    """The dataset prepared by the statistics of all clients that train, or each client's part by its own."""
    if dataset.note is None:
        return dataset
    if settings.fit == "own" and dataset.note.fitted:
        told = [told_by(dataset, partition, k) for k in range(len(partition))]
        layout = fit([told[k].bare() for k in partition.seen], settings)
        return prepared_by_own(dataset, layout, told, partition)
    return recoded(dataset, fit([told_by(dataset, partition, k) for k in partition.seen], settings))


def told_by(dataset: Dataset, partition: Partition, client: int) -> Sums:
    """The sums of a client's training split."""
    assert dataset.note is not None
    return dataset.note.sums(dataset.train.x[torch.from_numpy(partition.train[client])])


def prepared_by_own(dataset: Dataset, layout: Note, told: Sequence[Sums], partition: Partition) -> Dataset:
    """The dataset with the inputs of every client prepared by what it told, which nobody else need know.

    ``layout`` is what all agree on: columns and categories. A test sample is prepared by the site that it is from.
    """
    notes = tuple(layout.with_own(sums) for sums in told)
    raw, everyone = recoded(dataset, layout), range(len(partition))
    sites = raw.test.sites
    if sites is None:
        raise UserError("data.fit = 'own' prepares samples by their site, and the test set names none; leave it out")
    names = [partition.name(k) for k in everyone]
    if strangers := sorted(set(sites.tolist()) - set(names)):
        raise UserError(
            f"data.fit = 'own': nobody can prepare the test samples of {strangers[0]!r}, which never trains"
        )
    train = _prepared(raw.train.x, [partition.everything(k) for k in everyone], notes)
    test = _prepared(raw.test.x, [np.flatnonzero(sites == name) for name in names], notes)
    return replace(
        raw,
        train=replace(raw.train, x=train),
        test=replace(raw.test, x=test),
        note=layout.model_copy(update={"prepared": True}),
        own=notes,
    )


def _prepared(x: Tensor, parts: Sequence[NDArray[np.int64]], notes: Sequence[Note]) -> Tensor:
    """Raw inputs ``[n, …]`` as the encoder takes them, those of each part by its note; others stay zero."""
    done = torch.zeros(len(x), *notes[0].module()(x[:1]).shape[1:])
    for part, note in zip(parts, notes, strict=True):
        if len(part):
            done[torch.from_numpy(part)] = note.prepare(x[torch.from_numpy(part)])
    return done


def fit(told: Sequence[Sums], settings: DataSettings) -> Note:
    """The note that follows from what clients tell."""
    kinds = sorted({part.kind for part in told})
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise UserError(f"the sites hold data of different kinds: {', '.join(kinds)}; name one in data.kind")
    with making(kinds[0], "what the sites tell of their data"):  # each may tell what it likes
        return KINDS[kinds[0]].fit(told, settings)


def recoded(dataset: Dataset, note: Note) -> Dataset:
    """The dataset with the raw inputs of a note that was fitted to it and others, or that claims to be."""
    assert dataset.note is not None
    if type(note) is not type(dataset.note):
        raise UserError(f"the note on inputs is of a {note.kind}, but the data are of the kind {dataset.note.kind}")
    train, test = (
        replace(samples, x=dataset.note.recoded(samples.x, note)) for samples in (dataset.train, dataset.test)
    )
    if tuple(train.x.shape[1:]) != note.shape:
        raise UserError(f"the note on inputs is for the shape {note.shape}, but the data have {train.x.shape[1:]}")
    return replace(dataset, train=train, test=test, note=note)
