"""FedFM."""

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.forms import Rows, class_means
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.methods.base import Method, Scope
from fedetf.nn.heads import AnchoredHead, Net, unit
from fedetf.ranges import Range
from fedetf.rng import global_stream
from fedetf.settings import Count, NonNegative, Positive


class FedFM(Method):
    """Class means that all share are anchors in feature space: features are matched with the anchor of their class.

    A client takes its class means with the model that it receives, before it trains. The authors' clients take them in
    a second exchange with the new model; here anchors are a round old instead.
    """

    name: ClassVar = "fedfm"
    summary: ClassVar = "features matched with shared anchors, one for each class"
    citation: ClassVar = "Ye et al., IEEE TSP 2023"
    family: ClassVar = "features"
    extra_passes: ClassVar = 1.0
    uploads: ClassVar = {"counts": Rows(torch.int64, 0), "means": Rows(torch.float32, 1)}

    lam: NonNegative = Field(50.0, description="strength of the matching")  # this and what follows: the authors' code
    temperature: Positive = Field(0.1, description="of the softmax over anchors")
    start: Annotated[Count, Range(1, 20)] = Field(20, description="the round from which features are matched")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """A linear head that carries the anchors which the client received."""
        with global_stream(seed, "init-head"):
            return Net(encoder, AnchoredHead(features, classes))

    def scope(self, name: str) -> Scope:
        """Anchors come from the server; what goes back are class means."""
        return Scope.RECEIVED if name in ("head.prototypes", "head.known") else Scope.SHARED

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + λ·matching, from the round ``start`` on."""
        loss = super().loss(client, batch)
        if self.lam == 0 or client.round < self.start:
            return loss
        head = client.net.head
        assert isinstance(head, AnchoredHead)
        return loss + self.lam * matching(batch.h, batch.y, head.prototypes, head.known, self.temperature)

    def upload(self, client: Client) -> State:
        """The model, and for each class that the client holds its mean feature by the received model."""
        per_class = [(c, len(h), h.mean(dim=0)) for c, h in client.class_features(client.received)] if self.lam else []
        return {**super().upload(client), **class_means(per_class)}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """FedAvg for the model; A_c is the mean over all samples of class c that participants hold, or stays."""
        anchors, known = server.state["head.prototypes"], server.state["head.known"]
        sums, samples = torch.zeros_like(anchors), anchors.new_zeros(len(anchors))

        def noting_means() -> Iterator[Upload]:
            for upload in uploads:
                if "classes" in upload.state:
                    classes, counts, means = (upload.state[name] for name in ("classes", "counts", "means"))
                    sums.index_add_(0, classes, counts[:, None] * means)
                    samples.index_add_(0, classes, counts.to(samples.dtype))
                yield upload

        super().aggregate(server, noting_means())
        has_samples = samples > 0
        anchors[has_samples] = sums[has_samples] / samples[has_samples, None]
        known |= has_samples


def matching(h: Tensor, y: Tensor, anchors: Tensor, known: Tensor, temperature: float) -> Tensor:
    """Cross entropy of cosines with the anchors over T, from features ``[B, D]`` and anchors ``[C, D]``.

    Only ``known`` anchors are in the softmax; a sample of a class without one adds 0 to the mean over the batch.
    """
    logits = (unit(h) @ unit(anchors).T / temperature).masked_fill(~known, float("-inf"))
    matched = known[y]
    return F.cross_entropy(logits[matched], y[matched], reduction="sum") / len(y)
