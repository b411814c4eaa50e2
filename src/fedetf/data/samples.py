"""What a dataset is once it is loaded: tensors, and the names of the classes."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedetf.data.kinds.base import Note
from fedetf.errors import UserError


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of one split.

    ``x``: ``[N, channels, height, width]`` uint8 for images (they are normalised batch by batch), raw inputs of the
    dataset's note, or ``[N, ...]`` float32, which is used as it is. ``y``: ``[N]`` int64. ``sites``: the name of each
    sample's site, if that is known. ``groups``: which recording each sample is a window of, where they are windows.
    """

    x: Tensor
    y: Tensor
    sites: NDArray[np.str_] | None = None
    groups: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise UserError(f"{len(self.x)} inputs but {len(self.y)} labels: give one label for each input")

    def __len__(self) -> int:
        return len(self.y)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as arrays: they can be put into shared memory and be used from there, without a copy.

        A worker needs no sites and groups: the partition says who holds what.
        """
        last = self.x.ndim == 4 and self.x.is_contiguous(memory_format=torch.channels_last)
        x = self.x.permute(0, 2, 3, 1) if last else self.x.contiguous()
        return _from_arrays, (x.numpy(), self.y.numpy(), last)

    def take(self, indices: Tensor) -> "Samples":
        """The samples at ``indices``."""
        at = indices.numpy()
        sites, groups = (None if names is None else names[at] for names in (self.sites, self.groups))
        return Samples(self.x[indices], self.y[indices], sites, groups)


def _from_arrays(x: NDArray[Any], y: NDArray[np.int64], channels_last: bool) -> Samples:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to samples
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    return Samples(inputs.permute(0, 3, 1, 2) if channels_last else inputs, labels)


@dataclass(frozen=True)
class Dataset:
    """A training set that is dealt out to clients, a balanced test set for the global model, and the classes."""

    train: Samples
    test: Samples
    classes: list[str]
    share: bool = False  # what one party of a federation holds, which may be a single class
    note: Note | None = None  # how inputs are read and prepared; None: images, or numbers that are used as they are
    own: tuple[Note, ...] = ()  # data.fit = "own": how each client prepares its inputs, which are stored prepared
    held_out: str = "a test split of its own"  # where the test set comes from, for the model card
    by_clients: bool = False  # the test set is what clients hold out; until it is known, all samples stand in for it

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise UserError("the data has one class only; classification needs at least two")
        for split, samples in (("training", self.train), ("test", self.test)):
            if len(samples) == 0:
                raise UserError(f"the {split} set is empty")
            low, high = int(samples.y.min()), int(samples.y.max())
            if low < 0:
                raise UserError(f"the {split} set has samples without a label (label {low}); remove or label them")
            if high >= len(self.classes):
                raise UserError(f"the {split} set has label {high}, but there are {len(self.classes)} classes")
            if low == high and split == "training" and not self.share:
                raise UserError("the training set holds one class only; classification needs at least two")
        a, b = (f"{tuple(s.x.shape[1:])} {s.x.dtype}" for s in (self.train, self.test))
        if a != b:
            raise UserError(f"training inputs are {a}, test inputs {b}; make them agree (images: see data.size)")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width), or (length,) for plain vectors."""
        return tuple(self.train.x.shape[1:])
