"""FedNTD."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.methods.base import Method
from fedetf.ranges import Range
from fedetf.settings import NonNegative, Positive


class FedNTD(Method):
    """Clients keep what the received model thinks of the wrong classes, and learn the true one from their data."""

    name: ClassVar = "fedntd"
    summary: ClassVar = "distils the received model's opinion of the classes that are not true"
    citation: ClassVar = "Lee et al., NeurIPS 2022"
    family: ClassVar = "loss and logits"
    extra_passes: ClassVar = 1.0

    beta: NonNegative = Field(1.0, description="strength of the distillation")
    tau: Annotated[Positive, Range(0.5, 5.0)] = Field(1.0, description="temperature of the distillation")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + β τ² KL(qᵍ ‖ qˡ); with β = 0, or two classes, it is FedAvg to the bit."""
        logits = client.net.head(batch.h)
        loss = F.cross_entropy(logits, batch.y)
        if self.beta == 0 or logits.shape[1] == 2:  # of one class that is not true there is nothing to say
            return loss
        w, h = client.received, client.encode(client.received, batch)
        taught = F.linear(h, w["head.weight"], w["head.bias"])
        return loss + self.beta * self.tau**2 * not_true_divergence(logits, taught, batch.y, self.tau)


def not_true_divergence(logits: Tensor, taught: Tensor, labels: Tensor, tau: float) -> Tensor:
    """KL(qᵍ ‖ qˡ), batch mean; q is the softmax of logits/τ ``[B, C]`` over the C−1 classes other than the label."""
    column = torch.arange(logits.shape[1] - 1, device=labels.device)
    others = column + (column >= labels[:, None])
    local, general = ((z.gather(1, others) / tau).log_softmax(dim=1) for z in (logits, taught))
    return F.kl_div(local, general, reduction="batchmean", log_target=True)
