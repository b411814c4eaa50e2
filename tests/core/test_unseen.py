"""Clients that never train: who they are, that nothing of theirs reaches the model, and what is said of them."""

import io
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs
from processes import in_child
from rich.console import Console
from same import assert_same_run
from sites import Wire, assert_same_model, make_app, no_pauses

import fedetf
from fedetf.api import execute, prepare
from fedetf.config import resolve
from fedetf.data import make_schedule
from fedetf.data.partition import make_partition
from fedetf.data.unseen import draw_unseen, without_unseen
from fedetf.engines.private import PrivateStates
from fedetf.engines.serial import SerialEngine
from fedetf.federation import Federation, Listener
from fedetf.report.tables import partition_table, result_table
from fedetf.settings import DataSettings

__all__ = ["no_pauses"]  # a fixture for every test here

OPTIONS = {"clients": 5, "alpha": 0.5, "rounds": 2, "epochs": 1, "model": "mlp"}
SETTINGS = {"data.unseen": 2, "data.limit": 400, "data.test_limit": 60, "personal.rounds": 1}


def test_the_draw_grows_by_adding_and_every_client_is_as_likely() -> None:
    for seed in range(20):
        few, more = draw_unseen(10, 2, seed), draw_unseen(10, 5, seed)
        assert len(set(few)) == 2
        assert set(few) < set(more)
        assert more == sorted(more)
    times = np.bincount([client for seed in range(2000) for client in draw_unseen(10, 3, seed)], minlength=10)
    assert np.abs(times - 600).max() < 5 * (2000 * 0.3 * 0.7) ** 0.5
    assert draw_unseen(10, 0, 1) == []
    with pytest.raises(fedetf.UserError, match="leaves nobody to train"):
        draw_unseen(5, 5, 1)


@pytest.mark.parametrize("participation", [1.0, 0.4, 0.1])
def test_everybody_else_takes_part_as_ever_and_no_round_is_empty(participation: float) -> None:
    drawn, unseen = make_schedule(10, participation, 40, seed=3), [1, 4, 5]
    left = without_unseen(drawn, 10, unseen, seed=3)
    assert without_unseen(drawn, 10, [], seed=3) == drawn
    assert not set(unseen) & {client for participants in left for client in participants}
    for before, after in zip(drawn, left, strict=True):
        rest = [client for client in before if client not in unseen]
        assert after == rest if rest else len(after) == 1
    assert without_unseen(drawn[:7], 10, unseen, seed=3) == left[:7]  # a longer run begins like a shorter one


def test_the_partition_is_that_of_a_run_without_them() -> None:
    labels, classes = np.arange(600) % 3, ["a", "b", "c"]
    plain, held = (
        make_partition(labels, classes, DataSettings(clients=20, partition="iid", unseen=n), 7) for n in (0, 5)
    )
    with_them, without = json.loads(held.to_json()), json.loads(plain.to_json())
    assert with_them.pop("unseen") == held.unseen == draw_unseen(20, 5, 7)
    assert with_them == without


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "ccvr", "scaffold", "fednh"])
def test_nothing_of_theirs_reaches_the_model(method: str) -> None:
    """The global model is that of a federation in which they hold noise instead of data."""
    data = blobs(clients=4, n=40)
    options = {"rounds": 2, "epochs": 1, "model": "mlp", "engine": "serial", "settings": {"data.unseen": 1}}
    first = fedetf.run(data=data, method=method, **options)
    (never,) = first.partition.unseen
    spoilt = [(x * 9 - 3, y[::-1].copy()) if k == never else (x, y) for k, (x, y) in enumerate(data)]
    again = fedetf.run(data=spoilt, method=method, **options)
    assert all(torch.equal(tensor, again.outcome.model[name]) for name, tensor in first.outcome.model.items())
    assert first.general == again.general  # without test=, of what the others hold out
    assert first.personal_per_client == again.personal_per_client
    assert first.personal_per_client[never] is None
    assert first.summary["unseen"] != again.summary["unseen"]


class Watch(Listener):
    def started(self, federation: Federation) -> None:
        self.clients = federation.server.clients


def test_the_server_counts_only_those_that_can_train() -> None:
    watch = Watch()
    fedetf.run(method="fedavg", engine="serial", settings=SETTINGS, listeners=[watch], **OPTIONS)
    assert watch.clients == 3


def test_they_are_measured_before_and_after_their_own_stage(tmp_path: Path) -> None:
    result = fedetf.run(method="fedavg", settings=SETTINGS, out=tmp_path / "run", engine="serial", **OPTIONS)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    data, partition, unseen = result.job.dataset.train, result.partition, written["unseen"]
    x = data.x.float() / 255 * 2 - 1

    def accuracy(client: int, model: int | None) -> float:
        rows = partition.test[client]
        with torch.no_grad():
            return float((result.model(model)(x[rows]).argmax(1) == data.y[rows]).float().mean())

    assert unseen["clients"] == partition.unseen
    assert unseen["general_per_client"] == pytest.approx([accuracy(k, None) for k in partition.unseen])
    assert unseen["personal_per_client"] == pytest.approx([accuracy(k, k) for k in partition.unseen])
    seen = [accuracy(k, k) for k in partition.seen]
    assert written["personal"] == pytest.approx(np.mean(seen))
    assert unseen["personal"] == pytest.approx(np.mean(unseen["personal_per_client"]))
    assert unseen["gap"] == pytest.approx(np.mean(seen) - unseen["personal"])
    assert written["epochs_train"] == pytest.approx(2.0)  # of those that train: two rounds of one epoch


def test_the_personal_stage_is_that_of_a_client_with_the_same_model() -> None:
    """FedAvg keeps nothing with a client: once it has the model, an unseen client does what anybody would."""
    settings = resolve(None, {**SETTINGS, "data.clients": 5, "train.rounds": 1, "method.name": "fedavg",
                              "engine.name": "serial", "model.name": "mlp", "train.epochs": 1})  # fmt: skip
    job = prepare(settings)
    result = execute(job, None, [])
    engine = SerialEngine(job, PrivateStates(), torch.device("cpu"))
    (own,) = engine.personalise([job.partition.unseen[0]], result.outcome.model)
    assert own.accuracy == result.summary["unseen"]["personal_per_client"][0]


def test_tables_on_a_terminal_name_them() -> None:
    result = fedetf.run(method="fedavg", engine="serial", settings=SETTINGS, **OPTIONS)
    console = Console(file=io.StringIO(), width=150)
    console.print(partition_table(result.partition))
    console.print(result_table(result.job, result.outcome))
    text = console.file.getvalue()
    assert text.count("(unseen)") == 2
    assert f"unseen clients   {100 * result.summary['unseen']['personal']:.1f} %" in text
    assert "mean of 3 clients" in text


def test_null_where_it_does_not_apply() -> None:
    plain = {**SETTINGS, "data.unseen": 0}
    assert fedetf.run(method="fedavg", engine="serial", settings=plain, **OPTIONS).summary["unseen"] is None
    proto = fedetf.run(method="fedproto", engine="serial", settings=SETTINGS, **OPTIONS).summary["unseen"]
    assert proto["general"] is None
    assert proto["general_per_client"] == [None, None]
    assert 0 <= proto["personal"] <= 1
    off = {**SETTINGS, "personal.enabled": False}
    stage_left_out = fedetf.run(method="fedavg", engine="serial", settings=off, **OPTIONS).summary["unseen"]
    assert len(stage_left_out["clients"]) == 2
    assert 0 <= stage_left_out["general"] <= 1
    assert stage_left_out["personal"] is stage_left_out["gap"] is None


@pytest.mark.slow
def test_workers_and_a_killed_run_give_the_same_numbers(tmp_path: Path) -> None:
    options = {"method": "ditto", "settings": {**SETTINGS, "data.validation_fraction": 0.2}, **OPTIONS}
    fedetf.run(engine="serial", out=tmp_path / "serial", **options)
    fedetf.run(engine="processes", workers=2, out=tmp_path / "processes", **options)
    assert_same_run(tmp_path / "serial", tmp_path / "processes")

    class Kill(Listener):
        def personal_done(self, personal: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    broken = tmp_path / "broken"
    for _ in range(3):  # further by one personal model each time
        if not broken.exists():
            in_child(lambda: fedetf.run(engine="serial", out=broken, listeners=[Kill()], **options))
        else:
            in_child(lambda: fedetf.resume(broken, listeners=[Kill()]))
    assert not (broken / "result.json").exists()
    fedetf.resume(broken)
    assert_same_run(tmp_path / "serial", broken)


def test_sites_that_never_train_get_the_model_at_the_end(tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", "fedavg", 2, model="mlp", limit=200)
    text = (app / "settings.toml").read_text().replace("[data]\n", "[data]\nunseen = 1\n")
    (app / "settings.toml").write_text(text)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))
    wire.run_server()
    expected = fedetf.run(str(app / "settings.toml"), clients=3, engine="serial", out=tmp_path / "simulated")
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["unseen"] == expected.summary["unseen"]
    assert found["unseen"]["general"] is not None
    assert found["personal_per_client"] == expected.summary["personal_per_client"]
    trained = [a for a in wire.answers if a.metadata.message_type == "train"]
    assert len(trained) == 2 * 2
