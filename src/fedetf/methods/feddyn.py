"""FedDyn."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.methods.base import Method, check_plain_mean
from fedetf.nn.heads import Net
from fedetf.nn.losses import inner_product, squared_distance
from fedetf.settings import Positive, Settings


class FedDyn(Method):
    """A linear term per client, learned over the rounds, makes local optima agree with the global one.

    Server averages are plain, as in the method's own paper, not weighted by data size.
    """

    name: ClassVar = "feddyn"
    summary: ClassVar = "dynamic regularisation: a linear term per client makes local optima agree"
    citation: ClassVar = "Acar et al., ICLR 2021"
    family: ClassVar = "variance reduction"

    alpha: Positive = Field(0.01, description="strength of the regularisation")  # appendix B

    def check(self, settings: Settings) -> None:
        """h is the mean of all g_k only if every client counts the same."""
        check_plain_mean(self, settings)

    def client_state(self, net: Net) -> State:
        """g_k, the client's linear term, over all trained tensors; BatchNorm's buffers have none."""
        return {f"g.{name}": torch.zeros_like(tensor) for name, tensor in net.named_parameters()}

    def server_state(self, net: Net) -> State:
        """h, which stays the mean of all g_k, sampled or not."""
        return {name: torch.zeros_like(tensor) for name, tensor in net.named_parameters()}

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE − ⟨g_k, w⟩ + (α/2)‖w − wᵗ‖²."""
        w = client.trained_tensors()
        g = {name: client.private[f"g.{name}"] for name in w}
        proximal = self.alpha / 2 * squared_distance(w, client.received)
        return super().loss(client, batch) - inner_product(w, g) + proximal

    def local(self, client: Client) -> None:
        """Train, then g_k ← g_k − α (w_k − wᵗ)."""
        super().local(client)
        for name, w in client.net.named_parameters():
            client.private[f"g.{name}"] -= self.alpha * (w.detach() - client.received[name])

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """h ← h − (α/K) Σ (w_k − wᵗ) over the participants, K being all clients; w ← mean − h/α."""
        averages = server.combine(uploads, uniform=True)
        for name, h in server.own.items() if averages else ():
            h -= self.alpha * server.counted / server.clients * (averages[name] - server.state[name])
            averages[name] = averages[name] - h / self.alpha
        server.move_to(averages)
