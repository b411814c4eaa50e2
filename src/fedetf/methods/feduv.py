"""FedUV."""

from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.methods.base import Method
from fedetf.ranges import Range
from fedetf.settings import NonNegative


class FedUV(Method):
    """Local training that looks as if the data were iid: probabilities vary within a batch, and features spread."""

    name: ClassVar = "feduv"
    summary: ClassVar = "probabilities that vary within a batch, features that spread"
    citation: ClassVar = "Son et al., CVPR 2024"
    family: ClassVar = "loss and logits"

    lam: Annotated[NonNegative | None, Range(0.1, 25.0)] = Field(
        None, description="strength of the variance term; left out: C/4"
    )
    mu: NonNegative = Field(0.5, description="strength of the uniformity term")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + λ L_V + μ L_U; a batch of one has neither term, and with λ = μ = 0 it is FedAvg to the bit."""
        logits = client.net.head(batch.h)
        loss = F.cross_entropy(logits, batch.y)
        lam = logits.shape[1] / 4 if self.lam is None else self.lam
        if lam and len(batch) > 1:
            loss = loss + lam * variance_lack(logits)
        if self.mu and len(batch) > 1:
            loss = loss + self.mu * closeness(batch.h)
        return loss


def variance_lack(logits: Tensor) -> Tensor:
    """L_V: how far the deviation of each class's probability over the batch is below 1/√C, that of one-hot rows."""
    deviations = logits.softmax(dim=1).std(dim=0)
    return F.relu(logits.shape[1] ** -0.5 - deviations).mean()


def closeness(h: Tensor) -> Tensor:
    """L_U: the mean over pairs of exp(−‖h_i − h_j‖²/σ), σ the median of the squared distances that are not 0.

    σ carries a gradient: L_U does not change when all features grow, and cannot be lowered by that.
    """
    squared = F.pdist(h).square()
    apart = squared[squared > 0]
    return (-squared / apart.median()).exp().mean() if len(apart) else h.new_zeros(())
