"""What a dataset is once it is loaded: tensors, and the names of the classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedetf.errors import UserError


@dataclass(frozen=True)
class Samples:
    """Inputs and labels of one split.

    ``x``: ``[N, channels, height, width]`` uint8 for images (they are normalised batch by batch), or ``[N, ...]``
    float32, which is used as it is. ``y``: ``[N]`` int64.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise UserError(f"{len(self.x)} inputs but {len(self.y)} labels: give one label for each input")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Tensor) -> "Samples":
        """The samples at ``indices``."""
        return Samples(self.x[indices], self.y[indices])


@dataclass(frozen=True)
class Dataset:
    """A training set that is dealt out to clients, a balanced test set for the global model, and the classes."""

    train: Samples
    test: Samples
    classes: list[str]

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
        if len(torch.unique(self.train.y)) < 2:
            raise UserError("the training set holds one class only; classification needs at least two")
        a, b = (f"{tuple(s.x.shape[1:])} {s.x.dtype}" for s in (self.train, self.test))
        if a != b:
            raise UserError(f"training inputs are {a}, test inputs {b}; make them agree (images: see data.size)")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width), or (length,) for plain vectors."""
        return tuple(self.train.x.shape[1:])
