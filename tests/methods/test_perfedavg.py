"""Per-FedAvg, first order: a step by hand, what α = 0 is, and buffers that move once."""

import pytest
import torch
from by_hand import same_bits, small_run
from quadratic import quadratic, quadratic_loss, weight
from torch import nn

import fedetf
from fedetf.core.client import Batch, Client
from fedetf.methods import METHODS, Method

PerFedAvg = METHODS["perfedavg"]


def test_a_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """L = (w − 4)²/2, α = β = 0.1: the inner step ends at 0.4, whose gradient is −3.6.

    With the Hessian's factor 0.9 it would be 0.324, and 0.76 if the outer step began where the inner one ended.
    """
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    for numbers in ({"alpha": 0.1}, {}):  # left out, α is the round's rate
        federation = quadratic(PerFedAvg, [4.0], [[0]], lr=0.1, **numbers)
        list(federation.rounds())
        assert weight(federation) == pytest.approx(0.36)


class OnSecondHalves(fedetf.Method):
    """FedAvg that trains on the second half of each batch."""

    def local(self, client: Client) -> None:
        client.train(self.second_half, encode=False)

    def second_half(self, client: Client, batch: Batch) -> torch.Tensor:
        h = client.net.encoder(batch.x[len(batch) // 2 :])
        return nn.functional.cross_entropy(client.net.head(h), batch.y[len(batch) // 2 :])

    def personalise(self, client: Client) -> None:
        client.train(self.loss)


def test_alpha_0_is_fedavg_on_the_second_halves_to_the_bit() -> None:
    for model in ("mlp", "cnn"):
        assert same_bits(small_run(OnSecondHalves, {"model": model}), small_run("perfedavg", {"model": model}, alpha=0))


def test_no_rounds_worth_of_rate_and_the_common_stage_is_fedavg() -> None:
    """With a rate of 0 in the rounds the personal stage is all there is, and it is FedAvg's."""
    still = {"rounds": 1, "train.lr": 0.0, "personal.lr": 0.1}
    assert same_bits(small_run("fedavg", still), small_run("perfedavg", still, alpha=0.5))


class WithASpareLayer(nn.Module):
    """An encoder with a layer that does not run, such as a classifier of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x.flatten(1)).relu()


def test_what_does_not_run_stays_as_it_is() -> None:
    encoder = WithASpareLayer()
    plain = {"train.weight_decay": 0.0}
    state = small_run("perfedavg", {"model": encoder, **plain}).outcome.model
    assert torch.equal(state["encoder.spare.weight"], encoder.spare.weight)
    assert not torch.equal(state["encoder.used.weight"], encoder.used.weight)


def test_buffers_move_once_a_step_and_by_the_second_half() -> None:
    result = small_run("perfedavg", {"model": "cnn", "rounds": 1, "epochs": 1, "train.batch_size": 128})
    state = result.outcome.model
    counters = [tensor.item() for name, tensor in state.items() if name.endswith("num_batches_tracked")]
    assert counters
    assert set(counters) == {1}


def test_a_batch_of_one_is_a_plain_step_and_halves_of_one_are_no_problem() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).numpy()
    encoder = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    data = [(x[:1], [0]), (x[:2], [0, 1]), (x, [0, 1, 1])]
    settings = {"data.test_fraction": 0.0, "data.min_size": 1}
    result = fedetf.run(
        method="perfedavg", data=data, test=(x, [0, 1, 1]), model=encoder, rounds=2, epochs=1, settings=settings
    )
    assert result.summary["refused_updates"] == 0


def test_the_papers_personal_stage_is_so_many_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0 towards 4 by 0.1: 0.4, 0.76, whatever momentum, weight decay and the epochs of the stage."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    for steps, wanted in ((1, 0.4), (2, 0.76)):
        settings = {"personal.epochs": 7, "train.weight_decay": 0.1}
        federation = quadratic(PerFedAvg, [4.0], [[0]], lr=0.5, momentum=0.9, settings=settings, steps=steps, alpha=0.1)
        personal = next(iter(federation.engine.personalise([0], federation.server.state)))
        assert personal.state["head.weight"].item() == pytest.approx(wanted)
