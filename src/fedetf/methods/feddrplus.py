"""FedDr+."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.errors import UserError
from fedetf.methods.base import Scope, check_trainable
from fedetf.methods.on_etf import OnETF
from fedetf.nn.heads import ETFHead, Net
from fedetf.rng import derive


class FedDrPlus(OnETF):
    """Features are drawn onto their class's vector of a fixed ETF, and held near those of the received model."""

    name: ClassVar = "feddrplus"
    summary: ClassVar = "features regressed onto a fixed simplex ETF and held near the received model's"
    citation: ClassVar = "Kim et al., 2024"
    family: ClassVar = "fixed classifier"
    extra_passes: ClassVar = 1.0
    suggested_rate: ClassVar = 35.0

    beta: float = Field(0.9, ge=0, le=1, description="weight of the regression; the rest is the distillation's")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """Encoder u in front of V, which is in the space of the features themselves."""
        check_trainable(self, encoder)
        if features < max(2, classes - 1):
            raise UserError(
                f"feddrplus has no projection, so an ETF of {classes} classes needs features of length "
                f"{max(2, classes - 1)} or more, and the encoder's have {features}; choose a wider model, or fedetf"
            )
        head = ETFHead(features, classes, seed=derive(seed, "etf"), projection=False, learn_beta=False)
        return Net(encoder, head)

    def scope(self, name: str) -> Scope:
        """The head is a function of the seed; logits are cosines, β being 1."""
        return Scope.FIXED if name.startswith("head.") else Scope.SHARED

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """β ½(cos(h, v_y) − 1)² + (1−β) ‖h − hᵍ‖²/D, averaged over the batch; hᵍ are the received encoder's."""
        cosines: Tensor = client.net.head(batch.h).gather(1, batch.y[:, None])
        regression = (cosines - 1).square().mean() / 2
        if self.beta == 1:
            return regression
        apart = (batch.h - client.encode(client.received, batch)).square().mean()
        return self.beta * regression + (1 - self.beta) * apart
