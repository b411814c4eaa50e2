"""SCAFFOLD against numbers worked out by hand, with and without momentum, and what always holds of c."""

from functools import partial

import pytest
import torch
from quadratic import quadratic, weight

import fedetf
from fedetf.engines.job import Job
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 5, "alpha": 0.3, "rounds": 1, "epochs": 1}
SMALL = {"data.limit": 150, "personal.enabled": False}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch):
    """Federations of two clients with L₁ = (w + 1)²/2 and L₂ = 2(w − 3)², whose common optimum is 2.2."""

    def loss(_, client, batch):
        w = client.net.head.weight
        return ((w + 1).square() / 2 if client.id == 0 else 2 * (w - 3).square()).sum()

    monkeypatch.setattr(Method, "loss", loss)
    return partial(quadratic, METHODS["scaffold"], [-1.0, 3.0])


def c(federation: Federation) -> float:
    return federation.server.own["c.head.weight"].item()


def c_k(federation: Federation, client: int) -> float:
    return federation.private.load(client)["c_k.head.weight"].item()


def test_two_rounds_by_hand_and_the_optimum(two) -> None:
    """η = 0.1, two steps: w_k = −0.19 and 1.92, c_k = 0.95 and −9.6; then w_k = 1.5129 and 1.3874."""
    federation = two([[0, 1]] * 60, lr=0.1, epochs=2)
    rounds = federation.rounds()
    next(rounds)
    assert weight(federation) == pytest.approx(0.865)
    assert (c_k(federation, 0), c_k(federation, 1)) == pytest.approx((0.95, -9.6))
    assert c(federation) == pytest.approx(-4.325)
    next(rounds)
    assert weight(federation) == pytest.approx(1.45015)
    assert c(federation) == pytest.approx(-2.92575)
    list(rounds)
    assert weight(federation) == pytest.approx(2.2, abs=1e-4)  # FedAvg ends at 2.0843
    assert (c_k(federation, 0), c_k(federation, 1)) == pytest.approx((3.2, -3.2), abs=1e-3)


def test_partial_participation_by_hand(two) -> None:
    """Of two clients only the second takes part: c = −9.6/2. (Dividing by the participants would give −9.6.)"""
    federation = two([[1]], lr=0.1, epochs=2)
    next(federation.rounds())
    assert weight(federation) == pytest.approx(1.92)
    assert c(federation) == pytest.approx(-4.8)


def test_momentum_is_reckoned_with(two) -> None:
    """η = 0.01, 20 steps, momentum 0.9, worked out by recursion. Dividing by τ would give 4.67 in round two."""
    federation = two([[0, 1]] * 10, lr=0.01, epochs=20, momentum=0.9)
    path = [weight(federation) for _ in federation.rounds()]
    assert (path[0], path[1], path[9]) == pytest.approx((1.472289, 1.904444, 2.199765), abs=1e-5)


def test_a_constant_gradient_is_found_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", lambda _, client, batch: 0.75 * client.net.head.weight.sum())
    federation = quadratic(METHODS["scaffold"], [0.0], [[0]], lr=0.125, epochs=2, momentum=0.9)
    next(federation.rounds())
    assert c_k(federation, 0) == pytest.approx(0.75, abs=1e-6)


def test_c_is_the_mean_of_all_c_k_whoever_takes_part() -> None:
    job = fedetf.run(method="scaffold", settings=SMALL, **OPTIONS).job
    federation = Federation(job, [[0, 2], [1, 2, 4], [0]])
    for _ in federation.rounds():
        kept = [federation.private.load(k) for k in federation.private.rounds]
        for name, tensor in federation.server.own.items():
            total = sum(private[name.replace("c.", "c_k.", 1)] for private in kept)
            torch.testing.assert_close(tensor, total / 5, atol=1e-6, rtol=1e-4)


def test_the_first_round_is_fedavg_with_equal_weights_to_the_bit() -> None:
    a = fedetf.run(method="fedavg", settings={**SMALL, "server.weights": "uniform"}, **OPTIONS).model().state_dict()
    b = fedetf.run(method="scaffold", settings=SMALL, **OPTIONS).model().state_dict()
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_one_client_trains_as_if_alone() -> None:
    """c − c_k = 0 for ever: up to rounding of c it is FedAvg, which for one client is plain training."""
    settings = {**SMALL, "data.partition": "iid", "train.lr": 0.01}
    options = {"clients": 1, "rounds": 3, "epochs": 1, "settings": settings, "model": "mlp"}
    a, b = (fedetf.run(method=m, **options).model().state_dict() for m in ("fedavg", "scaffold"))
    for name, tensor in a.items():
        torch.testing.assert_close(b[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_rate_of_zero_and_clients_without_data_leave_c_alone() -> None:
    result = fedetf.run(method="scaffold", settings={**SMALL, "train.lr": 0.0}, **OPTIONS)
    federation = Federation(result.job, result.schedule)
    list(federation.rounds())
    assert not any(tensor.any() for tensor in federation.server.own.values())


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("update.bits", 8, "need the whole update at the server; leave out update.top_k and bits"),
        ("update.top_k", 0.5, "need the whole update"),
        ("train.keep_momentum", True, "set train.keep_momentum=false"),
        ("train.optimiser", "adam", "set train.optimiser=sgd"),
        ("server.weights", "disco", "leave out server.weights"),
    ],
)
def test_what_makes_no_sense_is_refused(setting: str, value: object, why: str) -> None:
    with pytest.raises(fedetf.UserError, match=why):
        fedetf.run(method="scaffold", settings={**SMALL, setting: value}, **OPTIONS)


def test_noise_is_refused() -> None:
    with pytest.raises(fedetf.UserError, match="scaffold sends steps besides the model"):
        fedetf.run(method="scaffold", settings={**SMALL, "update.clip": 1.0, "update.noise": 1.0}, **OPTIONS)


def test_a_site_cannot_lie_about_its_steps_beyond_its_images() -> None:
    """A lie of no steps, or of too many, must not give a client another influence than one step an image has."""
    job = fedetf.run(method="scaffold", settings=SMALL, **OPTIONS).job
    changes = []
    for steps in (-3, 0, 1, 20, 10**12):
        federation = Federation(Job(job.settings, job.method, job.dataset, job.partition), [[0]])
        federation.server.round = 1
        (trained,) = federation.engine.train([0], 1, federation._received())
        trained.upload.state["steps"] = torch.tensor(steps)
        trained.upload.images = 20
        federation.method.aggregate(federation.server, [trained.upload])
        changes.append(federation.server.own["c.head.bias"])
    assert torch.equal(changes[0], changes[2])
    assert torch.equal(changes[1], changes[2])
    assert torch.equal(changes[3], changes[4])
