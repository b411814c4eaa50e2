"""FedALA."""

import statistics
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import State, clone
from fedetf.methods.base import Method
from fedetf.nn.heads import Net
from fedetf.settings import Fraction, NonNegative

WATCHED = 10  # epochs whose losses say whether the first search is over
MOST_EPOCHS = 50  # of the first search, which may never settle: the authors warn of it


class FedALA(Method):
    """Training starts from a learned mixture, entry by entry, of the received head and the client's own last one.

    The authors mix on every client in each round, sampled or not; here those who take part.
    """

    name: ClassVar = "fedala"
    summary: ClassVar = "local training starts from a learned mixture of the received head and the client's last"
    citation: ClassVar = "Zhang et al., AAAI 2023"
    family: ClassVar = "personal"

    lr_mix: NonNegative = Field(1.0, description="learning rate of the mixing weights")
    share: Fraction = Field(0.8, description="of the training split that an epoch of the search sees")
    threshold: NonNegative = Field(  # the authors' code; their README says that the paper has 0.01
        0.1, description="deviation of the last ten epochs' losses below which a client's first search ends"
    )

    def client_state(self, net: Net) -> State:
        """θ_l, the head after the client's last round, its mixing weights W, and how many rounds it took part in."""
        head = {f"head.{name}": tensor for name, tensor in net.head.named_parameters()}
        last = {f"last.{name}": tensor for name, tensor in head.items()}
        mix = {f"mix.{name}": torch.ones_like(tensor) for name, tensor in head.items()}
        return {**last, **mix, "rounds": torch.zeros((), dtype=torch.int64)}

    def local(self, client: Client) -> None:
        """Mix, from a client's second round on; then train as FedAvg does, and remember the head."""
        if client.private["rounds"] and client.samples and self.lr_mix:
            self.search(client)
        client.train(self.loss)
        trained = clone(client.net.state_dict())
        client.private.update({f"last.{name}": trained[name] for name in self.mixture(client)})
        client.private["rounds"] = client.private["rounds"] + 1

    def search(self, client: Client) -> None:
        """W ← clip(W − η_W ∂L/∂W, 0, 1) on a share of the data; the net then has the mixed head.

        The first time until the loss of an epoch's last batch has settled, later for one epoch. The encoder stays as
        it was received.
        """
        weights = {name: w.requires_grad_() for name, w in client.private.items() if name.startswith("mix.")}
        seen: list[float] = []

        def loss(client: Client, batch: Batch) -> Tensor:
            value = client.loss_at(self.mixture(client), self.loss, batch)
            seen[-1:] = [value.item()]
            return value

        for epoch in range(MOST_EPOCHS if client.private["rounds"] == 1 else 1):
            seen.append(0.0)
            client.train(
                loss,
                [],
                epochs=1,
                lr=self.lr_mix,
                momentum=0,
                weight_decay=0,
                optimiser="sgd",
                stream="mixing",
                samples=max(1, int(self.share * client.samples + 1e-9)),
                extra=weights,
                after_step=lambda _: clip(weights),
            )
            if epoch >= WATCHED and statistics.pstdev(seen[-WATCHED:]) < self.threshold:
                break
        client.net.load_state_dict(clone(self.mixture(client)), strict=False)

    def mixture(self, client: Client) -> State:
        """θ_l + (θ_g − θ_l) W by tensor of the head: at W = 1 the received one, to the bit."""
        names = [name.removeprefix("mix.") for name in client.private if name.startswith("mix.")]
        own = client.private
        return {name: own[f"last.{name}"].lerp(client.received[name], own[f"mix.{name}"]) for name in names}


@torch.no_grad()
def clip(weights: Mapping[str, Tensor]) -> None:
    """To [0, 1]."""
    for w in weights.values():
        w.clamp_(0, 1)
