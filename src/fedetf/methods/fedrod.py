"""FedRoD."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.methods.base import Method, Scope
from fedetf.nn.heads import Net, TwoHeads
from fedetf.nn.losses import ZeroCount, balanced_cross_entropy
from fedetf.ranges import Range
from fedetf.rng import global_stream
from fedetf.settings import NonNegative


class FedRoD(Method):
    """A generic head trained with the balanced loss for all, and a private one added to it for each client's own use.

    The linear variant, without the hypernetwork of the method's own paper.
    """

    name: ClassVar = "fedrod"
    summary: ClassVar = "a generic head with a balanced loss, a private one on top for each client"
    citation: ClassVar = "Chen and Chao, ICLR 2022"
    family: ClassVar = "calibrated classifier"

    gamma: Annotated[NonNegative, Range(0.25, 2.0)] = Field(
        1.0, description="strength of the balanced loss"
    )  # appendix B
    zero_count: ZeroCount = Field("one", description="n of a class the client lacks: one, or mask (leave it out)")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """Encoder u, generic head G, private head P_k."""
        with global_stream(seed, "init-head"):
            return Net(encoder, TwoHeads(features, classes))

    def scope(self, name: str) -> Scope:
        """P_k stays with the client."""
        return Scope.PRIVATE if name.startswith("head.private.") else Scope.SHARED

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The balanced loss on {u, G}, and the cross entropy of G + P on P alone.

        The two touch different tensors, so one step on their sum is the two steps of the method.
        """
        generic = client.net.head(batch.h)
        balanced = balanced_cross_entropy(generic, batch.y, client.counts, self.gamma, self.zero_count)
        return balanced + F.cross_entropy(generic.detach() + _private(client.net, batch.h.detach()), batch.y)

    def logits(self, net: Net, h: Tensor, personal: bool) -> Tensor:
        """G for all, G + P_k for the client."""
        generic = super().logits(net, h, personal)
        return generic + _private(net, h) if personal else generic

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """Those of G."""
        return state.get("head.generic.weight")


def _private(net: Net, h: Tensor) -> Tensor:
    assert isinstance(net.head, TwoHeads)
    logits: Tensor = net.head.private(h)
    return logits
