"""SCAFFOLD, with FedNova's effective steps."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.forms import LikeParameters, Vector
from fedetf.core.server import Server, Upload
from fedetf.core.state import State, widest
from fedetf.errors import UserError
from fedetf.methods.base import Method, check_plain_mean
from fedetf.methods.fednova import STEPS, check_effective_steps, effective_steps, steps_of
from fedetf.nn.heads import Net
from fedetf.nn.losses import inner_product
from fedetf.settings import Settings, TrainSettings


class SCAFFOLD(Method):
    """Control variates: c_k estimates the client's gradient, c that of all; local steps follow the difference too.

    c_k comes from the way that the client went, (wᵗ − w_k)/(η a_k) (option II of the paper), where a_k is FedNova's
    effective number of steps: the paper divides by τ_k, which is right for SGD without momentum only. Server averages
    are plain, as in the paper. The server forms the change of c_k itself, from w_k and τ_k: nothing else is sent up.
    """

    name: ClassVar = "scaffold"
    summary: ClassVar = "control variates correct each client's drift from the common gradient"
    citation: ClassVar = "Karimireddy et al., ICML 2020"
    family: ClassVar = "variance reduction"
    downloads: ClassVar = {"c": LikeParameters()}
    uploads: ClassVar = {STEPS: Vector((), torch.int64)}
    part: ClassVar[str] = ""  # what is corrected: trained tensors whose names begin so

    def check(self, settings: Settings) -> None:
        """a(τ, ρ) must hold, c_k and c must be of the same updates, and weigh every client the same."""
        check_effective_steps(self.name, settings, self.momentum(settings.train))
        if settings.update.top_k < 1 or settings.update.bits < 32:
            raise UserError(
                f"{self.name}'s control variates need the whole update at the server; leave out update.top_k and bits"
            )
        if settings.train.lr_head != 1:
            raise UserError(f"{self.name}'s control variates are for one learning rate; leave out train.lr_head")
        check_plain_mean(self, settings)

    def momentum(self, train: TrainSettings) -> float:
        """With which the corrected tensors train."""
        return train.momentum

    def client_state(self, net: Net) -> State:
        """c_k, zero before the client's first round."""
        return {f"c_k.{name}": torch.zeros_like(tensor) for name, tensor in self._corrected(net)}

    def server_state(self, net: Net) -> State:
        """c, which stays the mean of all c_k, sampled or not."""
        return {f"c.{name}": torch.zeros_like(tensor) for name, tensor in self._corrected(net)}

    def download(self, server: Server) -> State:
        """c."""
        return dict(server.own)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """CE + ⟨w, c − c_k⟩, whose gradient is corrected before momentum and weight decay act."""
        w = {name: tensor for name, tensor in client.trained_tensors().items() if f"c_k.{name}" in client.private}
        bias = {name: client.received[f"c.{name}"] - client.private[f"c_k.{name}"] for name in w}
        return super().loss(client, batch) + inner_product(w, bias)

    def local(self, client: Client) -> None:
        """Train, then c_k ← c_k − c + (wᵗ − w_k)/(η a_k)."""
        self.train(client)
        scale = client.lr * effective_steps(client.steps, self.momentum(client.settings))
        for name, w in client.net.named_parameters() if scale else ():
            if f"c_k.{name}" in client.private:
                way = (client.received[name] - w.detach()) / scale
                client.private[f"c_k.{name}"] += way - client.received[f"c.{name}"]

    def train(self, client: Client) -> None:
        """The local training."""
        client.train(self.loss)

    def upload(self, client: Client) -> State:
        """The model, and τ_k."""
        return {**super().upload(client), STEPS: torch.tensor(client.steps)}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """w ← mean of w_k; c ← c + (1/K) Σ (c_k⁺ − c_k) over the participants, K being all clients."""
        with_changes = (replace(u, state={**u.state, **self._changes(server, u)}) for u in uploads)
        combined = server.combine(with_changes, uniform=True, beside=list(server.own))
        for name, c in server.own.items() if combined else ():
            server.own[name] = (c + server.counted / server.clients * combined.pop(name)).to(c.dtype)
        server.move_to(combined)

    def _changes(self, server: Server, upload: Upload) -> State:
        """c_k⁺ − c_k = (wᵗ − w_k)/(η a_k) − c in double precision, under the names of c; 0 if η is."""
        scale = server.train.rate(server.round) * effective_steps(steps_of(upload), self.momentum(server.train))
        changes = {}
        for name, c in server.own.items():
            wide, trained = widest(c.device), name.removeprefix("c.")
            way = server.state[trained].to(wide) - upload.state[trained].to(wide)
            changes[name] = way / scale - c if scale else torch.zeros_like(way)
        return changes

    def _corrected(self, net: Net) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in net.named_parameters():
            if tensor.requires_grad and name.startswith(self.part):
                yield name, tensor
