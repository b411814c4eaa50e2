"""pFedMe."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import State, clone, select
from fedetf.errors import UserError
from fedetf.methods.base import Method
from fedetf.nn.losses import squared_distance
from fedetf.settings import Count, NonNegative, Settings


class PFedMe(Method):
    """A personal model θ is found near w_k on each batch, and w_k moves towards it: the way down a Moreau envelope.

    A round has as many batches as E epochs; the authors count batches. Where they let all clients train and the sampled
    ones report, only those train here.
    """

    name: ClassVar = "pfedme"
    summary: ClassVar = "personal models near the global one, which moves towards them: Moreau envelopes"
    citation: ClassVar = "Dinh et al., NeurIPS 2020"
    family: ClassVar = "personal"

    lam: NonNegative = Field(15.0, description="λ, how close θ is held to w_k")  # the authors' default, like the next
    inner_steps: Count = Field(5, description="steps of θ on each batch")
    lr_personal: NonNegative | None = Field(None, description="learning rate of θ; left out: the round's")

    def check(self, settings: Settings) -> None:
        """w_k must not step beyond θ."""
        for name, rate in {"train.lr": settings.train.lr, "personal.lr": settings.personal.lr or 0.0}.items():
            if rate * self.lam > 1:
                raise UserError(
                    f"{name} × method.lam = {rate * self.lam:g}: pFedMe's w_k would step beyond θ; "
                    "lower one of them until the product is at most 1"
                )

    def local(self, client: Client) -> None:
        """w_k is what is sent, with the buffers of θ's passes."""
        client.net.load_state_dict(self.train(client), strict=False)

    def personalise(self, client: Client) -> None:
        """One more round, after which θ predicts."""
        self.train(client)

    def train(self, client: Client) -> State:
        """Train θ, which is the net and starts as wᵗ, without momentum; gives w_k, which follows after each batch."""
        w: State = {}
        taken = 0

        def near_w(client: Client, batch: Batch) -> Tensor:
            """L(θ) + (λ/2)‖θ − w_k‖²."""
            theta = client.trained_tensors()
            if not w:
                w.update(clone(select(client.received, theta)))
            value = self.loss(client, batch)
            return value + self.lam / 2 * squared_distance(theta, w) if self.lam else value

        @torch.no_grad()
        def follow(client: Client) -> None:
            """w_k ← w_k − η λ (w_k − θ) after the last step on a batch."""
            nonlocal taken
            taken += 1
            for name, theta in client.trained_tensors().items() if taken % self.inner_steps == 0 else ():
                w[name] -= client.lr * self.lam * (w[name] - theta)

        steps = self.inner_steps
        client.train(near_w, lr=self.lr_personal, momentum=0, weight_decay=0, repeat=steps, after_step=follow)
        return w
