"""What a federated method is: a few hooks, whose defaults are FedAvg. Every method states only where it differs."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from fedetf.heads import Net
from fedetf.rng import global_stream
from fedetf.state import State, WeightedMean, clone, select

if TYPE_CHECKING:
    from fedetf.client import Client


class Scope(enum.Enum):
    """What becomes of a tensor of the net."""

    SHARED = "shared"  # travels: received before, sent after local training
    FIXED = "fixed"  # never sent: every party builds it from the seed


@dataclass
class Server:
    """What the server keeps between rounds."""

    shared: State
    round: int = 0


@dataclass
class Upload:
    """What one client sends after its local training."""

    client: int
    samples: int  # n_k, its weight in the average
    state: State
    loss: float  # mean training loss, for the record
    images: int  # how many it trained on, epochs counted, for the record


class Method(BaseModel):
    """FedAvg, and the base of every other method.

    A method's own numbers are its fields, so ``method.mu`` in the settings is checked against ``mu: float = 0.001`` in
    the class. An object holds nothing else: whatever changes lives with the server or the client.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """Put a head behind the encoder; ``features`` is the length of the encoder's output."""
        with global_stream(seed, "init-head"):
            return Net(encoder, nn.Linear(features, classes))

    def scope(self, name: str) -> Scope:  # noqa: ARG002 -- methods that override it look at the name
        """What becomes of the tensor ``name`` of the net's state dict."""
        return Scope.SHARED

    def loss(self, client: Client, h: Tensor, y: Tensor) -> Tensor:
        """The local loss of a batch from its features h ``[B, D]`` and labels y ``[B]``: cross entropy."""
        return F.cross_entropy(client.net.head(h), y)

    def local(self, client: Client) -> None:
        """One round of local training: E epochs of SGD on everything."""
        client.train(self.loss)

    def upload(self, client: Client) -> State:
        """What the client sends: the shared tensors."""
        state = client.net.state_dict()
        return clone(select(state, (name for name in state if self.scope(name) is Scope.SHARED)))

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """Fold the uploads into the server: the mean weighted by n_k (Eq. 2). With none, nothing changes."""
        mean = WeightedMean()
        for upload in uploads:
            mean.add(upload.state, upload.samples)
        server.shared.update(mean.result())

    def personalise(self, client: Client) -> None:
        """After the last round, make the global model the client's own: one more local training."""
        self.local(client)
