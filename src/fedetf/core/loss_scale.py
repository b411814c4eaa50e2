"""Gradients in float16, whose smallest numbers are not small enough for them."""

from collections.abc import Iterable

import torch
from torch import Tensor

FIRST = 2.0**16  # as in PyTorch's own; a client that finds it too large halves it


class LossScale:
    """Multiplies a loss before its gradients are taken, and divides these after (Micikevicius et al. 2018).

    A factor that makes them overflow is halved and they are taken again, so that no step is lost: a small client has
    few. Every client begins anew, whoever trained before it.
    """

    def __init__(self) -> None:
        self.factor = FIRST

    def backward(self, value: Tensor, tensors: Iterable[Tensor]) -> None:
        """Give ``tensors`` the gradients of the loss ``value``."""
        trained = list(tensors)
        while True:
            (value * self.factor).backward(retain_graph=self.factor > 1)
            gradients = [tensor.grad for tensor in trained if tensor.grad is not None]
            for gradient in gradients:
                gradient.div_(self.factor)
            lengths = [torch.linalg.vector_norm(gradient) for gradient in gradients]
            if self.factor <= 1 or not lengths or torch.stack(lengths).isfinite().all():
                return
            self.factor /= 2
            for tensor in trained:
                tensor.grad = None
