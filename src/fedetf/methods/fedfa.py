"""FedFA, with feature anchors."""

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.forms import Vector
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.methods.base import Method, Scope
from fedetf.nn.heads import AnchoredHead, Net, unit
from fedetf.rng import global_stream, torch_stream
from fedetf.settings import NonNegative


class FedFA(Method):
    """Features are drawn to shared anchors, one for each class, on which every client's head trains as well.

    The authors' code takes a step of Adam on the anchors after each batch; here that loss is added to the other. It
    takes class means while it trains; here they are taken afterwards.
    """

    name: ClassVar = "fedfa"
    summary: ClassVar = "features drawn to shared anchors, which train the classifier too"
    citation: ClassVar = "Zhou et al., IEEE TMC 2023"
    family: ClassVar = "features"
    extra_passes: ClassVar = 1.0
    uploads: ClassVar = {"anchors": Vector(("classes", "features"))}

    lam: NonNegative = Field(0.1, description="strength of the pull to the anchors")  # λ and μ: the authors' code
    calibration: NonNegative = Field(1.0, description="weight of the classifier's loss on the anchors")
    mu: float = Field(0.5, ge=0, le=1, description="how much of the old anchors stays each epoch")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """A linear head that carries the anchors."""
        with global_stream(seed, "init-head"):
            head = AnchoredHead(features, classes)
        head.prototypes.copy_(first_anchors(classes, features, torch_stream(seed, "init-anchors")))
        head.known.fill_(True)
        return Net(encoder, head)

    def scope(self, name: str) -> Scope:
        """Anchors come from the server, and go back under another name; all are known from the start."""
        return {"head.prototypes": Scope.RECEIVED, "head.known": Scope.FIXED}.get(name, Scope.SHARED)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + λ·pull + the mean cross entropy of the head on all anchors."""
        head = client.net.head
        assert isinstance(head, AnchoredHead)
        loss = super().loss(client, batch)
        if self.lam:
            loss = loss + self.lam * pull(batch.h, batch.y, head.prototypes)
        if self.calibration:
            labels = torch.arange(len(head.prototypes), device=batch.y.device)
            loss = loss + self.calibration * F.cross_entropy(head(head.prototypes), labels)
        return loss

    def upload(self, client: Client) -> State:
        """The model, and the client's anchors: μ^E A_c + (1 − μ^E) m_c, m_c its class mean; A_c of absent classes."""
        anchors, stays = client.received["head.prototypes"].clone(), self.mu**client.epochs
        for c, h in client.class_features():
            anchors[c] = stays * anchors[c] + (1 - stays) * h.mean(dim=0)
        return {**super().upload(client), "anchors": anchors}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """Anchors are combined like the model: who lacks a class votes for its old anchor."""
        combined = server.combine(uploads, beside=["anchors"])
        if combined:
            server.state["head.prototypes"] = combined.pop("anchors")
        server.move_to(combined)


def first_anchors(classes: int, features: int, generator: torch.Generator) -> Tensor:
    """``[C, D]``: unit vectors, along axes drawn at random; with more classes than axes in any directions."""
    if classes <= features:
        return torch.eye(features)[torch.randperm(features, generator=generator)[:classes]]
    return unit(torch.randn(classes, features, generator=generator))


def pull(h: Tensor, y: Tensor, anchors: Tensor) -> Tensor:
    """(1/C) Σ_c mean over the batch's samples of class c of ‖h − A_c‖², from ``[B, D]``, ``[B]`` and ``[C, D]``."""
    counts = torch.bincount(y, minlength=len(anchors))
    return ((h - anchors[y]).square().sum(dim=1) / counts[y]).sum() / len(anchors)
