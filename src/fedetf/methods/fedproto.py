"""FedProto."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.forms import Rows
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.methods.base import Method, Scope
from fedetf.nn.heads import AnchoredHead, Net
from fedetf.rng import global_stream
from fedetf.settings import NonNegative


class FedProto(Method):
    """Clients keep their models and exchange class prototypes only; features are drawn towards the global ones.

    A global prototype is the plain mean over those who hold the class, as in the method's own code; the formula printed
    in its paper divides once more by their number.
    """

    name: ClassVar = "fedproto"
    summary: ClassVar = "only class prototypes travel; every client keeps its own model"
    citation: ClassVar = "Tan et al., AAAI 2022"
    family: ClassVar = "prototypes"
    extra_passes: ClassVar = 1.0
    has_global: ClassVar = False
    uploads: ClassVar = {"prototypes": Rows(torch.float32, 1)}

    lam: NonNegative = Field(0.1, description="strength of the pull to the global prototypes")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """A linear head that carries the prototypes which the client received."""
        with global_stream(seed, "init-head"):
            return Net(encoder, AnchoredHead(features, classes))

    def scope(self, name: str) -> Scope:
        """All is private but the prototypes, which come from the server."""
        return Scope.RECEIVED if name in ("head.prototypes", "head.known") else Scope.PRIVATE

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + λ·mean over batch and features of (h − C̄_y)²; a sample of an unknown class adds 0 to that mean."""
        head = client.net.head
        assert isinstance(head, AnchoredHead)
        apart = (batch.h - head.prototypes[batch.y]).square() * head.known[batch.y, None]
        loss = super().loss(client, batch)
        return loss + self.lam * apart.mean() if self.lam else loss

    def upload(self, client: Client) -> State:
        """The mean feature of each class that the client holds, in eval mode, after training."""
        per_class = [(c, h.mean(dim=0)) for c, h in client.class_features()]
        if not per_class:
            return {}
        classes = torch.tensor([c for c, _ in per_class], device=client.counts.device)
        return {"classes": classes, "prototypes": torch.stack([mean for _, mean in per_class])}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """C̄_c is the mean over this round's holders of c; where there are none it stays."""
        prototypes, known = server.state["head.prototypes"], server.state["head.known"]
        sums, holders = torch.zeros_like(prototypes), torch.zeros_like(known, dtype=prototypes.dtype)
        for upload in uploads:
            if upload.state:
                sums.index_add_(0, upload.state["classes"], upload.state["prototypes"])
                holders[upload.state["classes"]] += 1
        has_holders = holders > 0
        prototypes[has_holders] = sums[has_holders] / holders[has_holders, None]
        known |= has_holders
