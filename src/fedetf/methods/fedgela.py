"""FedGELA."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.state import widest
from fedetf.methods.base import Scope
from fedetf.methods.on_etf import OnETF
from fedetf.nn.heads import Net, StretchedETFHead
from fedetf.ranges import Range
from fedetf.rng import derive, global_stream
from fedetf.settings import Count, Positive


class FedGELA(OnETF):
    """One fixed simplex ETF for all; each client stretches its vectors by how often it sees the class.

    The head is FedETF's, so that the stretching is all that differs; the method's own code has a deeper projection
    with BatchNorm behind it.
    """

    name: ClassVar = "fedgela"
    summary: ClassVar = "one fixed simplex ETF, whose vectors each client stretches by its class frequencies"
    citation: ClassVar = "Fan et al., NeurIPS 2023"
    family: ClassVar = "fixed classifier"
    temperatures: ClassVar = ("head.beta",)

    dim: Annotated[Count, Field(le=65_536)] | None = Field(
        None, description="d, dimension of the ETF; left out: the number of classes"
    )
    beta: Annotated[Positive, Range(0.3, 30.0)] = Field(1.0, description="temperature at the start")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """w = {u, p, β} in front of V, as for FedETF, and q, which is 1 for everybody but the clients."""
        with global_stream(seed, "init-head"):
            return Net(encoder, StretchedETFHead(features, classes, self.dim, derive(seed, "etf"), beta=self.beta))

    def scope(self, name: str) -> Scope:
        """V is a function of the seed, q of the client's own data."""
        return {"head.V": Scope.FIXED, "head.q": Scope.PRIVATE}.get(name, Scope.SHARED)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE of q_c z_c, z being FedETF's logits."""
        return F.cross_entropy(_stretched(client.net, batch.h), batch.y)

    def local(self, client: Client) -> None:
        """Set q_c = C n_{k,c} / n_k, then train."""
        assert isinstance(client.net.head, StretchedETFHead)
        client.net.head.q.copy_(stretching(client.counts))
        super().local(client)

    def logits(self, net: Net, h: Tensor, personal: bool) -> Tensor:
        """z for all, q z for the client."""
        return _stretched(net, h) if personal else super().logits(net, h, personal)


def stretching(counts: Tensor) -> Tensor:
    """q_c = C n_c / n, ``[C]``: a quotient of whole numbers, so that it is exactly 1 where all classes are alike."""
    total = counts.sum().clamp(min=1)
    return ((len(counts) * counts).to(widest(counts.device)) / total).to(torch.float32)


def _stretched(net: Net, h: Tensor) -> Tensor:
    assert isinstance(net.head, StretchedETFHead)
    logits: Tensor = net.head.q * net.head(h)
    return logits
