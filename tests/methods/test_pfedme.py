"""pFedMe: the proximal model and the step towards it, by hand."""

import pytest
import torch
from by_hand import same_bits, small_run
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.methods import METHODS, Method

PFedMe = METHODS["pfedme"]


def trained(monkeypatch: pytest.MonkeyPatch, lr: float, start: float = 0.0, **numbers: float) -> tuple[float, float]:
    """w after a round, and θ after the same steps, for L = (x − 4)²/2 on one client."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    federation = quadratic(PFedMe, [4.0], [[0]], lr=lr, start=start, settings={"personal.epochs": 1}, **numbers)
    theta = next(iter(federation.engine.personalise([0], federation.server.state))).state["head.weight"].item()
    list(federation.rounds())
    return weight(federation), theta


def test_a_round_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = 15: θ tends to (4 + 15·0)/16 = 1/4; five steps of 0.05 leave 0.2⁵ of the way, and w goes 0.075 of it."""
    w, theta = trained(monkeypatch, 0.005, lam=15, inner_steps=5, lr_personal=0.05)
    assert theta == pytest.approx(0.24992, abs=1e-6)
    assert w == pytest.approx(0.018744, abs=1e-6)


def test_many_steps_find_the_proximal_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """θ = (c + λ w)/(1 + λ) = (4 + 3·2)/4, whatever the rate of θ."""
    for rate in (0.05, 0.2):
        _, theta = trained(monkeypatch, 0.1, start=2.0, lam=3, inner_steps=300, lr_personal=rate)
        assert theta == pytest.approx(2.5)


def test_a_whole_step_takes_w_to_theta(monkeypatch: pytest.MonkeyPatch) -> None:
    """η λ = 1."""
    w, theta = trained(monkeypatch, 0.25, lam=4, inner_steps=3, lr_personal=0.1)
    assert w == theta


def test_lambda_0_leaves_the_model_as_it_is() -> None:
    """And θ is plain training: FedAvg's personal stage, one step on each batch, without momentum and weight decay."""
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0, "personal.lr": 0.1}
    result = small_run("pfedme", plain, lam=0, inner_steps=1)
    initial = result.job.build_net().state_dict()
    assert all(torch.equal(tensor, initial[name]) for name, tensor in result.outcome.model.items())
    assert same_bits(result, small_run("fedavg", {**plain, "train.lr": 0.0}))


def test_the_heads_own_rate_is_thetas_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = 3, one step of 0.1·½ from 0: θ = 0.05·4, and w goes 0.3 of it."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    federation = quadratic(PFedMe, [4.0], [[0]], lr=0.1, settings={"train.lr_head": 0.5}, lam=3, inner_steps=1)
    list(federation.rounds())
    assert weight(federation) == pytest.approx(0.06)


def test_momentum_and_weight_decay_are_not_for_theta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    settings = {"train.weight_decay": 0.5}
    federation = quadratic(
        PFedMe, [4.0], [[0]], lr=0.005, momentum=0.9, settings=settings, lam=15, inner_steps=5, lr_personal=0.05
    )
    list(federation.rounds())
    assert weight(federation) == pytest.approx(0.018744, abs=1e-6)


def test_w_follows_theta_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of one batch each, one exact step of θ in each (rate 1/4 at λ = 3), η λ = 1/2.

    θ = 1, w = 1/2; then θ = (4 + 3/2)/4 = 1.375, w = 1/2 + 0.875/2.
    """
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    federation = quadratic(PFedMe, [4.0], [[0]], lr=1 / 6, epochs=2, lam=3, inner_steps=1, lr_personal=0.25)
    list(federation.rounds())
    assert weight(federation) == pytest.approx(0.9375)


@pytest.mark.parametrize("rate", ["train.lr", "personal.lr"])
def test_a_step_beyond_theta_is_refused(rate: str) -> None:
    with pytest.raises(fedetf.UserError, match=rf"^{rate} × method\.lam = 1\.5"):
        small_run("pfedme", {rate: 0.1})
