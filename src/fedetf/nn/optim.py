"""Local optimisers: torch's own fused steps.

They are called as functions because the first use of a class such as ``torch.optim.SGD`` imports all of torch's
compiler, five seconds that every run and every worker would pay.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedetf.core.state import State

Name = Literal["sgd", "adam", "adamw"]


class Optimiser(ABC):
    """Minimises over ``tensors``. ``memory`` has what it remembers of each from step to step, by slot."""

    slots: tuple[str, ...]

    def __init__(self, tensors: Iterable[Tensor], lr: float, weight_decay: float = 0.0):
        self.tensors = list(tensors)
        self.lr, self.weight_decay = lr, weight_decay
        self.memory: dict[str, list[Tensor | None]] = {slot: [None] * len(self.tensors) for slot in self.slots}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for tensor in self.tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every tensor that has a gradient."""
        moved = [i for i, tensor in enumerate(self.tensors) if tensor.grad is not None]
        remembered = self.memory[self.slots[0]]
        begun = [i for i in moved if remembered[i] is not None]
        new = [i for i in moved if remembered[i] is None]
        for places in (begun, new):  # torch's step takes tensors with a memory, or without
            if places:
                tensors = [self.tensors[i] for i in places]
                self._step(places, tensors, [tensor.grad for tensor in tensors if tensor.grad is not None])

    @abstractmethod
    def _step(self, places: list[int], tensors: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the tensors in these places."""


class SGD(Optimiser):
    """g ← ∇ + weight_decay·w, m ← momentum·m + g (m = g at first), w ← w − lr·m."""

    slots = ("momentum",)

    def __init__(self, tensors: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        super().__init__(tensors, lr, weight_decay)
        self.momentum = momentum

    def _step(self, places: list[int], tensors: list[Tensor], gradients: list[Tensor]) -> None:
        momenta = [self.memory["momentum"][i] for i in places]
        sgd(
            tensors,
            gradients,
            momenta,
            fused=_fused(tensors),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for i, momentum in zip(places, momenta, strict=True):
            self.memory["momentum"][i] = momentum


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015) with torch's β and ε; ``decoupled`` keeps weight decay out of the gradient (AdamW)."""

    slots = ("mean", "square", "steps")

    def __init__(self, tensors: Iterable[Tensor], lr: float, weight_decay: float = 0.0, decoupled: bool = False):
        super().__init__(tensors, lr, weight_decay)
        self._function = adamw if decoupled else adam

    def _step(self, places: list[int], tensors: list[Tensor], gradients: list[Tensor]) -> None:
        for slot in self.slots:
            for i, tensor in zip(places, tensors, strict=True):
                if self.memory[slot][i] is None:
                    start = torch.zeros((), device=tensor.device) if slot == "steps" else torch.zeros_like(tensor)
                    self.memory[slot][i] = start
        known = ([self.memory[slot][i] for i in places] for slot in self.slots)
        means, squares, steps = ([tensor for tensor in slot if tensor is not None] for slot in known)
        self._function(
            tensors,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=_fused(tensors),
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


def make_optimiser(name: Name, tensors: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> Optimiser:
    """The optimiser of ``train.optimiser``; momentum is SGD's."""
    if name == "sgd":
        return SGD(tensors, lr, momentum, weight_decay)
    return Adam(tensors, lr, weight_decay, decoupled=name == "adamw")


@contextmanager
def uphill(tensors: Iterable[Tensor], buffers: Iterable[Tensor], rho: float) -> Iterator[None]:
    """Within the block the tensors stand at the worst point nearby, w + ρ g/‖g‖ (SAM, Foret et al. 2021).

    g are the gradients that they have, and the norm is over all of them together. Whoever takes gradients in the block
    steps by them from w, where the tensors are back afterwards to the bit. So are the buffers: BatchNorm's statistics
    are those of the pass at w.
    """
    moved = [tensor for tensor in tensors if tensor.grad is not None]
    gradients = [tensor.grad.detach() for tensor in moved if tensor.grad is not None]
    before = [(tensor, tensor.detach().clone()) for tensor in (*moved, *buffers)]
    if gradients:
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        with torch.no_grad():
            for tensor, g in zip(moved, gradients, strict=True):
                tensor.add_(rho / (length + 1e-12) * g)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)


def remember(optimiser: Optimiser, names: Mapping[int, str], memory: State) -> None:
    """Begin with what ``memory`` holds; ``names`` has the name of each tensor, by its id."""
    for slot, kept in optimiser.memory.items():
        for i, tensor in enumerate(optimiser.tensors):
            before = memory.get(f"{slot}.{names[id(tensor)]}")
            if before is not None:
                pattern = tensor if before.shape == tensor.shape else before
                kept[i] = torch.empty_like(pattern, device=tensor.device).copy_(before)


def memorise(optimiser: Optimiser, names: Mapping[int, str], memory: State) -> None:
    """Put what the optimiser remembers into ``memory``, for :func:`remember`."""
    for slot, kept in optimiser.memory.items():
        for tensor, value in zip(optimiser.tensors, kept, strict=True):
            if value is not None:
                memory[f"{slot}.{names[id(tensor)]}"] = value


def _fused(tensors: list[Tensor]) -> bool:
    return tensors[0].device.type in ("cpu", "cuda")
