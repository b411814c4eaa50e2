"""MOON."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import State, clone
from fedetf.methods.base import Method
from fedetf.nn.heads import Net, unit
from fedetf.settings import NonNegative, Positive


class MOON(Method):
    """Features are drawn to those of the received model and pushed from those of the client's last local model.

    Features are the encoder's own, as for the other methods; the authors' net has a projection behind the encoder.
    """

    name: ClassVar = "moon"
    summary: ClassVar = "features like the received model's, unlike those of the client's last one"
    citation: ClassVar = "Li et al., CVPR 2021"
    family: ClassVar = "features"
    extra_passes: ClassVar = 2.0

    mu: NonNegative = Field(1.0, description="strength of the contrast")  # the authors' default; 5 for CIFAR-10
    temperature: Positive = Field(0.5, description="of the contrast")

    def client_state(self, net: Net) -> State:
        """The encoder as it was after the client's last round, and whether there was one."""
        encoder = {f"last.{name}": t for name, t in net.state_dict().items() if name.startswith("encoder.")}
        return {**encoder, "has_last": torch.zeros((), dtype=torch.bool)}

    def local(self, client: Client) -> None:
        """Train with the contrast, from a client's second round on; then remember the encoder."""
        last = {name.removeprefix("last."): t for name, t in client.private.items() if name.startswith("last.")}
        contrasts = self.mu > 0 and bool(client.private["has_last"])
        client.train(partial(self.contrasting_loss, last) if contrasts else self.loss)
        trained = clone(client.net.state_dict())
        client.private.update({f"last.{name}": trained[name] for name in last})
        client.private["has_last"] = torch.ones_like(client.private["has_last"])

    def contrasting_loss(self, last: Mapping[str, Tensor], client: Client, batch: Batch) -> Tensor:
        """CE + μ·contrast."""
        received, before = client.encode(client.received, batch), client.encode(last, batch)
        return self.loss(client, batch) + self.mu * contrast(batch.h, received, before, self.temperature)


def contrast(h: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """−log( e^(cos(h, towards)/T) / (e^(cos(h, towards)/T) + e^(cos(h, away)/T)) ), mean over rows ``[B, D]``."""
    cosines = torch.stack([(unit(h) * unit(other)).sum(dim=1) for other in (towards, away)], dim=1)
    return F.cross_entropy(cosines / temperature, torch.zeros(len(h), dtype=torch.int64, device=h.device))
