"""Tables at real sites: the same statistics and the same bits as in the simulator, and only sums leave a site."""

import json
from pathlib import Path

import pytest
from flwr.app import Message
from hospitals import HOSPITALS, REAL, SETTINGS, assert_as_simulated, assert_same_personal, write_hospitals
from sites import Wire, no_pauses

import fedetf
from fedetf.core.state import load_state
from fedetf.data.kinds import Sums
from fedetf.flower.new import new_app

__all__ = ["no_pauses"]  # a fixture for every test here


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    return write_hospitals(tmp_path / "data")


def federated(
    tmp_path: Path, data: Path, classes: str, method: str = "fedetf", model: str = "auto", fit: str = "shared", **config
) -> Wire:
    new_app(tmp_path / "app", HOSPITALS)
    (tmp_path / "app" / "settings.toml").write_text(SETTINGS.format(method=method, model=model, fit=fit))
    return Wire(
        tmp_path / "app",
        tmp_path / "kept",
        lambda k: str(data / f"{HOSPITALS[k]}.csv"),
        HOSPITALS,
        out=str(tmp_path / "run"),
        classes=classes,
        shape="",
        test="",
        **config,
    )


def assert_same_models(folder: Path, data: Path) -> fedetf.api.Result:
    expected = assert_as_simulated(folder, data, folder / "app", folder / "run")
    assert_same_personal(folder, data / "cleveland.csv", folder / "run", expected)
    return expected


def test_sites_with_columns_of_their_own_give_the_simulators_bits(hospitals: Path, tmp_path: Path) -> None:
    wire = federated(tmp_path, hospitals, "no, yes")
    wire.run_server()
    expected = assert_same_models(tmp_path, hospitals)
    columns = {column.name: column for column in expected.job.dataset.note.columns}
    assert columns["pain"].categories == [
        "mild",
        *(f"only {name}" for name in ("cleveland", "hungarian", "va")),
        "sharp",
    ]
    assert columns["chol"].missing
    assert not columns["age"].missing


def test_a_frozen_encoder_stays_where_it_is(hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs once at each site, travels nowhere, and gives the simulator's bits."""
    (tmp_path / "ready_made.py").write_text(
        "from torch import nn\n\ndef encoder(shape):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 24), nn.Tanh()).requires_grad_(False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    wire = federated(tmp_path, hospitals, "no, yes", model="ready_made:encoder", **{"trust-code": True})
    for node in wire.nodes.values():
        node["trust-code"] = True
    wire.run_server()
    assert_same_models(tmp_path, hospitals)
    kept = [*(tmp_path / "kept").rglob("*.safetensors"), *(tmp_path / "run").rglob("*.safetensors")]
    assert kept
    assert not [name for path in kept for name in load_state(path) if name.startswith("encoder.")]


def test_a_sites_own_statistics_stay_there(hospitals: Path, tmp_path: Path) -> None:
    wire = federated(tmp_path, hospitals, "no, yes", fit="own")
    wire.run_server()
    assert_same_models(tmp_path, hospitals)
    told = [a.content["sums"]["json"] for a in wire.answers if a.metadata.message_type == "query.describe"]
    assert len(told) == 4
    for text in told:
        sums = Sums.model_validate_json(text)
        assert sums.rows == 1
        for column in sums.columns:
            assert (column.total, column.squares, column.low, column.high) == (0, 0, None, None)
            assert column.count <= 1
            assert column.missing <= 1


def test_what_leaves_a_site_before_the_first_round_are_sums(hospitals: Path, tmp_path: Path) -> None:
    wire = federated(tmp_path, hospitals, "no, yes", "fedavg")
    wire.run_server()
    told = [a for a in wire.answers if a.metadata.message_type == "query.describe"]
    assert len(told) == 4
    for answer in told:
        assert set(answer.content) == {"sums"}
        sums = Sums.model_validate_json(answer.content["sums"]["json"])
        assert {c.name for c in sums.columns} <= {"age", "chol", "pain"}


@pytest.mark.parametrize("lie", [{"total": 1e140}, {"squares": 1e300}, {"count": 2**52, "total": 1e20}])
def test_a_site_that_lies_about_its_numbers_is_not_believed(
    hospitals: Path, tmp_path: Path, lie: dict, caplog: pytest.LogCaptureFixture
) -> None:
    def spoilt(request: Message, answer: Message) -> Message:
        if request.metadata.message_type == "query.describe" and request.metadata.dst_node_id == 102:
            sums = json.loads(answer.content["sums"]["json"])
            sums["columns"][0] |= lie  # age, which is 50 to 65 in the mean, with a standard deviation of 9
            answer.content["sums"]["json"] = json.dumps(sums)
        return answer

    wire = federated(tmp_path, hospitals, "no, yes", "fedavg")
    wire.spoil = spoilt
    with caplog.at_level("WARNING", "flwr"):
        wire.run_server()
    (age, *_) = json.loads((tmp_path / "run" / "inputs.json").read_text())["columns"]
    assert 50 < age["mean"] < 65
    assert 8 < age["std"] < 15
    assert "switzerland: its numbers are left out of the statistics of age: far too large, or too many" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs heart-disease in ../shared/data or $FEDETF_TEST_DATA")
@pytest.mark.parametrize("model", ["auto", "factory"])
def test_heart_disease_at_four_hospitals(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if model == "factory":
        (tmp_path / "clinic.py").write_text(
            "from torch import nn\n\ndef encoder(shape):\n    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh())\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        model = "clinic:encoder"
    wire = federated(tmp_path, REAL, "disease, healthy", model=model, **{"trust-code": True})
    for node in wire.nodes.values():
        node["trust-code"] = True
    wire.run_server()
    assert_same_models(tmp_path, REAL)
