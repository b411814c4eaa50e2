"""FedETF, the paper's method."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.server import Server, Upload
from fedetf.methods.base import Method, Scope
from fedetf.nn.heads import ETFHead, Net
from fedetf.nn.losses import ZeroCount, balanced_cross_entropy
from fedetf.ranges import Range
from fedetf.rng import derive, global_stream
from fedetf.settings import Count, NonNegative, PersonalSettings, Positive


class FedETF(Method):
    """Every client trains towards the same fixed simplex-ETF classifier (Algorithm 1), then finetunes (Algorithm 2)."""

    name: ClassVar = "fedetf"
    summary: ClassVar = "one fixed simplex-ETF classifier for all, behind a projection, with a balanced loss"
    citation: ClassVar = "Li et al., ICCV 2023"
    family: ClassVar = "fixed classifier"
    temperatures: ClassVar = ("head.beta",)

    gamma: Annotated[NonNegative, Range(0.25, 2.0)] = Field(1.0, description="strength of the balanced loss")
    dim: Annotated[Count, Field(le=65_536)] | None = Field(
        None, description="d, dimension of the ETF; left out: the number of classes"
    )
    beta: Annotated[Positive, Range(0.3, 30.0)] = Field(1.0, description="temperature at the start")
    projection: bool = Field(True, description="false: an ablation, the ETF in the encoder's own dimension")
    balanced: bool = Field(True, description="false: an ablation, plain cross entropy")
    learn_beta: bool = Field(True, description="false: an ablation, β stays where it starts")
    zero_count: ZeroCount = Field("one", description="n of a class the client lacks: one, or mask (leave it out)")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """w = {u, p, β} in front of V_ETF, which all parties make from the same seed."""
        with global_stream(seed, "init-head"):
            head = ETFHead(
                features, classes, self.dim, derive(seed, "etf"), self.projection, self.beta, self.learn_beta
            )
        return Net(encoder, head)

    def personal_phases(self, settings: PersonalSettings) -> int:
        """One for the extractor, and T_p turns of the ETF and, if there is one, the projection."""
        return 1 + settings.rounds * (2 if self.projection else 1)

    def scope(self, name: str) -> Scope:
        """V travels nowhere, nor does a β that is not learned."""
        fixed = name == "head.V" or (name == "head.beta" and not self.learn_beta)
        return Scope.FIXED if fixed else Scope.SHARED

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The balanced feature loss, Eq. 6."""
        gamma = self.gamma if self.balanced else 0.0
        return balanced_cross_entropy(client.net.head(batch.h), batch.y, client.counts, gamma, self.zero_count)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """Eq. 2, with a word if the average temperature points the wrong way."""
        super().aggregate(server, uploads)
        if self.learn_beta and server.state["head.beta"] <= 0:
            warnings.warn(
                f"round {server.round}: the temperature beta is no longer positive, so the farthest ETF vector "
                "wins; lower train.lr or set method.learn_beta=false",
                stacklevel=2,
            )

    def personal_notes(self, settings: PersonalSettings) -> int:
        """Before, after the extractor, and after each turn (Fig. 6b)."""
        return 2 + settings.rounds

    def personalise(self, client: Client) -> None:
        """Algorithm 2: finetune the extractor, then the ETF and the projection in turns, each with β."""
        settings = client.personal
        beta = ["head.beta"] if self.learn_beta else []
        client.note_accuracy()
        client.train(plain_loss, ["encoder", *beta])
        client.note_accuracy()
        for _ in range(settings.rounds):
            # Rates and optimisers of the two turns are the authors': the ETF's without momentum and weight decay.
            client.train(plain_loss, ["head.V", *beta], lr=settings.lr_etf, momentum=0, weight_decay=0)
            if self.projection:
                client.train(plain_loss, ["head.projection", *beta], lr=settings.lr_proj)
            client.note_accuracy()

    def embed(self, net: Net, h: Tensor) -> Tensor:
        """μ of Eq. 5."""
        assert isinstance(net.head, ETFHead)
        return net.head.embed(h)

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """The columns of V."""
        return state["head.V"].T if "head.V" in state else None


def plain_loss(client: Client, batch: Batch) -> Tensor:
    """Eq. 9: cross entropy of β·v_cᵀμ without the balancing, so that the model leans to the client's classes."""
    return F.cross_entropy(client.net.head(batch.h), batch.y)
