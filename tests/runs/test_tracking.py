"""TensorBoard events and MLflow."""

import os
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedetf
from fedetf import UserError
from fedetf.federation import Listener
from fedetf.methods import Server
from fedetf.outcome import Outcome, Round
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


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedetf.runs.tracking.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedetf\[mlflow\]'"):
        fedetf.run(rounds=1, out=tmp_path / "r", settings={**LIMIT, "measure.mlflow": "sqlite:///x.db"}, **SMALL)
    assert not (tmp_path / "r" / "config.toml").exists()
