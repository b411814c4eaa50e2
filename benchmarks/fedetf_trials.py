"""Variants of FedETF that were tried where it is weak: what docs/methods/fedetf.md reports of them.

    python benchmarks/fedetf_trials.py one-class   clients with a single class: a plain loss for them, other rates and β
    python benchmarks/fedetf_trials.py positive    β = log(1 + exp(b)), which cannot turn negative

Digits and the perceptron, small enough for a laptop; each line is a mean over seeds, with each of them in brackets.
"""

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

import fedetf
from fedetf.core.client import Batch, Client
from fedetf.methods.fedetf import FedETF, plain_loss
from fedetf.nn.heads import ETFHead, Net

COMMON = {
    "data.clients": 20,
    "train.rounds": 10,
    "train.epochs": 3,
    "train.batch_size": 32,
    "personal.enabled": False,
}
LONE = {"data.partition": "shards", "data.shards": 1}  # one class each


class PlainAlone(FedETF):
    """The balanced loss, but on a client with a single class, where it has next to no gradient, the plain one."""

    name: ClassVar = "plain-alone"

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Eq. 6, or Eq. 9."""
        alone = int(client.counts.count_nonzero()) == 1
        return plain_loss(client, batch) if alone else super().loss(client, batch)


class SoftplusHead(ETFHead):
    """Its parameter is b, of which the temperature is log(1 + exp(b))."""

    def forward(self, h: Tensor) -> Tensor:
        """Logits ``[batch, C]``."""
        return F.softplus(self.beta) * (self.embed(h) @ self.V)


class Softplus(FedETF):
    """A temperature that is positive whatever is learned."""

    name: ClassVar = "softplus"

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """FedETF's net, which starts at the same temperature."""
        net = super().build(encoder, features, classes, seed)
        assert isinstance(net.head, ETFHead)
        net.head.__class__ = SoftplusHead
        nn.init.constant_(net.head.beta, math.log(math.expm1(self.beta)))
        return net


def one_class() -> None:
    """Who has one class, and what they do: among themselves, and beside others."""
    cases = {"one class each": LONE, "alpha = 0.02": {"data.alpha": 0.02}, "alpha = 0.05": {"data.alpha": 0.05}}
    for case, data in cases.items():
        for method in ("fedavg", "fedetf", PlainAlone):
            show(case, method, data)
    show("one class each", "fedavg", {**LONE, "train.lr": 0.01})
    for beta, rate in ((10.0, 0.004), (10.0, 0.01), (4.0, 0.01), (4.0, 0.02)):
        show("one class each", "fedetf", {**LONE, "method.balanced": False, "method.beta": beta, "train.lr": rate})


def positive() -> None:
    """The temperature at ordinary and at high rates."""
    data = {"data.limit": 600, "data.clients": 10, "data.alpha": 0.1, "train.rounds": 5, "train.batch_size": 16}
    for rate in (0.04, 0.2):
        for method in ("fedetf", Softplus):
            show("alpha = 0.1", method, {**data, "train.lr": rate}, range(20, 28), "general")


def show(
    case: str,
    method: str | type[FedETF],
    settings: Mapping[str, Any],
    seeds: Iterable[int] = range(20, 24),
    accuracy: str = "general_last5",
) -> None:
    """Run with every seed, and print what came of it, with the range of the learned temperature's parameter."""
    chosen = {**COMMON, **settings}
    runs = [
        fedetf.run(method=method, dataset="digits", model="mlp", engine="serial", seed=seed, settings=chosen)
        for seed in seeds
    ]
    values = [100 * run.summary[accuracy] for run in runs]
    heads = [run.model().head for run in runs]
    betas = [float(head.beta.detach()) for head in heads if isinstance(head, ETFHead)]
    name = method if isinstance(method, str) else method.name
    own = {key: value for key, value in settings.items() if key.startswith(("method.", "train.lr"))}
    found = f"{statistics.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})"
    learned = f", {min(betas):.2f} to {max(betas):.2f}" if betas else ""
    print(f"{case}, {name} {own or ''}: {found}{learned}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["one-class", "positive"])
    {"one-class": one_class, "positive": positive}[parser.parse_args().what]()
