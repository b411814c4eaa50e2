"""CCVR."""

import warnings
from collections.abc import Iterable
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedetf.core.client import Client
from fedetf.core.forms import Rows
from fedetf.core.server import Server
from fedetf.core.state import State
from fedetf.methods.base import Method
from fedetf.nn.optim import SGD
from fedetf.rng import torch_stream
from fedetf.settings import Positive, Times

BATCH = 128  # of virtual features


class CCVR(Method):
    """FedAvg, then a head retrained on virtual features drawn from Gaussians of each class, pooled over all clients.

    The number of virtual features and epochs is the FedETF paper's; the method's own paper draws far more.
    """

    name: ClassVar = "ccvr"
    summary: ClassVar = "FedAvg, then a head calibrated on virtual features from pooled class Gaussians"
    citation: ClassVar = "Luo et al., NeurIPS 2021"
    family: ClassVar = "calibrated classifier"
    finishes: ClassVar = True
    summaries: ClassVar = {
        "counts": Rows(torch.int64, 0),
        "means": Rows(torch.float64, 1),
        "covariances": Rows(torch.float64, 2),
    }

    samples: Annotated[Times, Field(ge=1)] = Field(10, description="virtual features per class")  # appendix B
    epochs: Times = Field(100, description="of calibration")  # appendix B
    lr: Positive = Field(0.01, description="of calibration")

    def summarise(self, client: Client) -> State:
        """Per class that the client holds: count, mean and unbiased covariance of its features, in double precision."""
        per_class = [(c, h.to("cpu", torch.float64)) for c, h in client.class_features()]
        if not per_class:
            return {}
        return {
            "classes": torch.tensor([c for c, _ in per_class]),
            "counts": torch.tensor([len(h) for _, h in per_class]),
            "means": torch.stack([h.mean(dim=0) for _, h in per_class]),
            "covariances": torch.stack([_covariance(h) for _, h in per_class]),
        }

    def finish(self, server: Server, summaries: Iterable[State]) -> None:
        """Retrain weight and bias of the final head on virtual features; the encoder stays."""
        x, y = self.virtual_features(server, summaries)
        weight, bias = (server.state[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
        absent = sorted(set(range(len(bias))) - set(y.tolist()))
        if absent:
            warnings.warn(f"nobody holds the classes {absent}: they get no virtual features", stacklevel=2)
        x, y = x.to(weight), y.to(weight.device)
        stream = torch_stream(server.seed, "calibration")
        optimiser = SGD([weight, bias], self.lr)
        for _ in range(self.epochs if len(y) else 0):
            for batch in torch.randperm(len(y), generator=stream).to(y.device).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(F.linear(x[batch], weight, bias), y[batch]).backward()
                optimiser.step()
        server.state.update({"head.weight": weight.detach(), "head.bias": bias.detach()})

    def virtual_features(self, server: Server, summaries: Iterable[State]) -> tuple[Tensor, Tensor]:
        """M features of each class, ``[C·M, D]``, from Gaussians with the moments of all features, and their labels."""
        pooled = PooledGaussians()
        for summary in summaries:
            pooled.add(summary)
        return pooled.draw(self.samples, torch_stream(server.seed, "virtual-features"))


class PooledGaussians:
    """Class means and covariances of all features together, from those of each client, without the features.

    Σ_c = [Σ_k (n_k − 1) S_k + Σ_k n_k (μ_k − μ)(μ_k − μ)ᵀ] / (N − 1), folded in client by client.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.means: dict[int, Tensor] = {}
        self._scatter: dict[int, Tensor] = {}  # (N − 1)·Σ

    def add(self, summary: State) -> None:
        """Fold in one client's statistics."""
        rows = (
            zip(*(summary[name] for name in ("classes", "counts", "means", "covariances")), strict=True)
            if summary
            else ()
        )
        for c, n, mean, covariance in rows:
            self._add_class(int(c), int(n), mean, covariance)

    def _add_class(self, c: int, n: int, mean: Tensor, covariance: Tensor) -> None:
        before, old = self.counts.get(c, 0), self.means.get(c, torch.zeros_like(mean))
        total, apart = before + n, mean - old
        self.counts[c] = total
        self.means[c] = old + apart * n / total
        between = torch.outer(apart, apart) * (before * n / total)
        self._scatter[c] = self._scatter.get(c, torch.zeros_like(covariance)) + (n - 1) * covariance + between

    def covariance(self, c: int) -> Tensor:
        """Σ_c, ``[D, D]``; zero for a class of one sample."""
        return self._scatter[c] / max(self.counts[c] - 1, 1)

    def draw(self, samples: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """So many features of each known class, ``[C·samples, D]``, and their labels."""
        features, labels = [], []
        for c in sorted(self.counts):
            values, vectors = torch.linalg.eigh(self.covariance(c))  # Cholesky fails where Σ is singular
            noise = torch.randn(samples, len(values), generator=stream, dtype=values.dtype).to(values.device)
            features.append(self.means[c] + (noise * values.clamp(min=0).sqrt()) @ vectors.T)
            labels += [c] * samples
        return torch.cat(features) if features else torch.empty(0, 0), torch.tensor(labels, dtype=torch.int64)


def _covariance(h: Tensor) -> Tensor:
    if len(h) < 2:
        return h.new_zeros(h.shape[1], h.shape[1])
    covariance: Tensor = torch.cov(h.T).reshape(h.shape[1], h.shape[1])
    return covariance
