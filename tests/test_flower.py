"""The Flower apps give the serial simulator's bits, send no more than the method's upload, and survive bad sites."""

import json
from pathlib import Path

import pytest
from sites import SITES, Wire, assert_same_model, make_app

import fedetf
from fedetf.methods import METHODS


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedetf.flower.engine.PAUSE", 0.0)


def simulated(app: Path, out: Path) -> fedetf.Result:
    return fedetf.run(str(app / "settings.toml"), clients=len(SITES), engine="serial", out=out)


@pytest.mark.parametrize("method", METHODS)
def test_sites_give_the_bits_of_the_serial_simulator(method: str, tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", method)
    Wire(app, tmp_path / "kept", out=str(tmp_path / "run")).run_server()
    expected = simulated(app, tmp_path / "simulated")
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for name in ("general", "general_last5", "personal", "personal_per_client", "personal_curve", "bytes_up"):
        assert result[name] == expected.summary[name], name
