"""What a loss sees."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor


class Batch:
    """A batch of a client's training split, as a loss sees it.

    ``h`` are the features ``[B, D]`` that the net's encoder gives, ``y`` the labels ``[B]``, ``rows`` the positions of
    the samples in the training split ``[B]``, and ``x`` the inputs ``[B, ...]`` as the encoder sees them, augmented if
    the settings say so. ``x`` and ``h`` are made when they are asked for. ``features`` are those that are kept because
    the encoder is frozen, or the encoder itself.
    """

    def __init__(
        self,
        features: Tensor | Callable[[Tensor], Tensor],
        y: Tensor,
        rows: Tensor,
        inputs: Callable[[], Tensor],
    ):
        self.y, self.rows = y, rows
        self._features, self._inputs = features, inputs

    def __len__(self) -> int:
        return len(self.y)

    def part(self, which: slice) -> "Batch":
        """Some of its samples as a batch of their own, which is encoded by itself."""
        features = self._features[which] if isinstance(self._features, Tensor) else self._features
        return Batch(features, self.y[which], self.rows[which], lambda: self.x[which])

    @cached_property
    def h(self) -> Tensor:
        """The features ``[B, D]``."""
        if isinstance(self._features, Tensor):
            return self._features
        with torch.enable_grad():
            return self._features(self.x)

    @cached_property
    def x(self) -> Tensor:
        """The inputs ``[B, ...]``."""
        return self._inputs()
