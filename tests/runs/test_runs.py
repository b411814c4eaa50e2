"""The run folder of the contract."""

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedetf
from fedetf import UserError
from fedetf.config import resolve
from fedetf.core.state import load_state
from fedetf.runs.folder import default_folder
from fedetf.settings import Settings

SMALL = {"data.limit": 150}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fedetf.Result:
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    return fedetf.run(clients=4, participation=0.5, rounds=3, epochs=1, out=out, settings=SMALL)


@pytest.fixture
def folder(result: fedetf.Result) -> Path:
    assert result.folder is not None
    return result.folder


def test_two_runs_of_the_same_second_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20261118-120000")
    first = default_folder(Settings(), "fedavg")
    first.mkdir(parents=True)
    assert str(default_folder(Settings(), "fedavg")) == f"{first}-2" == "runs/digits-fedavg-s7-20261118-120000-2"


def test_it_holds_what_the_contract_says(folder: Path) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    events = {name for name in names if name.startswith("tensorboard/")}
    assert len(events) == 1
    assert names - events == {
        "config.toml",
        "partition.json",
        "schedule.json",
        "rounds.jsonl",
        "checkpoints/round-00002.safetensors",
        "checkpoints/round-00003.safetensors",
        "model.safetensors",
        *(f"personal/{k}.safetensors" for k in range(4)),
        "result.json",
    }


def test_config_is_enough_to_rerun(folder: Path, result: fedetf.Result, tmp_path: Path) -> None:
    again = fedetf.run(str(folder / "config.toml"), out=tmp_path / "again")
    assert resolve(str(folder / "config.toml")) == result.settings
    for name in ("model.safetensors", "personal/3.safetensors", "config.toml", "partition.json", "schedule.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert again.summary["general"] == result.general


def test_rounds(folder: Path, result: fedetf.Result) -> None:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line, participants in zip(lines, result.schedule, strict=True):
        assert line["participants"] == participants
        assert {"loss", "general", "bytes_up", "bytes_down", "seconds"} <= line.keys()
        assert line["bytes_up"] == line["bytes_down"] > 0
    assert json.loads((folder / "schedule.json").read_text()) == result.schedule


def test_general_is_left_out_where_it_was_not_measured(tmp_path: Path) -> None:
    settings = {**SMALL, "measure.every": 4, "personal.enabled": False, "measure.tensorboard": False}
    fedetf.run(method="fedavg", clients=2, rounds=7, epochs=1, out=tmp_path / "run", settings=settings)
    lines = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert ["general" in line for line in lines] == [False, False, True, True, True, True, True]
    assert not (tmp_path / "run/tensorboard").exists()
    assert not (tmp_path / "run/personal").exists()


def test_result(folder: Path, result: fedetf.Result) -> None:
    written = json.loads((folder / "result.json").read_text())
    assert written == result.summary
    keys = "method dataset model seed clients rounds general general_last5 personal personal_per_client bytes_up "
    keys += "bytes_down images_per_second"
    assert set(keys.split()) <= written.keys()
    assert (written["method"], written["dataset"], written["model"]) == ("fedetf", "digits", "cnn")
    assert 0 < written["general"] <= 1
    assert len(written["personal_per_client"]) == 4


def test_partition(folder: Path, result: fedetf.Result) -> None:
    written = json.loads((folder / "partition.json").read_text())
    labels = result.job.dataset.train.y
    for client in written["clients"]:
        assert torch.bincount(labels[client["train"]], minlength=10).tolist() == client["counts"]
        assert not set(client["train"]) & set(client["test"])


def test_the_last_checkpoint_is_the_final_model_less_what_is_fixed(folder: Path) -> None:
    model, checkpoint = (
        load_state(folder / name) for name in ("model.safetensors", "checkpoints/round-00003.safetensors")
    )
    assert {f"server/{name}" for name in model} - checkpoint.keys() == {"server/head.V"}
    assert all(torch.equal(tensor, model[name.removeprefix("server/")]) for name, tensor in checkpoint.items())


def test_tensorboard_events(folder: Path, result: fedetf.Result) -> None:
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [e.value for e in events.Scalars("general")] == pytest.approx([r.general for r in result.rounds])
    assert events.Scalars("personal")[0].value == pytest.approx(result.personal)


def test_nothing_is_overwritten(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="exists already and is not overwritten"):
        fedetf.run(clients=2, rounds=1, out=folder, settings=SMALL)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_empty_folder_can_be_used(tmp_path: Path) -> None:
    fedetf.run(method="fedavg", clients=2, rounds=1, epochs=1, out=tmp_path, settings=SMALL)
    assert (tmp_path / "result.json").is_file()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        fedetf.run(method="fedavg", clients=2, rounds=1, out=tmp_path / "file" / "run", settings=SMALL)


def test_without_out_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fedetf.run(method="fedavg", clients=2, rounds=1, epochs=1, settings=SMALL)
    assert list(tmp_path.iterdir()) == []
