"""FedRep: what travels, what stays, and what each phase moves."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss

import fedetf
from fedetf.engines.worker import Worker
from fedetf.methods import METHODS, Method

pytestmark = pytest.mark.slow

OPTIONS = {"method": "fedrep", "clients": 4, "participation": 0.5, "rounds": 2, "epochs": 1}


def test_uploads_hold_no_head_and_bytes_say_so() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 200})
    worker = Worker(result.job, torch.device("cpu"))
    trained = worker.train(0, 1, result.outcome.model, {})
    assert trained.upload.state
    assert all(name.startswith("encoder.") for name in trained.upload.state)
    encoder = result.model().encoder.state_dict()
    assert result.rounds[0].bytes_up == 2 * sum(t.numel() * t.element_size() for t in encoder.values())
    assert set(trained.private) == {"head.weight", "head.bias"}


def test_the_servers_head_is_the_initial_one_and_heads_are_kept_between_rounds(tmp_path) -> None:
    result = fedetf.run(**OPTIONS, out=tmp_path / "run", settings={"data.limit": 200})
    initial = result.job.build_net().head
    assert torch.equal(result.model().head.weight, initial.weight)
    kept = fedetf.federation.Federation(result.job, result.schedule)
    heads = []
    for _ in kept.rounds():
        heads.append({k: kept.private.load(k)["head.weight"] for k in kept.private.rounds})
    sampled_later = set(result.schedule[1])
    for client, head in heads[0].items():
        assert torch.equal(head, heads[1][client]) == (client not in sampled_later)
        assert not torch.equal(head, initial.weight)


def test_each_phase_moves_its_part_only() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 200})
    worker = Worker(result.job, torch.device("cpu"))
    client = worker.client(0, 1, result.outcome.model, {}, epochs=1, lr=0.1)
    before = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    client.train(result.job.method.loss, ["head"])
    after = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    client.train(result.job.method.loss, ["encoder"])
    assert torch.equal(client.net.head.weight, after["head.weight"])
    assert not torch.equal(client.net.state_dict()["encoder.stem.0.weight"], after["encoder.stem.0.weight"])


def test_one_client_encoder_is_the_servers() -> None:
    result = fedetf.run(method="fedrep", clients=1, rounds=1, epochs=1, settings={"data.limit": 100})
    worker = Worker(result.job, torch.device("cpu"))
    trained = worker.train(0, 1, result.job.build_net().state_dict(), {})
    assert all(torch.equal(tensor, result.outcome.model[name]) for name, tensor in trained.upload.state.items())


def test_private_heads_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of one number goes halfway to its client's centre in each round that it takes part in: 4·¾ and 8·½."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0, 8.0]))
    federation = quadratic(METHODS["fedrep"], [4.0, 8.0], [[0, 1], [0]], lr=0.5)
    list(federation.rounds())
    assert [federation.private.load(k)["head.weight"].item() for k in (0, 1)] == pytest.approx([3.0, 4.0])
    assert "head.weight" not in federation.server.state
