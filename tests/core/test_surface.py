"""What a method can do with the surface, and that it does the same on every engine and after every crash."""

import json
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from processes import in_child
from same import assert_equal, assert_same_run
from sites import Wire, assert_same_model, make_app, no_pauses
from surface import EXAMPLES, FOUR, OPTIONS, PIPELINES, SMALL, KillAfter

import fedetf
from fedetf.api import prepare
from fedetf.config import resolve
from fedetf.core.forms import LikeParameters, Rows, Sizes, Vector, misfit
from fedetf.engines.worker import Worker
from fedetf.errors import UserError
from fedetf.federation import Federation
from fedetf.methods import Method

__all__ = ["no_pauses"]


@pytest.mark.parametrize("method", FOUR)
def test_methods_that_need_more_than_features(method: str) -> None:
    alone = fedetf.run(method=method, engine="serial", settings=SMALL, **OPTIONS)
    assert_equal(alone, fedetf.run(method=method, engine="processes", workers=2, settings=SMALL, **OPTIONS))
    plain = fedetf.run(method="fedavg", engine="serial", settings=SMALL, **OPTIONS)
    assert any(not torch.equal(tensor, plain.outcome.model[name]) for name, tensor in alone.outcome.model.items())


def trusted(app: Path, tmp_path: Path, **config: object) -> Wire:
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"), **{"trust-code": True, **config})
    for node in wire.nodes.values():
        node["trust-code"] = True
    return wire


def simulated(app: Path, tmp_path: Path, **settings: object) -> fedetf.Result:
    return fedetf.run(
        str(app / "settings.toml"),
        clients=3,
        engine="serial",
        out=tmp_path / "simulated",
        trust_code=True,
        settings=settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", FOUR)
def test_they_do_the_same_on_real_sites(method: str, tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", method, model="mlp" if "Mirror" not in method else "cnn")
    trusted(app, tmp_path).run_server()
    simulated(app, tmp_path)
    assert_same_model(tmp_path / "run", tmp_path / "simulated")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "private"])
def test_pipelines_on_real_sites(name: str, tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", "fedetf", model="mlp")
    sections = [key.split(".") for key in PIPELINES[name]]
    lines = [f"[{a}]\n{b} = {json.dumps(PIPELINES[name][f'{a}.{b}'])}\n" for a, b in sections if a == "update"]
    lines += [
        "[server]\n",
        *(f"{b} = {json.dumps(PIPELINES[name][f'{a}.{b}'])}\n" for a, b in sections if a == "server"),
    ]
    with (app / "settings.toml").open("a") as file:
        file.writelines(lines)
    trusted(app, tmp_path).run_server()
    expected = simulated(app, tmp_path)
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["bytes_up"] == expected.summary["bytes_up"]


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_on_worker_processes(name: str) -> None:
    options = {**OPTIONS, "method": "fedetf", "model": "mlp", "settings": {**SMALL, **PIPELINES[name]}}
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(engine="processes", workers=2, **options))


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "method": "fedetf", "model": "mlp", "settings": {**SMALL, **PIPELINES[name]}}
    options["engine"] = "serial"
    fedetf.run(out=tmp_path / "whole", **options)
    status = in_child(lambda: fedetf.run(out=tmp_path / "broken", listeners=[KillAfter(3)], **options))
    assert status == signal.SIGKILL
    fedetf.resume(tmp_path / "broken")
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


ENCODER = """
import torch
from torch import nn

def factory():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
"""


def test_an_encoder_of_ones_own_trains_on_real_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ownpackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "encoders.py").write_text(ENCODER)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = make_app(tmp_path / "app", "fedetf", model="ownpackage.encoders:factory")
    trusted(app, tmp_path).run_server()
    simulated(app, tmp_path)
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    for name in list(sys.modules):
        if name.startswith("ownpackage"):
            del sys.modules[name]


# --- batches and other weights ----------------------------------------------------------------------------------------


def a_client(**settings: object):
    job = prepare(resolve(None, {**SMALL, "data.clients": 3, "model.name": "cnn", **settings}))
    server = Federation(job, []).server
    return Worker(job, torch.device("cpu")).client(0, 1, server.state, {}, epochs=1, lr=0.1)


def test_a_batch_has_the_rows_of_the_split_and_their_inputs() -> None:
    client, seen = a_client(), []

    def loss(client, batch):
        seen.append(batch)
        torch.testing.assert_close(batch.h, client.net.encoder(batch.x))
        return F.cross_entropy(client.net.head(batch.h), batch.y)

    client.train(loss)
    rows = torch.cat([batch.rows for batch in seen])
    assert sorted(rows.tolist()) == list(range(client.samples))
    assert client.steps == len(seen)
    assert torch.equal(torch.bincount(torch.cat([batch.y for batch in seen]), minlength=10), client.counts)


def test_kept_features_come_with_their_inputs() -> None:
    client = a_client()

    def loss(client, batch):
        torch.testing.assert_close(client.net.encoder(batch.x), batch.h, atol=1e-5, rtol=1e-5)
        return F.cross_entropy(client.net.head(batch.h), batch.y)

    client.train(loss, ["head"])


@pytest.mark.parametrize("augment", ["none", "crop_flip"])
def test_other_weights_run_in_eval_mode_without_touching_the_net(augment: str) -> None:
    client = a_client(**{"data.augment": augment, "model.name": "resnet20"})
    teacher = (
        prepare(resolve(None, {**SMALL, "data.clients": 3, "model.name": "resnet20", "seed": 9})).build_net().eval()
    )
    other = teacher.state_dict()
    before = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    seen = 0

    def loss(client, batch):
        nonlocal seen
        h = client.encode(other, batch)
        assert not h.requires_grad
        assert client.net.encoder.training
        with torch.no_grad():
            torch.testing.assert_close(h, teacher.encoder(batch.x), atol=1e-4, rtol=1e-4)
        seen += 1
        return 0 * batch.h.sum()

    client.train(loss, lr=0.0, epochs=2)
    assert seen > 1
    moved = {name for name, tensor in client.net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert all("running" in name or "tracked" in name for name in moved)  # by the net's own pass, and only that


def test_several_steps_on_a_batch_and_a_call_after_each() -> None:
    client, rows, calls = a_client(), [], []
    extra = torch.zeros(2, requires_grad=True)

    def loss(client, batch):
        rows.append(batch.rows.tolist())
        return F.cross_entropy(client.net.head(batch.h), batch.y) + (extra - 1).square().sum() / 2

    client.train(
        loss, repeat=2, extra={"v": extra}, after_step=lambda c: calls.append(c.images), momentum=0, weight_decay=0
    )
    assert rows[0::2] == rows[1::2]
    assert len(calls) == len(rows) == client.steps
    assert extra.tolist() == pytest.approx([1 - 0.9 ** len(rows)] * 2, rel=1e-5)  # rate 0.1 towards 1


def test_an_epoch_of_fewer_samples_and_training_of_so_many_steps() -> None:
    client, epochs = a_client(), []
    everything = set(range(client.samples))

    def loss(client, batch):
        epochs.append(batch.rows.tolist())
        return 0 * batch.h.sum()

    client.train(loss, samples=7, epochs=4)
    assert [len(set(rows)) for rows in epochs] == [7] * 4
    assert set().union(*epochs) <= everything
    assert len(set(map(frozenset, epochs))) > 1  # drawn anew
    client.train(loss, epochs=9, steps=5)
    assert client.steps == 4 + 5


def test_other_weights_take_the_nets_place_for_a_loss() -> None:
    """The loss is that of a net which has these weights; gradients and buffers are theirs, the net's stay."""
    client = a_client(**{"model.name": "resnet20"})
    other = prepare(resolve(None, {**SMALL, "data.clients": 3, "model.name": "resnet20", "seed": 9})).build_net()
    weights = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    parameters = [weights[name].requires_grad_() for name, _ in other.named_parameters()]
    seen = []

    def loss(client, batch):
        if not seen:
            half = batch.part(slice(3, None))
            before = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
            value = client.loss_at(weights, Method().loss, half)
            truth = F.cross_entropy(other.train()(batch.x[3:]), batch.y[3:])
            seen.append((value.item(), truth.item()))
            gradients = torch.autograd.grad(value, parameters)
            wanted = torch.autograd.grad(truth, list(other.parameters()))
            for gradient, want in zip(gradients, wanted, strict=True):
                torch.testing.assert_close(gradient, want, atol=1e-5, rtol=1e-4)
            assert half.rows.tolist() == batch.rows[3:].tolist()
            assert all(torch.equal(tensor, before[name]) for name, tensor in client.net.state_dict().items())
        return F.cross_entropy(client.net.head(batch.h), batch.y)

    client.train(loss)
    assert seen[0][0] == pytest.approx(seen[0][1], rel=1e-5)
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(weights[name], buffer, atol=1e-5, rtol=1e-4)


def test_extra_tensors_can_train_without_momentum_and_decay() -> None:
    client, a, b = a_client(), torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)

    def loss(client, batch):
        return (a + b).sum() + 0 * batch.h.sum()

    client.train(loss, [], extra={"a": a, "b": b}, plain=["b"], epochs=9, steps=2, lr=0.1, momentum=0.5, weight_decay=1)
    assert b.item() == pytest.approx(1 - 0.1 - 0.1)
    assert a.item() == pytest.approx(0.8 - 0.1 * (0.5 * 2 + 1 + 0.8))  # 1 − 0.1·(1 + 1), then with m = 2


def test_a_method_of_version_0_1_is_told_what_changed() -> None:
    with pytest.raises(UserError, match=r"Old.loss\(client, h, y\) is loss\(client, batch\) now"):

        class Old(Method):
            def loss(self, client, h, y):
                return h.sum()


# --- declared forms ---------------------------------------------------------------------------------------------------

SIZES = Sizes(3, 4, {"encoder.w": torch.zeros(2, 5), "head.b": torch.zeros(3)})
FORMS = {"c": LikeParameters("head."), "steps": Vector(), "table": Vector(("classes", "features"))}


def test_forms_are_checked_to_the_letter() -> None:
    fits = {"c.head.b": torch.zeros(3), "steps": torch.tensor(7.0), "table": torch.zeros(3, 4)}
    assert misfit(fits, FORMS, SIZES) is None
    assert "besides the model it sends" in str(misfit({}, FORMS, SIZES))
    for change in ({"steps": torch.tensor([7.0])}, {"steps": torch.tensor(7)}, {"c.head.b": torch.zeros(4)}):
        assert "not torch.float32" in str(misfit({**fits, **change}, FORMS, SIZES))
    assert "this method sends" in str(misfit({**fits, "more": torch.zeros(1)}, FORMS, SIZES))


def test_the_bytes_of_forms() -> None:
    assert SIZES.nbytes(FORMS) == 4 * 3 + 4 + 4 * 12
    assert SIZES.nbytes({"means": Rows(torch.float64, 2)}) == 3 * (8 * 16 + 8)
    assert SIZES.nbytes({"means": Rows(torch.float32, 1), "counts": Rows(torch.int64, 0)}) == 3 * (4 * 4 + 8 + 8)


def test_what_a_method_does_not_declare_is_refused_in_the_simulator_too() -> None:
    class Chatty(Method):
        def upload(self, client):
            return {**super().upload(client), "counts": client.counts}

    with pytest.raises(fedetf.RunError, match=r"besides the model it sends counts; this method sends nothing"):
        fedetf.run(method=Chatty, engine="serial", settings=SMALL, **OPTIONS)


def test_downloads_cost_bytes() -> None:
    method = f"{EXAMPLES}:Correct"
    result = fedetf.run(method=method, engine="serial", settings={**SMALL, "model.name": "mlp"}, **OPTIONS)
    record = result.rounds[0]
    assert record.bytes_down == record.bytes_up  # the model and c, both ways
    plain = fedetf.run(method="fedavg", engine="serial", settings={**SMALL, "model.name": "mlp"}, **OPTIONS).rounds[0]
    assert record.bytes_up == 2 * plain.bytes_up  # a perceptron has no buffers


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_local_adam_learns_and_its_state_may_persist(optimiser: str) -> None:
    settings = {**SMALL, "train.optimiser": optimiser, "train.lr": 1e-2, "model.name": "mlp"}
    options = {**OPTIONS, "participation": 1.0}
    plain = fedetf.run(method="fedavg", engine="serial", settings=settings, **options)
    kept = fedetf.run(method="fedavg", engine="serial", settings={**settings, "train.keep_momentum": True}, **options)
    assert plain.rounds[-1].loss < plain.rounds[0].loss
    assert plain.rounds[0].loss == kept.rounds[0].loss
    assert plain.rounds[-1].loss != kept.rounds[-1].loss
