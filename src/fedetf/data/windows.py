"""Windows of recordings: whoever gets a recording gets all windows of it, so that no two splits share one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedetf.data.partition import Partition, altered, deal_samples, split_as
from fedetf.data.samples import Dataset, Samples
from fedetf.settings import DataSettings


def deal_out(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Who holds what of a dataset: its sites, if it has such, or what ``settings`` say."""
    if dataset.train.groups is None:
        return deal_samples(dataset, settings, seed)
    whole, member = first_windows(dataset.train)
    plain = settings.model_copy(update={"shift": "none", "label_noise": 0.0})  # these are for the windows
    dealt = deal_samples(replace(dataset, train=whole), plain, seed)
    return altered(with_all_windows(dealt, dataset.train, member), dataset, settings, seed)


def split_given(
    samples: Samples, parts: Sequence[NDArray[np.int64]], settings: DataSettings, classes: list[str], seed: int
) -> Partition:
    """Split each client's samples, where it is given who holds what."""
    if samples.groups is None:
        return split_as(settings, parts, samples.y.numpy(), classes, seed)
    whole, member = first_windows(samples)
    of_recordings = [np.unique(member[part]) for part in parts]
    return with_all_windows(split_as(settings, of_recordings, whole.y.numpy(), classes, seed), samples, member)


def first_windows(samples: Samples) -> tuple[Samples, NDArray[np.int64]]:
    """One sample for each recording, and for each window the number of its recording."""
    assert samples.groups is not None
    _, first, member = np.unique(samples.groups, return_index=True, return_inverse=True)
    return replace(samples.take(torch.from_numpy(first)), groups=None), member.astype(np.int64)


def with_all_windows(partition: Partition, samples: Samples, member: NDArray[np.int64]) -> Partition:
    """A partition of recordings as one of their windows."""

    def windows(parts: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        return [np.flatnonzero(np.isin(member, part)) for part in parts]

    train, labels = windows(partition.train), samples.y.numpy()
    counts = np.stack([np.bincount(labels[part], minlength=len(partition.classes)) for part in train])
    test, validation = windows(partition.test), windows(partition.validation)
    return replace(partition, train=train, test=test, validation=validation, counts=counts)
