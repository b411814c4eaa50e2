"""TensorBoard events, MLflow, and Weights & Biases."""

import json
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

import fedetf
from fedetf import UserError
from fedetf.federation import Listener
from fedetf.methods import Server
from fedetf.outcome import Outcome, Round
from fedetf.runs.events import EventFile
from fedetf.runs.tracking import MLflow, TensorBoard, scalars

SMALL = {"clients": 3, "epochs": 1, "model": "mlp"}
LIMIT = {"data.limit": 100, "personal.rounds": 1, "measure.tensorboard": False}


@dataclass
class Measured(Round):
    measures: dict[str, float | None] = field(default_factory=dict)


def test_scalars_are_what_is_a_number() -> None:
    record = Measured(3, [0], loss=1.5, measures={"nc2": 0.25, "drift": None, "nc1_ratio": float("inf")})
    assert scalars(record) == {"loss": 1.5, "nc2": 0.25}
    assert scalars(Round(1, [0], general=0.5)) == {"general": 0.5}


class Records:
    """As much of a federation as a listener looks at."""

    def __init__(self, *records: Round):
        self.records = list(records)


def test_tensorboard_events_carry_the_measures(tmp_path: Path) -> None:
    writer = TensorBoard(tmp_path / "events")
    writer.started(Records())
    for t in (1, 2):
        writer.round_done(Measured(t, [0], loss=1 / t, measures={"nc2": 0.5**t, "drift": None}), None)
    metrics = {"general": {}, "personal": {"log_loss": 0.25, "accuracy": None}}
    writer.finished(Outcome([], None, None, 0, 0, {}, [], [], 0.0, 0.0, None, metrics))
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("nc2")] == [(1, 0.5), (2, 0.25)]
    assert sorted(events.Tags()["scalars"]) == ["loss", "nc2", "personal/log_loss"]


def test_events_of_an_attempt_that_went_further_are_forgotten(tmp_path: Path) -> None:
    first = EventFile(tmp_path)
    for step in range(1, 6):
        first.add({"loss": float(step)}, step)
    first._path.rename(tmp_path / first._path.name.replace("tfevents.", "tfevents.0"))  # as if a second had passed
    again = EventFile(tmp_path, after=3)
    again.add({"loss": -4.0, "huge": 1e300}, 4)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, -4.0)]
    assert [e.value for e in events.Scalars("huge")] == [float(np.finfo(np.float32).max)]


def test_events_are_what_tensorboards_own_writer_writes(tmp_path: Path) -> None:
    """Its reader checks no checksum of a record's content, so they are compared byte by byte."""
    event = Event(wall_time=1.5, step=300, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.25)]))
    with (tmp_path / "theirs").open("wb") as file:
        RecordWriter(file).write(event.SerializeToString())
    ours = EventFile(tmp_path)
    ours._path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedetf.runs.events.time.time", lambda: 1.5)
        ours.add({"loss": 0.25}, 300)
    assert ours._path.read_bytes() == (tmp_path / "theirs").read_bytes()


class Stop(Listener):
    """Ends a run as Ctrl-C does, after some round."""

    def __init__(self, after: int):
        self.after = after

    def round_done(self, record: Round, server: Server) -> None:
        if record.round == self.after:
            raise KeyboardInterrupt


def in_mlflow(test):
    """Slow to import, and one store for all."""
    return pytest.mark.slow(pytest.mark.xdist_group("mlflow")(test))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    if find_spec("mlflow") is None:
        pytest.skip("the extra fedetf[mlflow] is not installed")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/store.db"


@pytest.fixture
def client(store: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about SQLAlchemy
        return MLflow(store, None)._connected()


def logged(client, name: str):
    """The one run of that name."""
    (run,) = client.search_runs(
        [client.get_experiment_by_name("fedetf").experiment_id], f"attributes.run_name = '{name}'"
    )
    return run


def steps(client, run, metric: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, metric)]


@in_mlflow
def test_a_run_is_logged(store: str, client, tmp_path: Path) -> None:
    settings = {**LIMIT, "measure.mlflow": store}
    result = fedetf.run(rounds=2, out=tmp_path / "one", settings=settings, **SMALL)
    run = logged(client, "one")
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "fedetf"
    assert run.data.params["data.alpha"] == "0.1"
    assert "measure.mlflow" not in run.data.params
    for name in ("loss", "general", "bytes_up", "bytes_down", "seconds"):
        assert steps(client, run, name) == [(r.round, getattr(r, name)) for r in result.rounds]
    assert run.data.metrics["result.personal"] == result.personal
    assert run.data.metrics["result.general_last5"] == result.general_last5
    assert [v for _, v in steps(client, run, "result.personal_curve")] == result.summary["personal_curve"]
    assert (tmp_path / "one" / "mlflow-run.txt").read_text().strip() == run.info.run_id


@in_mlflow
def test_a_resumed_run_has_every_round_once(store: str, client, tmp_path: Path) -> None:
    folder, settings = tmp_path / "cut", {**LIMIT, "measure.mlflow": store, "engine.checkpoint": 3}
    with pytest.raises(KeyboardInterrupt):  # after round 5: the checkpoint has 3, MLflow all 5
        fedetf.run(method="fedavg", rounds=7, out=folder, settings=settings, listeners=[Stop(5)], **SMALL)
    assert logged(client, "cut").info.status == "RUNNING"
    result = fedetf.resume(folder)
    run = logged(client, "cut")
    assert steps(client, run, "loss") == [(r.round, r.loss) for r in result.rounds]
    fedetf.resume(folder)  # finished already
    run = logged(client, "cut")
    assert len(steps(client, run, "loss")) == 7
    assert len(steps(client, run, "result.personal")) == 1


@in_mlflow
def test_rounds_that_did_not_arrive_come_with_the_next(store: str, client, monkeypatch) -> None:
    write, told = MLflow._log, []

    def often_away(self, values) -> None:
        if not told:
            told.append(values)
            raise ConnectionError("the server is away\nfor a while")
        write(self, values)

    monkeypatch.setattr(MLflow, "_log", often_away)
    settings = {**LIMIT, "measure.mlflow": store}
    with pytest.warns(UserWarning, match="round 1 is not in MLflow yet: the server is away$"):
        result = fedetf.run(method="fedavg", rounds=2, seed=99, settings=settings, **SMALL)  # no folder
    run = logged(client, "digits-fedavg-s99")
    assert steps(client, run, "loss") == [(r.round, r.loss) for r in result.rounds]


@in_mlflow
def test_results_that_did_not_arrive_come_with_a_resume(store: str, client, monkeypatch, tmp_path: Path) -> None:
    settings = {**LIMIT, "measure.mlflow": store}
    with monkeypatch.context() as patched:
        patched.setattr(type(client), "set_terminated", lambda *_: 1 / 0)
        with pytest.warns(UserWarning, match=r"not in MLflow .* fedetf resume .*late\): division by zero"):
            fedetf.run(method="fedavg", rounds=1, out=tmp_path / "late", settings=settings, **SMALL)
    assert (tmp_path / "late" / "result.json").is_file()
    fedetf.resume(tmp_path / "late")
    assert logged(client, "late").info.status == "FINISHED"
    assert len(steps(client, logged(client, "late"), "result.personal")) == 1


@in_mlflow
def test_a_store_that_cannot_be_opened_is_a_user_error(store: str, tmp_path: Path) -> None:
    settings = {**LIMIT, "measure.mlflow": "gopher://nowhere"}
    with pytest.raises(UserError, match=r"cannot log to MLflow at gopher://nowhere: .*sqlite:///mlflow.db"):
        fedetf.run(method="fedavg", rounds=1, settings=settings, **SMALL)


@in_mlflow
def test_telemetry_is_off(client, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY

    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(name)
    assert not MLFLOW_DISABLE_TELEMETRY.get()
    MLflow(store, None)._connected()
    assert MLFLOW_DISABLE_TELEMETRY.get()  # as MLflow reads it
    assert os.environ["DO_NOT_TRACK"] == "true"


@pytest.mark.parametrize(("name", "value"), [("mlflow", "sqlite:///x.db"), ("wandb", "project")])
def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.setattr("fedetf.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install 'fedetf\[{name}\]'"):
        fedetf.run(rounds=1, out=tmp_path / "r", settings={**LIMIT, f"measure.{name}": value}, **SMALL)
    assert not (tmp_path / "r" / "config.toml").exists()


# --- Weights & Biases, offline: what it would send, from the files that it keeps -------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of its files; the key is none, and must not be in them."""
    wandb = pytest.importorskip("wandb", reason="the extra fedetf[wandb] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield tmp_path / "wandb"
    wandb.teardown()  # the next test has another folder


KEY = "0123456789" * 4


def by_name(items) -> dict[str, object]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def sent(folder: Path) -> list[dict[str, dict[str, object]]]:
    """Of each attempt its config, its rounds by step, and its summary."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # a process of its own writes the files, at times after a run has finished; now it has ended
    attempts = []
    for file in sorted(folder.glob("offline-run-*/*.wandb")):
        store, config, rounds, summary = DataStore(), {}, {}, {}
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            rounds |= {record.history.step.num: values} if (values := by_name(record.history.item)) else {}
            config |= by_name(record.run.config.update)
            summary |= by_name(record.summary.update)
        store.close()
        attempts.append({"config": config, "rounds": rounds, "summary": summary})
    return attempts


@pytest.mark.slow
def test_a_run_is_logged_to_weights_and_biases(offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fedetf", "--set", "measure.mlflow=http://me:pass@host"])
    settings = {**LIMIT, "measure.wandb": "team/project"}
    result = fedetf.run(method="fedavg", rounds=2, out=tmp_path / "one", settings=settings, **SMALL)
    (attempt,) = sent(offline)
    assert attempt["config"]["method.name"] == "fedavg"
    assert attempt["config"]["data.alpha"] == 0.1
    for name in ("loss", "general", "bytes_up", "bytes_down", "seconds"):
        logged_values = [(step, values[name]) for step, values in attempt["rounds"].items()]
        assert logged_values == [(r.round, getattr(r, name)) for r in result.rounds]
    assert attempt["summary"]["result.personal"] == result.personal
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert KEY.encode() not in everything
    assert b"me:pass" not in everything


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_place(offline: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "cut", {**LIMIT, "measure.wandb": "project"}
    with pytest.raises(KeyboardInterrupt):
        fedetf.run(method="fedavg", rounds=4, out=folder, settings=settings, listeners=[Stop(2)], **SMALL)
    import wandb

    wandb.finish()  # as the end of the process does
    time.sleep(1.1)  # its folders are named by the second
    result = fedetf.resume(folder)
    attempts = sent(offline)
    assert [list(attempt["rounds"]) for attempt in attempts] == [[1, 2], [3, 4]]
    known = (folder / "wandb-run.txt").read_text().strip()
    assert all(name.endswith(known) for name in map(str, offline.glob("offline-run-*")))
    assert attempts[1]["rounds"][4]["loss"] == result.rounds[3].loss


def test_a_project_is_a_name(tmp_path: Path) -> None:
    for name in ("", "a/b/c", "https://me:pass@api.wandb.ai/team/project", "a b"):
        with pytest.raises(UserError, match=r"measure.wandb"):
            fedetf.run(rounds=1, out=tmp_path / "r", settings={**LIMIT, "measure.wandb": name}, **SMALL)
