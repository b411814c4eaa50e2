"""FedDyn against numbers worked out by hand, and its invariant under any participation."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method

pytestmark = pytest.mark.slow

CENTRES = [-1.0, 3.0]


def g(federation: Federation, client: int) -> float:
    private = federation.private.load(client)
    return private["g.head.weight"].item() if private else 0.0


def h(federation: Federation) -> float:
    return federation.server.own["head.weight"].item()


def test_two_rounds_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """L_k = (w − c_k)²/2, α = 1: w_k = (c_k + g_k + wᵗ)/2, which one step of rate 1/2 reaches."""
    monkeypatch.setattr(Method, "loss", quadratic_loss(CENTRES))
    federation = quadratic(METHODS["feddyn"], CENTRES, [[0, 1], [0, 1]], lr=0.5, alpha=1.0)
    rounds = federation.rounds()
    next(rounds)
    assert (g(federation, 0), g(federation, 1)) == pytest.approx((0.5, -1.5))
    assert h(federation) == pytest.approx(-0.5)
    assert weight(federation) == pytest.approx(1.0)  # the optimum, after one round
    next(rounds)
    assert (g(federation, 0), g(federation, 1)) == pytest.approx((1.25, -1.75))
    assert h(federation) == pytest.approx(-0.25)
    assert weight(federation) == pytest.approx(1.0)  # and it stays


def test_partial_participation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only client 1 takes part: h = −(1/2)·1.5, w = 1.5 + 0.75. (Dividing by the participants would give 3.)"""
    monkeypatch.setattr(Method, "loss", quadratic_loss(CENTRES))
    federation = quadratic(METHODS["feddyn"], CENTRES, [[1]], lr=0.5, alpha=1.0)
    next(federation.rounds())
    assert h(federation) == pytest.approx(-0.75)
    assert weight(federation) == pytest.approx(2.25)
    assert (g(federation, 0), g(federation, 1)) == pytest.approx((0.0, -1.5))


def test_h_is_the_mean_of_all_g_whoever_takes_part() -> None:
    result = fedetf.run(method="fedavg", clients=5, rounds=1, epochs=1, settings={"data.limit": 200})
    job = fedetf.engines.job.Job(result.settings, METHODS["feddyn"](), result.job.dataset, result.partition)
    federation = Federation(job, [[0, 2], [1, 2, 4], [0]])
    for _ in federation.rounds():
        kept = [federation.private.load(k) for k in federation.private.rounds]
        for name, tensor in federation.server.own.items():
            total = sum(private[f"g.{name}"] for private in kept)
            torch.testing.assert_close(tensor, total / 5, atol=1e-6, rtol=1e-4)


def test_buffers_are_plain_means_without_the_correction() -> None:
    settings = {"data.limit": 200, "personal.enabled": False}
    result = fedetf.run(method="feddyn", clients=3, rounds=2, epochs=1, settings=settings)
    state = result.model().state_dict()
    assert all((tensor > 0).all() for name, tensor in state.items() if name.endswith("running_var"))


def test_the_personal_stage_of_a_client_never_sampled_is_fedprox_with_mu_alpha(tmp_path) -> None:
    options = {"clients": 4, "participation": 0.25, "rounds": 1, "epochs": 1, "seed": 7}
    result = fedetf.run(
        method="feddyn", out=tmp_path / "a", settings={"data.limit": 200, "method.alpha": 0.1}, **options
    )
    (sampled,) = result.schedule[0]
    never = (sampled + 1) % 4
    prox = fedetf.engines.job.Job(result.settings, METHODS["fedprox"](mu=0.1), result.job.dataset, result.partition)
    federation = Federation(prox, result.schedule)
    federation.server.state = result.outcome.model
    personal = list(federation.engine.personalise(range(len(federation.job.partition)), federation.server.state))[never]
    for name, tensor in result.model(client=never).state_dict().items():
        torch.testing.assert_close(personal.state[name], tensor, atol=1e-5, rtol=1e-4)
