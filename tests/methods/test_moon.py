"""MOON: where it is FedAvg, the contrast by hand, and frozen models that stay frozen."""

import pytest
import torch

import fedetf
from fedetf.core.client import Client
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods.moon import contrast

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 3, "alpha": 0.3, "rounds": 2, "epochs": 2}
SMALL = {"data.limit": 120, "personal.enabled": False}


def states(**settings: object) -> tuple[dict, dict]:
    """FedAvg's and MOON's final models."""
    rest = {name: value for name, value in settings.items() if not name.startswith("method.")}
    a = fedetf.run(method="fedavg", settings={**SMALL, **rest}, **OPTIONS)
    b = fedetf.run(method="moon", settings={**SMALL, **settings}, **OPTIONS)
    return a.model().state_dict(), b.model().state_dict()


def test_the_contrast_by_hand() -> None:
    """h like the received model's and across the last one's: ln(1 + e⁻²); with both alike ln 2, and no gradient."""
    h, across = torch.tensor([[1.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 1.0]])
    assert contrast(h, h.detach(), across, 0.5).item() == pytest.approx(0.126928, abs=1e-6)
    both = torch.tensor([[3.0, 4.0]])
    value = contrast(h, both, both, 0.5)
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    value.backward()
    assert h.grad.abs().max() < 1e-7


def test_mu_0_is_fedavg_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "encode", None)  # and no other model runs
    a, b = states(**{"method.mu": 0.0})
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_a_clients_first_round_is_fedavgs_to_the_bit_and_its_second_is_not() -> None:
    a, b = states(**{"train.rounds": 1})
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    a, b = states()
    assert not torch.equal(a["head.weight"], b["head.weight"])


def test_what_is_kept_is_the_last_local_encoder() -> None:
    job = fedetf.run(method="moon", settings=SMALL, **OPTIONS).job
    federation = Federation(job, [[0]])
    (trained,) = federation.engine.train([0], 1, federation._received())
    assert trained.private["has_last"]
    kept = {name.removeprefix("last."): t for name, t in trained.private.items() if name.startswith("last.")}
    assert kept.keys() == {name for name in trained.upload.state if name.startswith("encoder.")}
    assert all(torch.equal(tensor, trained.upload.state[name]) for name, tensor in kept.items())


def test_frozen_models_stay_as_they_are_and_run_once_where_nothing_is_augmented() -> None:
    """Their BatchNorm must neither use nor note the batches that they see."""
    job = fedetf.run(method="moon", settings=SMALL, **OPTIONS).job
    received = Federation(job, []).server.state
    worker = Worker(job, torch.device("cpu"))
    private = worker.train(0, 1, received, {}).private
    client = worker.client(0, 2, received, private, epochs=2, lr=0.1)
    before = {name: tensor.clone() for name, tensor in {**client.received, **client.private}.items()}
    taught = []

    def spy(client, batch):
        h = client.encode(client.received, batch)
        worker.net.eval()
        with torch.no_grad():
            taught.append((batch.rows, h))
        worker.net.train()
        return job.method.loss(client, batch)

    client.train(spy)
    assert all(torch.equal(t, {**client.received, **client.private}[name]) for name, t in before.items())
    by_row = [h[rows.argsort()] for rows, h in taught]  # the whole split is one batch, in another order each epoch
    assert torch.equal(by_row[0], by_row[1])


def test_features_of_zero_have_a_gradient_that_is_a_number() -> None:
    h = torch.zeros(2, 3, requires_grad=True)
    contrast(h, torch.ones(2, 3), torch.zeros(2, 3), 0.5).backward()
    assert torch.isfinite(h.grad).all()
