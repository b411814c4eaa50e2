"""FedBABU."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from fedetf.core.client import Client
from fedetf.methods.base import Method, Scope, check_trainable
from fedetf.nn.heads import Net

PARTS = {"full": None, "head": ["head"], "body": ["encoder"]}


class FedBABU(Method):
    """The head keeps its random initial values while the encoder is federated; clients train it in the end, if at all.

    Averages are weighted by data size; in the method's own code all clients are of one size.
    """

    name: ClassVar = "fedbabu"
    summary: ClassVar = "a random head that nobody trains before the personal stage"
    citation: ClassVar = "Oh et al., ICLR 2022"
    family: ClassVar = "fixed classifier"

    finetune: Literal["full", "head", "body"] = Field("full", description="what the personal stage trains")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """FedAvg's net, with the same initial head."""
        check_trainable(self, encoder)
        return super().build(encoder, features, classes, seed)

    def scope(self, name: str) -> Scope:
        """The head is a function of the seed."""
        return Scope.FIXED if name.startswith("head.") else Scope.SHARED

    def local(self, client: Client) -> None:
        """E epochs on the encoder alone; the head is not handed to the optimiser."""
        client.train(self.loss, ["encoder"])

    def personalise(self, client: Client) -> None:
        """Train everything, or the part that ``finetune`` names."""
        client.train(self.loss, PARTS[self.finetune])
