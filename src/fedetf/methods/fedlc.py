"""FedLC."""

from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import widest
from fedetf.methods.base import Method
from fedetf.nn.losses import ZeroCount
from fedetf.settings import NonNegative


class FedLC(Method):
    """Each logit loses a margin in training, the larger the rarer its class is on the client.

    The loss is the cross entropy of these logits. The method's own paper prints it without the true class in the
    denominator, which has no lower bound.
    """

    name: ClassVar = "fedlc"
    summary: ClassVar = "logits less a margin that is larger for rarer classes of the client"
    citation: ClassVar = "Zhang et al., ICML 2022"
    family: ClassVar = "loss and logits"

    tau: NonNegative = Field(1.0, description="size of the margins; 0 is FedAvg")  # the paper gives none
    zero_count: ZeroCount = Field("mask", description="n of a class the client lacks: one, or mask (leave it out)")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE of z_c − τ n_{k,c}^(−1/4); predictions are made from z."""
        if self.tau == 0:
            return super().loss(client, batch)
        logits = client.net.head(batch.h)
        return F.cross_entropy(logits - self.margins(client.counts).to(logits.dtype), batch.y)

    def margins(self, counts: Tensor) -> Tensor:
        """τ n_c^(−1/4) for each class, ``[C]``; of a class that the client lacks ∞, or τ."""
        margins = self.tau * counts.clamp(min=1).to(widest(counts.device)).pow(-1 / 4)
        return margins if self.zero_count == "one" else margins.masked_fill(counts == 0, float("inf"))
