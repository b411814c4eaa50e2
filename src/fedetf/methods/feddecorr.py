"""FedDecorr."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.methods.base import Method
from fedetf.settings import NonNegative


class FedDecorr(Method):
    """FedAvg with a penalty on correlated feature dimensions, which label skew makes collapse into few.

    The penalty is that of the authors' code, which the coefficient belongs to: (B−1)²/B times the mean squared
    correlation, B being the batch size.
    """

    name: ClassVar = "feddecorr"
    summary: ClassVar = "a penalty on correlated features"
    citation: ClassVar = "Shi et al., ICLR 2023"
    family: ClassVar = "loss and logits"

    coef: NonNegative = Field(0.1, description="strength of the penalty, which grows with the batch size")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Cross entropy and the penalty; with a strength of 0 it is FedAvg to the bit."""
        loss = super().loss(client, batch)
        return loss + self.coef * decorrelation(batch.h) if self.coef else loss


def decorrelation(h: Tensor) -> Tensor:
    """(1/B) mean over i ≠ j of (x_iᵀx_j)², x_i being the standardised columns of h ``[B, D]``; 0 if B or D is 1."""
    size, dims = h.shape
    if size == 1 or dims == 1:
        return h.new_zeros(())
    x = (h - h.mean(dim=0)) / (1e-8 + h.var(dim=0)).sqrt()
    pairs = (x.T @ x).triu(diagonal=1)
    return pairs.square().sum() * 2 / (dims * (dims - 1)) / size
