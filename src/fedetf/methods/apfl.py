"""APFL."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import State, clone
from fedetf.methods.base import Method
from fedetf.nn.heads import Net


class APFL(Method):
    """FedAvg, and beside it a mixture v̄ = α v_k + (1 − α) w of a private model and the one that is trained for all.

    v_k and α_k follow the mixture's loss, w its own. As in the paper it is weights that are mixed, and α moves in every
    step; the authors' code mixes logits, and moves α in the first step of a round. The server's average is weighted by
    data size, as everywhere here; the paper takes the plain mean.
    """

    name: ClassVar = "apfl"
    summary: ClassVar = "FedAvg, and a mixture of it with a private model, whose mixing rate is learned"
    citation: ClassVar = "Deng et al., 2020"
    family: ClassVar = "personal"
    extra_passes: ClassVar = 3.0  # the mixture's own training step; a backward pass counts as two

    alpha: float = Field(0.5, ge=0, le=1, description="α_k at the start: the private model's part of the mixture")
    adaptive: bool = Field(True, description="false: α_k stays there")

    def client_state(self, net: Net) -> State:
        """v_k, which starts as the initial model and has the mixture's own buffers, and α_k."""
        frozen = {name for name, tensor in net.named_parameters() if not tensor.requires_grad}
        v = {f"v.{name}": tensor for name, tensor in net.state_dict().items() if name not in frozen}
        return {**v, "alpha": torch.tensor(self.alpha)}

    def local(self, client: Client) -> None:
        """One loop for w, v_k and α_k, each step from the values before it."""
        parameters = {f"v.{name}" for name, _ in client.net.named_parameters()} | (
            {"alpha"} if self.adaptive else set()
        )
        extra = {name: t.requires_grad_() for name, t in client.private.items() if name in parameters}
        client.train(self.both_losses, extra=extra, plain=["alpha"], after_step=clip)

    def both_losses(self, client: Client, batch: Batch) -> Tensor:
        """L(w), as FedAvg records it, with the gradient of L(w) + L(v̄)."""
        mixed = client.loss_at(self.mixture(client), self.loss, batch)
        return self.loss(client, batch) + (mixed - mixed.detach())

    def mixture(self, client: Client) -> State:
        """v̄ by tensor, at α = 0 the net as it is, at α = 1 v_k, to the bit; no gradient flows to w."""
        v = {name.removeprefix("v."): t for name, t in client.private.items() if name.startswith("v.")}
        w = dict(client.net.named_parameters())
        alpha = client.private["alpha"]
        return {name: w[name].detach().lerp(t, alpha) if name in w else t for name, t in v.items()}

    def personalise(self, client: Client) -> None:
        """One more round; the mixture predicts."""
        self.local(client)
        client.net.load_state_dict(clone(self.mixture(client)), strict=False)


@torch.no_grad()
def clip(client: Client) -> None:
    """α_k to [0, 1]."""
    client.private["alpha"].clamp_(0, 1)
