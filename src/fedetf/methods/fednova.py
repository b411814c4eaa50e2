"""FedNova, and the effective number of steps that SCAFFOLD needs too."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch

from fedetf.core.client import Client
from fedetf.core.forms import Vector
from fedetf.core.server import Server, Upload
from fedetf.core.state import State, widest
from fedetf.errors import UserError
from fedetf.methods.base import Method
from fedetf.settings import Settings

STEPS = "steps"


def effective_steps(steps: int, momentum: float) -> float:
    """a(τ, ρ) = [τ − ρ(1 − ρ^τ)/(1 − ρ)]/(1 − ρ): τ steps along a constant gradient g end at −η·a·g.

    Momentum must start from zero.

    >>> round(effective_steps(3, 0.9), 6)
    5.61
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def check_effective_steps(name: str, settings: Settings, momentum: float) -> None:
    """Refuse training of which a(τ, ρ) is not true."""
    if settings.train.keep_momentum and momentum:
        raise UserError(f"{name} counts steps whose momentum starts from zero; set train.keep_momentum=false")
    if settings.train.optimiser != "sgd":
        raise UserError(f"{name} counts the steps of SGD; set train.optimiser=sgd")


def steps_of(upload: Upload) -> int:
    """τ_k as a client reports it: at least one, and no more than it trained on images."""
    return min(max(int(upload.state[STEPS]), 1), max(upload.images, 1))


class FedNova(Method):
    """Updates are divided by their effective steps, so that who makes more of them does not count more for it.

    τ_eff, the mean number of effective steps, brings their mean back to scale. It is combined by the same rule and
    weights as the updates. BatchNorm's statistics are averaged as they are.
    """

    name: ClassVar = "fednova"
    summary: ClassVar = "updates divided by their number of effective steps before they are averaged"
    citation: ClassVar = "Wang et al., NeurIPS 2020"
    family: ClassVar = "averaging"
    uploads: ClassVar = {STEPS: Vector((), torch.int64)}

    def check(self, settings: Settings) -> None:
        """a(τ, ρ) is of SGD whose momentum starts from zero."""
        check_effective_steps(self.name, settings, settings.train.momentum)

    def upload(self, client: Client) -> State:
        """The model, and τ_k."""
        return {**super().upload(client), STEPS: torch.tensor(client.steps)}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """w ← wᵗ + τ_eff Σ p_k (w_k − wᵗ)/a_k with τ_eff = Σ p_k a_k, in double precision."""
        combined = server.combine((self._normalised(server, upload) for upload in uploads), beside=[STEPS])
        if not combined:
            return
        effective = combined.pop(STEPS)
        for name in server.parameters:
            w = server.state[name].to(combined[name].dtype)
            combined[name] = (w + effective * (combined[name] - w)).to(server.state[name].dtype)
        server.move_to(combined)

    def _normalised(self, server: Server, upload: Upload) -> Upload:
        """The upload with wᵗ + (w_k − wᵗ)/a_k for its model, and a_k for its steps."""
        a, state = effective_steps(steps_of(upload), server.train.momentum), dict(upload.state)
        for name in server.parameters:
            w = server.state[name].to(widest(server.state[name].device))
            state[name] = w + (state[name].to(w.dtype) - w) / a
        steps = state[STEPS]
        return replace(upload, state={**state, STEPS: torch.full_like(steps, a, dtype=widest(steps.device))})
