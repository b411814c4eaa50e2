"""SGD with momentum: torch's own fused step.

It is called as a function because the first use of the class ``torch.optim.SGD`` imports all of torch's compiler, five
seconds that every run and every worker would pay.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.sgd import sgd


class SGD:
    """Minimises over ``tensors``: g ← ∇ + weight_decay·w, m ← momentum·m + g (m = g at first), w ← w − lr·m."""

    def __init__(self, tensors: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        self.tensors = list(tensors)
        self.momenta: list[Tensor | None] = [None] * len(self.tensors)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for tensor in self.tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every tensor that has a gradient."""
        moved = [i for i, tensor in enumerate(self.tensors) if tensor.grad is not None]
        begun = [i for i in moved if self.momenta[i] is not None]
        new = [i for i in moved if self.momenta[i] is None]
        for places in (begun, new):  # a step takes tensors with a momentum, or without
            if places:
                self._step(places)

    def _step(self, places: list[int]) -> None:
        tensors = [self.tensors[i] for i in places]
        momenta = [self.momenta[i] for i in places]
        sgd(
            tensors,
            [tensor.grad for tensor in tensors if tensor.grad is not None],
            momenta,
            fused=tensors[0].device.type in ("cpu", "cuda"),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for i, momentum in zip(places, momenta, strict=True):
            self.momenta[i] = momentum
