"""What a federated method is: a few hooks, whose defaults are FedAvg. Every method states only where it differs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from fedetf.config import PersonalSettings
from fedetf.heads import Net
from fedetf.rng import global_stream
from fedetf.state import State, WeightedMean, clone

if TYPE_CHECKING:
    from fedetf.client import Client


class Scope(enum.Enum):
    """What becomes of a tensor of the net."""

    SHARED = "shared"  # received before and sent after local training
    RECEIVED = "received"  # received only; what the client sends for it is another thing
    PRIVATE = "private"  # stays with the client from round to round
    FIXED = "fixed"  # never sent: every party builds it from the seed


@dataclass
class Server:
    """What the server keeps between rounds."""

    state: State  # what clients receive: the SHARED and RECEIVED tensors of the net
    clients: int  # K, all that hold data
    seed: int = 0
    own: State = field(default_factory=dict)  # what it keeps to itself, see Method.server_state
    round: int = 0


@dataclass
class Upload:
    """What one client sends after its local training."""

    client: int
    samples: int  # n_k, its weight in the average
    state: State
    loss: float  # mean training loss, for the record
    images: int  # how many it trained on, epochs counted, for the record


@dataclass(frozen=True)
class Rows:
    """Statistics with one row for each class that a client holds; ``classes`` beside them, ``[rows]``, names these."""

    dtype: torch.dtype
    dimensions: int  # of a row: 0 for a number, 1 for ``[D]``, 2 for ``[D, D]``


class Method(BaseModel):
    """FedAvg, and the base of every other method.

    A method's own numbers are its fields, so ``method.mu`` in the settings is checked against ``mu: float = 0.001`` in
    the class. An object holds nothing else: whatever changes lives with the server or the client.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    name: ClassVar[str] = "method"  # a class that gives none goes by its own name in small letters
    summary: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    has_global: ClassVar[bool] = True  # False: there is no global model to test
    upload_rows: ClassVar[Mapping[str, Rows]] = {}  # what :meth:`upload` adds to the shared tensors
    summary_rows: ClassVar[Mapping[str, Rows]] = {}  # what :meth:`summarise` gives; real sites may send nothing else
    finishes: ClassVar[bool] = False  # True: :meth:`summarise` and :meth:`finish` follow the last round

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def personal_phases(self, settings: PersonalSettings) -> int:
        """How many times ``personal.epochs`` epochs the personal stage takes."""
        return 1

    def personal_notes(self, settings: PersonalSettings) -> int:
        """How many times the personal stage notes the client's accuracy, ``client.note_accuracy()``."""
        return 0

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """Put a head behind the encoder; ``features`` is the length of the encoder's output."""
        with global_stream(seed, "init-head"):
            return Net(encoder, nn.Linear(features, classes))

    def scope(self, name: str) -> Scope:
        """What becomes of the tensor ``name`` of the net's state dict."""
        return Scope.SHARED

    def scoped(self, state: Mapping[str, Tensor], scope: Scope) -> State:
        """The part of a state dict that has the given scope."""
        return {name: tensor for name, tensor in state.items() if self.scope(name) is scope}

    def server_state(self, net: Net) -> State:
        """Further tensors that the server keeps, as they are before the first round."""
        return {}

    def client_state(self, net: Net) -> State:
        """Further tensors that each client keeps, as they are before its first round: ``client.private``."""
        return {}

    def loss(self, client: Client, h: Tensor, y: Tensor) -> Tensor:
        """The local loss of a batch from its features h ``[B, D]`` and labels y ``[B]``: cross entropy."""
        return F.cross_entropy(client.net.head(h), y)

    def local(self, client: Client) -> None:
        """One round of local training: E epochs of SGD on everything."""
        client.train(self.loss)

    def upload(self, client: Client) -> State:
        """What the client sends: the shared tensors."""
        return clone(self.scoped(client.net.state_dict(), Scope.SHARED))

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """Fold the uploads into the server: the mean weighted by n_k (Eq. 2). With none, nothing changes."""
        mean = WeightedMean()
        for upload in uploads:
            mean.add(upload.state, upload.samples)
        server.state.update(mean.result())

    def summarise(self, client: Client) -> State:
        """What a client sends once more after the last round; nothing if :meth:`finish` needs nothing."""
        return {}

    def finish(self, server: Server, summaries: Iterable[State]) -> None:
        """Change the final global model by what all clients sent; by default it stays as it is."""

    def personalise(self, client: Client) -> None:
        """After the last round, make the global model the client's own: one more local training."""
        self.local(client)

    def logits(self, net: Net, h: Tensor, personal: bool) -> Tensor:
        """What a model predicts from features h ``[B, D]``: the global one, or a client's own."""
        logits: Tensor = net.head(h)
        return logits

    def embed(self, net: Net, h: Tensor) -> Tensor:
        """What the class vectors meet, from features h ``[B, D]``: ``[B, d]``. Neural collapse is measured on it."""
        return h

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """The class vectors ``[C, d]`` in a state dict of the net; None if it has none."""
        return state.get("head.weight")
