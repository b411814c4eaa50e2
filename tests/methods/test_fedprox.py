"""FedProx: identities and numbers worked out by hand."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.methods import METHODS, Method

SMALL = {"data.limit": 150}


def test_mu_0_is_fedavg_to_the_bit(tmp_path) -> None:
    options = {"clients": 4, "participation": 0.5, "rounds": 3, "epochs": 1}
    fedetf.run(method="fedavg", out=tmp_path / "a", settings=SMALL, **options)
    fedetf.run(method="fedprox", out=tmp_path / "b", settings={**SMALL, "method.mu": 0.0}, **options)
    names = ["model", *(f"personal/{k}" for k in range(4))]
    for name in names:
        a, b = (fedetf.core.state.load_state(tmp_path / run / f"{name}.safetensors") for run in "ab")
        assert all(torch.equal(a[n], b[n]) for n in a)


# (w−1)²/2 from 0 with rate 0.1: FedAvg goes 0.1, 0.19; with μ = 1 the second step is 0.1·(0.9 − 0.1); an unsquared norm
# would give 0.14.
@pytest.mark.parametrize(("epochs", "wanted"), [(1, 0.1), (2, 0.18)])
def test_two_steps_by_hand(epochs: int, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", quadratic_loss([1.0]))
    federation = quadratic(METHODS["fedprox"], [1.0], [[0]], lr=0.1, epochs=epochs, mu=1.0)
    next(federation.rounds())
    assert weight(federation) == pytest.approx(wanted)


def test_local_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimiser of (w−4)²/2 + (w−0)²/2 is 2; a step of 1/(1+μ) reaches it."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    federation = quadratic(METHODS["fedprox"], [4.0], [[0]], lr=0.5, mu=1.0)
    next(federation.rounds())
    assert weight(federation) == pytest.approx(2.0)


def test_the_centre_is_what_was_received_this_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 0 sits out round 2; in round 3 it is pulled to that round's model, not to the one it saw last."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0, 8.0]))
    federation = quadratic(METHODS["fedprox"], [4.0, 8.0], [[0], [1], [0]], lr=0.5, mu=1.0)
    seen = []
    for _ in federation.rounds():
        seen.append(weight(federation))
    assert seen == pytest.approx([2.0, 5.0, 4.5])  # each the middle between what was received and the client's centre
