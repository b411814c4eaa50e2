"""What a federated method is: a few hooks, whose defaults are FedAvg. Every method states only where it differs."""

import enum
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.forms import Forms
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.errors import UserError
from fedetf.nn.heads import Net
from fedetf.rng import global_stream
from fedetf.settings import PersonalSettings, Settings


class Scope(enum.Enum):
    """What becomes of a tensor of the net."""

    SHARED = "shared"  # received before and sent after local training
    RECEIVED = "received"  # download only; never uploaded under this name
    PRIVATE = "private"  # stays with the client from round to round
    FIXED = "fixed"  # never sent: every party builds it from the seed


class Method(BaseModel):
    """FedAvg, and the base of every other method.

    A method's own numbers are its fields, so ``method.mu`` in the settings is checked against ``mu: float = 0.001`` in
    the class. An object holds nothing else: whatever changes lives with the server or the client.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    name: ClassVar[str] = "method"  # a class that gives none goes by its own name in small letters
    summary: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    family: ClassVar[str] = "your own"  # what kind of method it is, for lists
    extra_passes: ClassVar[float] = 0.0  # forward passes for each image trained on, beyond the training's own
    suggested_rate: ClassVar[float] = 1.0  # a good learning rate, as a multiple of FedAvg's
    has_global: ClassVar[bool] = True  # False: there is no global model to test
    measures_clients: ClassVar[bool] = False  # True: general values are means over the clients' own models
    pools: ClassVar[bool] = False  # True: all data is in one place, where one client trains on it; a reference
    downloads: ClassVar[Forms] = {}  # what :meth:`download` adds to the model
    uploads: ClassVar[Forms] = {}  # what :meth:`upload` adds to the shared tensors
    summaries: ClassVar[Forms] = {}  # what :meth:`summarise` gives; clients can send nothing else
    temperatures: ClassVar[tuple[str, ...]] = ()  # single numbers that an adaptive server optimiser leaves alone
    finishes: ClassVar[bool] = (
        False  # True: :meth:`summarise` and :meth:`finish` complete the model after the last round
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        if list(inspect.signature(cls.loss).parameters)[2:] == ["h", "y"]:
            raise UserError(f"{cls.__name__}.loss(client, h, y) is loss(client, batch) now: take batch.h and batch.y")

    def check(self, settings: Settings) -> None:
        """Refuse, by a UserError that says what to do, settings that make no sense with this method."""

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

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The local loss of a batch, from its features ``batch.h`` and labels ``batch.y``: cross entropy."""
        return F.cross_entropy(client.net.head(batch.h), batch.y)

    def local(self, client: Client) -> None:
        """One round of local training: E epochs of SGD on everything."""
        client.train(self.loss)

    def download(self, server: Server) -> State:
        """What clients receive besides the model, as ``downloads`` declares it: ``client.received`` has it too."""
        return {}

    def upload(self, client: Client) -> State:
        """What the client sends: the shared tensors, and what ``uploads`` declares. It is copied before it travels."""
        return self.scoped(client.state, Scope.SHARED)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """Fold the uploads into the server: by default the mean weighted by n_k (Eq. 2). With none, nothing changes.

        A method that averages does it by ``server.combine`` and ``server.move_to``, so that it can have every rule,
        noise and every optimiser of the settings.
        """
        server.move_to(server.combine(uploads))

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
        """Features in the class vectors' space, from h ``[B, D]``: ``[B, d]``. Neural collapse is measured on them."""
        return h

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """The class vectors ``[C, d]`` in a state dict of the net; None if it has none."""
        return state.get("head.weight")


def check_private(method: Method) -> None:
    """Refuse differential privacy for methods that send more than the model: the noise would not cover it."""
    if method.uploads or method.summaries:
        raise UserError(
            f"{method.name} sends {', '.join([*method.uploads, *method.summaries])} besides the model, which the noise "
            "does not cover; set update.noise=0, or choose a method that sends the model only, such as fedavg or fedetf"
        )


def check_federated(method: Method) -> None:
    """Refuse methods that need all data in one place, for data that is not."""
    if method.pools:
        raise UserError(
            f"{method.name} trains on all data in one place, and data does not leave its site; "
            "choose a federated method, or compare with pooled in a simulation"
        )


def check_trainable(method: Method, encoder: nn.Module) -> None:
    """Refuse an encoder of which nothing trains, for methods that train nothing else."""
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        raise UserError(
            f"{method.name} trains only the encoder, and nothing in this one can be trained; "
            "choose an encoder that is not frozen, or a method that trains a head, such as fedavg or fedetf"
        )


def check_plain_mean(method: Method, settings: Settings) -> None:
    """Refuse other weights for methods whose server takes plain means."""
    if settings.server.weights == "disco":
        raise UserError(f"{method.name} counts every client the same; leave out server.weights")
