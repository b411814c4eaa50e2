"""Every client alone: FedProto without prototypes, nobody else's business, and means of what each model is worth."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import DIGITS, SMALL, job_of, small_run
from quadratic import quadratic, quadratic_loss

import fedetf
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method
from fedetf.runs.read import read_run


def trained(method: str, out: Path, settings: dict, **options) -> fedetf.Result:
    return fedetf.run(method=method, out=out, settings={**DIGITS, **settings}, **{**SMALL, **options})


def personal_models(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [fedetf.core.state.load_state(path) for path in sorted((folder / "personal").glob("*.safetensors"))]


def test_it_is_fedproto_with_lambda_0_to_the_bit(tmp_path: Path) -> None:
    options = {"participation": 0.7, "rounds": 3}
    alone = trained("local", tmp_path / "a", {}, **options)
    proto = trained("fedproto", tmp_path / "b", {"method.lam": 0}, **options)
    assert alone.personal_per_client == proto.personal_per_client
    for a, b in zip(*map(personal_models, (tmp_path / "a", tmp_path / "b")), strict=True):
        assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_a_client_alone_is_fedavg_with_one_client_to_the_bit(tmp_path: Path) -> None:
    data = [(x[:40], y[:40]) for x, y in [digits()]]
    options = {"data": data, "rounds": 2, "epochs": 2, "model": "cnn"}
    alone = fedetf.run(method="local", out=tmp_path / "a", **options)
    average = fedetf.run(method="fedavg", out=tmp_path / "b", **options)
    (a,), (b,) = map(personal_models, (tmp_path / "a", tmp_path / "b"))
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    assert alone.general == average.general  # the mean of one


def digits() -> tuple[np.ndarray, np.ndarray]:
    dataset = fedetf.data.load_dataset(fedetf.settings.DataSettings(), 0)
    return dataset.train.x.numpy(), dataset.train.y.numpy()


def test_two_rounds_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halfway to its own centre in each round that it takes part in, from the common start: 4·¾ and 8·½."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0, 8.0]))
    federation = quadratic(METHODS["local"], [4.0, 8.0], [[0, 1], [0]], lr=0.5)
    list(federation.rounds())
    assert [federation.private.load(k)["head.weight"].item() for k in (0, 1)] == pytest.approx([3.0, 4.0])


def test_nobody_else_matters() -> None:
    job = small_run("local").job
    kept = []
    for schedule in ([[0], [0]], [[0, 1, 2], [0, 2]]):
        federation = Federation(job, schedule)
        list(federation.rounds())
        kept.append(federation.private.load(0))
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def test_nothing_is_sent_and_the_record_says_so(tmp_path: Path) -> None:
    trained("local", tmp_path / "run", {"personal.enabled": False})
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["bytes_up"] == result["bytes_down"] == 0
    assert all(record.bytes_up == record.bytes_down == 0 for record in read_run(tmp_path / "run").rounds)


def test_noise_that_nothing_has_promises_nothing() -> None:
    assert small_run("local", {"update.noise": 1.0, "update.clip": 1.0}).outcome.epsilon is None


def test_general_values_are_the_means_over_the_clients_own_models() -> None:
    """After each round, from what every client keeps, counted here; who has not trained yet has the initial model."""
    settings = {"measure.metrics": "accuracy,log_loss,collapse", "personal.enabled": False}
    job = small_run("local", settings).job
    test, prepare = job.dataset.test, fedetf.engines.job.preparation
    federation = Federation(job, [[0], [0, 2]])
    for record in federation.rounds():
        right, losses, recalls = [], [], []
        for client in range(3):
            net = job.build_net()
            net.load_state_dict(federation.private.load(client) or net.state_dict())
            x = prepare(job.settings, net.encoder, job.dataset.shape, torch.device("cpu"))(test.x)
            with torch.no_grad():
                logits = net.eval()(x)
            hits = logits.argmax(1) == test.y
            right.append(hits.float().mean().item())
            recalls.append(hits[test.y == 1].float().mean().item())
            losses.append(torch.nn.functional.cross_entropy(logits, test.y).item())
        assert record.general == pytest.approx(sum(right) / 3)
        assert record.measures["log_loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)
        assert record.measures["nc2"] is not None
        confusion = federation.measurer.confusion({})
        assert confusion[1, 1] / confusion[1].sum() == pytest.approx(sum(recalls) / 3)


def models_tested_in(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Whose models are tested after each round of a run."""
    tested, evaluate = [], federation.engine.evaluate_clients
    monkeypatch.setattr(
        federation.engine,
        "evaluate_clients",
        lambda clients, model: (tested.append(clients), evaluate(clients, model))[1],
    )
    list(federation.rounds())
    return tested


def test_who_holds_nothing_to_train_on_is_not_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(METHODS["local"](), [[2, 3], [0, 0], [1, 1]], width=2)
    federation = Federation(job, [[0, 1, 2]])
    tested = models_tested_in(federation, monkeypatch)
    assert tested == [[0, 2]]


def test_a_model_is_tested_again_only_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(small_run("local").job, [[0], [0, 2], [1]])
    tested = models_tested_in(federation, monkeypatch)
    assert tested == [[0, -1], [0, 2], [1]]  # −1: the initial model, of all who have no other


def test_there_is_no_global_model_to_load(tmp_path: Path) -> None:
    trained("local", tmp_path / "run", {})
    with pytest.raises(fedetf.UserError, match="local"):
        fedetf.load(tmp_path / "run")
    assert fedetf.load(tmp_path / "run", client=1) is not None
