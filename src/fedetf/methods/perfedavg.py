"""Per-FedAvg, first order."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Batch, Client
from fedetf.core.state import clone
from fedetf.methods.base import Method
from fedetf.settings import Count, NonNegative


class PerFedAvg(Method):
    """A model that is good after one step on a client's data: each step is that of another batch, after such a step.

    This is the first-order form, without the factor I − α∇²L. The paper's server takes the plain mean, which is
    ``server.weights = "uniform"``.
    """

    name: ClassVar = "perfedavg"
    summary: ClassVar = "a global model that is good after a step on the client's data (first-order MAML)"
    citation: ClassVar = "Fallah et al., NeurIPS 2020"
    family: ClassVar = "personal"

    alpha: NonNegative | None = Field(None, description="rate of the inner step; left out: the round's learning rate")
    steps: Count | None = Field(
        None, description="plain steps of rate alpha as the personal stage, 1 in the paper; left out: as for FedAvg"
    )

    def local(self, client: Client) -> None:
        """E epochs; a batch is cut into two halves."""
        client.train(self.loss_after_a_step, encode=False)

    def loss_after_a_step(self, client: Client, batch: Batch) -> Tensor:
        """L(w − α g; B₂), g = ∇L(w; B₁) taken as constant, B₁ and B₂ the halves; L(w; B) of a single sample.

        The pass over B₁ leaves no trace in the buffers.
        """
        half = len(batch) // 2
        if not half:
            return self.loss(client, batch)
        first, second = batch.part(slice(half)), batch.part(slice(half, None))
        rate = self._rate(client)
        if not rate:
            return client.loss_at({}, self.loss, second)
        w = client.trained_tensors()
        value = client.loss_at(clone(dict(client.net.named_buffers())), self.loss, first)
        gradients = torch.autograd.grad(value, list(w.values()), materialize_grads=True)  # 0 of unused ones
        stepped = {name: tensor - rate * g for (name, tensor), g in zip(w.items(), gradients, strict=True)}
        return client.loss_at(stepped, self.loss, second)

    def personalise(self, client: Client) -> None:
        """Plain training, as after FedAvg, or the few steps of the paper."""
        if self.steps is None:
            client.train(self.loss)
        else:
            rate = self._rate(client)
            client.train(self.loss, epochs=self.steps, steps=self.steps, lr=rate, momentum=0, weight_decay=0)

    def _rate(self, client: Client) -> float:
        return client.lr if self.alpha is None else self.alpha
