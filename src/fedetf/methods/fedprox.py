"""FedProx."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.methods.base import Method
from fedetf.nn.losses import squared_distance
from fedetf.ranges import Range
from fedetf.settings import NonNegative


class FedProx(Method):
    """FedAvg with a quadratic pull of the local model towards the received one: + (μ/2)‖w − wᵗ‖²."""

    name: ClassVar = "fedprox"
    summary: ClassVar = "FedAvg with a quadratic pull towards the received model"
    citation: ClassVar = "Li et al., MLSys 2020"
    family: ClassVar = "regularised"

    mu: Annotated[NonNegative, Range(0.0001, 1.0)] = Field(0.001, description="strength of the pull")  # appendix B

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Cross entropy and the proximal term; with μ = 0 it is FedAvg to the bit."""
        loss = super().loss(client, batch)
        if self.mu == 0:
            return loss
        return loss + self.mu / 2 * squared_distance(client.trained_tensors(), client.received)
