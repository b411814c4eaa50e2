"""FedRS."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.methods.base import Method


class FedRS(Method):
    """In training, the logits of classes that a client lacks are scaled down, so that it pushes them away less."""

    name: ClassVar = "fedrs"
    summary: ClassVar = "logits of classes that the client lacks are scaled down"
    citation: ClassVar = "Li and Zhan, KDD 2021"
    family: ClassVar = "loss and logits"

    alpha: float = Field(0.5, ge=0, le=1, description="factor on the logits of absent classes; 1 is FedAvg")
    graded: bool = Field(False, description="true: rare classes are scaled too, as in the authors' code")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE of s_c z_c; predictions are made from z. With α = 1 all s_c are 1, and it is FedAvg to the bit."""
        return F.cross_entropy(self.scales(client.counts) * client.net.head(batch.h), batch.y)

    def scales(self, counts: Tensor) -> Tensor:
        """s ``[C]``: 1 for a class that the client holds and α for others, or graded between them by n_c / max n."""
        share = counts / counts.max() if self.graded else (counts > 0).to(torch.float32)
        return self.alpha + (1 - self.alpha) * share
