"""FedPVR: SCAFFOLD's correction, of the classifier alone."""

from typing import ClassVar

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.core.forms import LikeParameters
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 4, "alpha": 0.3, "epochs": 2}
PLAIN = {"data.limit": 150, "personal.enabled": False, "train.momentum": 0.0, "train.weight_decay": 0.0}


def test_the_first_round_is_fedavg_with_equal_weights_to_the_bit() -> None:
    """Without momentum and decay, which the head does not have; nothing is corrected yet."""
    a = fedetf.run(method="fedavg", rounds=1, settings={**PLAIN, "server.weights": "uniform"}, **OPTIONS).model()
    b = fedetf.run(method="fedpvr", rounds=1, settings=PLAIN, **OPTIONS).model()
    assert all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())


def test_with_every_tensor_named_it_is_scaffold() -> None:
    class Whole(METHODS["fedpvr"]):
        part: ClassVar = ""
        downloads: ClassVar = {"c": LikeParameters()}

    a, b = (fedetf.run(method=m, rounds=3, settings=PLAIN, **OPTIONS).model() for m in ("scaffold", Whole))
    assert all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())


def test_c_is_of_the_head_and_the_mean_of_all_c_k() -> None:
    job = fedetf.run(method="fedpvr", rounds=1, settings={**PLAIN, "train.momentum": 0.9}, **OPTIONS).job
    federation = Federation(job, [[0, 2], [1, 2], [3]])
    list(federation.rounds())
    assert set(federation.server.own) == {"c.head.weight", "c.head.bias"}
    kept = [federation.private.load(k) for k in range(4)]
    for name, tensor in federation.server.own.items():
        total = sum(private[name.replace("c.", "c_k.", 1)] for private in kept)
        torch.testing.assert_close(tensor, total / 4, atol=1e-6, rtol=1e-4)


def test_momentum_of_the_settings_does_not_reach_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """(w − 1)²/2 from 0, η = 0.1, two plain steps: w = 0.19, and c = −0.19/(0.1·2) = −0.95."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([1.0]))
    federation = quadratic(METHODS["fedpvr"], [1.0], [[0]], lr=0.1, epochs=2, momentum=0.9)
    next(federation.rounds())
    assert weight(federation) == pytest.approx(0.19)
    assert federation.server.own["c.head.weight"].item() == pytest.approx(-0.95)
