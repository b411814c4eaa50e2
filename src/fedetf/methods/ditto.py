"""Ditto."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import State, clone
from fedetf.methods.base import Method
from fedetf.nn.heads import Net
from fedetf.nn.losses import squared_distance
from fedetf.settings import NonNegative


class Ditto(Method):
    """FedAvg, and beside it a private model v_k on each client, tied to the received one by a proximal term.

    The server's average is weighted by data size, as everywhere here; the method's own paper takes the plain mean.
    """

    name: ClassVar = "ditto"
    summary: ClassVar = "FedAvg, and a private model per client tied to it by a proximal term"
    citation: ClassVar = "Li et al., ICML 2021"
    family: ClassVar = "personal"

    lam: NonNegative = Field(1.0, description="strength of the tie")  # the authors' scripts; the paper gives none

    def client_state(self, net: Net) -> State:
        """v_k, a whole model with buffers of its own; it starts as the initial global one."""
        return {f"v.{name}": tensor for name, tensor in net.state_dict().items()}

    def local(self, client: Client) -> None:
        """First FedAvg's own training, to the bit; then v_k, whose batches come from another stream."""
        super().local(client)
        trained = clone(client.net.state_dict())
        self.personalise(client)
        client.private.update({f"v.{name}": t for name, t in clone(client.net.state_dict()).items()})
        client.net.load_state_dict(trained)

    def personalise(self, client: Client) -> None:
        """v_k ← argmin CE + (λ/2)‖v − wᵗ‖², from the last v_k; wᵗ is what was received, not what was trained."""
        client.net.load_state_dict({name: client.private[f"v.{name}"] for name in client.net.state_dict()})
        self.train_private(client)

    def train_private(self, client: Client) -> None:
        """Train v_k, which is in the net."""
        client.train(self.tied_loss, stream="extra-phase")

    def tied_loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + (λ/2)‖v − wᵗ‖²."""
        return self.loss(client, batch) + self.lam / 2 * squared_distance(client.trained_tensors(), client.received)
