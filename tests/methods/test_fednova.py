"""FedNova against numbers worked out by hand, and where it must not differ from FedAvg."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.methods import METHODS, Method, Server, Upload
from fedetf.methods.fednova import effective_steps

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 4, "alpha": 0.3, "rounds": 2, "epochs": 1}
SMALL = {"data.limit": 150, "personal.enabled": False}


@pytest.mark.parametrize(
    ("steps", "momentum", "wanted"), [(7, 0.0, 7.0), (2, 0.9, 2.9), (3, 0.9, 5.61), (10, 0.9, 41.38106)]
)
def test_effective_steps(steps: int, momentum: float, wanted: float) -> None:
    """Against the recursion of SGD along a gradient of −1: m ← ρm + 1, w ← w + m."""
    w = m = 0.0
    for _ in range(steps):
        m = momentum * m + 1
        w += m
    assert effective_steps(steps, momentum) == pytest.approx(w)
    assert w == pytest.approx(wanted, abs=1e-5)


def uneven(method: type[Method]) -> type[Method]:
    """Its first client makes one step, the second three."""

    class Uneven(method):
        def local(self, client):
            client.train(self.loss, epochs=1 + 2 * client.id)

    return Uneven


def test_one_and_three_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """w_k = 0.8 and 1.542 from 1; τ_eff = 2; w = 1 + 2·(−0.2/1 + 0.542/3)/2. FedAvg has 1.171."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([-1.0, 3.0]))
    for name, wanted in (("fedavg", 1.171), ("fednova", 0.980667)):
        federation = quadratic(uneven(METHODS[name]), [-1.0, 3.0], [[0, 1]], lr=0.1, start=1.0)
        next(federation.rounds())
        assert weight(federation) == pytest.approx(wanted, abs=1e-6)


def test_if_nobody_moves_the_model_stays_to_the_bit() -> None:
    """Weights that do not sum to one would move it."""
    settings = {**SMALL, "train.lr": 0.0, "train.batch_size": 8}
    result = fedetf.run(method="fednova", settings=settings, **OPTIONS)
    first = dict(result.job.build_net().named_parameters())
    assert all(torch.equal(tensor, first[name]) for name, tensor in result.model().named_parameters())


def test_equal_steps_are_fedavg_and_buffers_always_are() -> None:
    settings = {**SMALL, "data.partition": "iid"}
    a, b = (fedetf.run(method=m, settings=settings, **OPTIONS).model().state_dict() for m in ("fedavg", "fednova"))
    for name, tensor in a.items():
        torch.testing.assert_close(b[name], tensor, atol=1e-6, rtol=1e-6)
    settings = {**SMALL, "train.batch_size": 16}
    once = {**OPTIONS, "rounds": 1}
    a, b = (fedetf.run(method=m, settings=settings, **once).model() for m in ("fedavg", "fednova"))
    assert all(torch.equal(tensor, dict(b.named_buffers())[name]) for name, tensor in a.named_buffers())
    assert not any(torch.equal(tensor, dict(b.named_parameters())[name]) for name, tensor in a.named_parameters())


def test_other_rules_combine_the_normalised_updates_and_the_steps() -> None:
    """The median of 2/1, 9/3 and 100/2 is 3, that of the steps 2: from 0 to 6."""
    server = Server(
        {"w": torch.zeros(1)},
        clients=3,
        parameters=("w",),
        train=fedetf.settings.TrainSettings(momentum=0.0),
        settings=fedetf.settings.ServerSettings(combine="median"),
    )
    sent = [(0, 2.0, 1), (1, 9.0, 3), (2, 100.0, 2)]
    uploads = [Upload(k, 5, {"w": torch.tensor([w]), "steps": torch.tensor(n)}, 0.0, 5) for k, w, n in sent]
    METHODS["fednova"]().aggregate(server, uploads)
    assert server.state["w"].item() == pytest.approx(6.0)
    assert set(server.state) == {"w"}
    assert server.state["w"].dtype == torch.float32


@pytest.mark.parametrize(("key", "value"), [("train.keep_momentum", True), ("train.optimiser", "adamw")])
def test_training_whose_steps_cannot_be_counted_is_refused(key: str, value: object) -> None:
    with pytest.raises(fedetf.UserError, match="fednova counts"):
        fedetf.run(method="fednova", settings={**SMALL, key: value}, **OPTIONS)
