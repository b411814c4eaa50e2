"""Preparation fitted to what the clients train on: the same sums, whether they are simulated or real."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from pydantic import ValidationError

from fedetf.data.kinds import KINDS, Note, Sums
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
    return replace(dataset, test=dataset.train.take(torch.from_numpy(held_out)), by_clients=False)


def fitted(dataset: Dataset, partition: Partition, settings: DataSettings) -> Dataset:
    """The dataset prepared by the statistics of all clients that train."""
    if dataset.note is None:
        return dataset
    parts = [torch.from_numpy(partition.train[k]) for k in partition.seen]
    told = [dataset.note.sums(dataset.train.x[part]) for part in parts]
    return recoded(dataset, fit(told, settings))


def fit(told: Sequence[Sums], settings: DataSettings) -> Note:
    """The note that follows from what clients tell."""
    kinds = sorted({part.kind for part in told})
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise UserError(f"the sites hold data of different kinds: {', '.join(kinds)}; name one in data.kind")
    try:
        return KINDS[kinds[0]].fit(told, settings)
    except ValidationError as error:  # too many columns or channels, or too few: each site may tell what it likes
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"what the sites tell of their data does not make a {kinds[0]} ({place}); check it") from None


def recoded(dataset: Dataset, note: Note) -> Dataset:
    """The dataset with the raw inputs of a note that was fitted to it and others."""
    assert dataset.note is not None
    train, test = (
        replace(samples, x=dataset.note.recoded(samples.x, note)) for samples in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test, note=note)
