"""Ditto: its global model is FedAvg's, its private one is worked out by hand."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method


def v(federation, client: int) -> float:
    return federation.private.load(client)["v.head.weight"].item()


def test_the_global_model_is_fedavgs_to_the_bit(tmp_path) -> None:
    options = {"clients": 4, "participation": 0.5, "rounds": 3, "epochs": 2, "settings": {"data.limit": 200}}
    a = fedetf.run(method="fedavg", out=tmp_path / "a", **options)
    b = fedetf.run(method="ditto", out=tmp_path / "b", **options)
    assert [r.general for r in a.rounds] == [r.general for r in b.rounds]
    assert [r.loss for r in a.rounds] == [r.loss for r in b.rounds]  # v_k's own loss is not mixed in
    final_a, final_b = a.model().state_dict(), b.model().state_dict()
    assert all(torch.equal(final_a[name], final_b[name]) for name in final_a)
    assert a.personal_per_client != b.personal_per_client


@pytest.mark.parametrize(("lam", "wanted"), [(1.0, 2.0), (3.0, 1.0)])
def test_private_optimum_by_hand(lam: float, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """(v−4)²/2 + λ(v−0)²/2 has its minimum at 4/(1+λ), one step of rate 1/(1+λ) away."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    federation = quadratic(METHODS["ditto"], [4.0], [[0]], lr=1 / (1 + lam), lam=lam)
    next(federation.rounds())
    assert v(federation, 0) == pytest.approx(wanted)
    assert weight(federation) == pytest.approx(4 / (1 + lam))  # FedAvg's own step


def test_the_reference_is_the_received_model_and_only_participants_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0, 8.0]))
    federation = quadratic(METHODS["ditto"], [4.0, 8.0], [[0, 1], [0]], lr=0.5, lam=1.0)
    rounds = federation.rounds()
    next(rounds)
    assert weight(federation) == pytest.approx(3.0)  # the mean of 2 and 4
    assert (v(federation, 0), v(federation, 1)) == pytest.approx((2.0, 4.0))
    next(rounds)
    # v_0 = 2 steps by half the gradient (2 − 4) + (2 − 3); a reference trained first (3.5) would give another number
    assert v(federation, 0) == pytest.approx(3.5)
    assert v(federation, 1) == pytest.approx(4.0)


def test_lambda_0_is_training_alone() -> None:
    """v_k does not depend on who else takes part."""
    result = fedetf.run(method="ditto", clients=3, rounds=1, epochs=1, settings={"data.limit": 150, "method.lam": 0.0})
    kept = []
    for schedule in ([[0], [0]], [[0, 1, 2], [0, 2]]):
        federation = Federation(result.job, schedule)
        list(federation.rounds())
        kept.append(federation.private.load(0))
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
