"""Four hospitals with tables of their own, as real processes: what a run within one process cannot show.

That is: the app is packed, sent and unpacked; each site and the server import an encoder of their own in processes
that share nothing with each other; and the statistics of the columns come by way of the network.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deployment import Deployment, wait_for
from hospitals import HOSPITALS, REAL, SETTINGS, assert_as_simulated, assert_same_personal, write_hospitals

from fedetf.flower.new import new_app

ENCODER = "from torch import nn\n\ndef small(shape):\n    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh())\n"


@pytest.fixture
def hospitals(tmp_path: Path) -> Iterator[Deployment]:
    """The heart-disease files where they are present, else made ones; each site has a package with an encoder."""
    if REAL.is_dir():
        (tmp_path / "data").symlink_to(REAL.resolve())
    else:
        write_hospitals(tmp_path / "data")
    package = tmp_path / "installed" / "clinic"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "encoders.py").write_text(ENCODER)
    with closing(Deployment(tmp_path, HOSPITALS, ".csv", "trust-code=true", str(package.parent))) as started:
        yield started


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds its processes in /proc")
@pytest.mark.timeout(900)
def test_hospitals_as_real_processes(hospitals: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "installed")  # for the simulator
    hospitals.start_link()
    hospitals.join()
    wait_for(hospitals.joined, "the hospitals")
    for name, model in (("tables", "auto"), ("factory", "clinic.encoders:small")):
        make_app(tmp_path / name, tmp_path / f"run-{name}", model)
        hospitals.flwr("run", name)
        wait_for((tmp_path / f"run-{name}" / "result.json").exists, name)
        expected = assert_as_simulated(tmp_path, tmp_path / "data", tmp_path / name, tmp_path / f"run-{name}")
        if name == "tables":
            assert_same_personal(tmp_path, tmp_path / "data" / "cleveland.csv", tmp_path / f"run-{name}", expected)


def make_app(folder: Path, out: Path, model: str) -> None:
    """Each message starts a process at a site, so the second training is one round without the personal stage."""
    new_app(folder, HOSPITALS)
    settings = SETTINGS.format(method="fedetf", model=model, fit="shared")
    if model != "auto":
        settings = settings.replace("[personal]\nrounds = 1", "[personal]\nenabled = false")
        settings = settings.replace("rounds = 2", "rounds = 1")
    (folder / "settings.toml").write_text(settings)
    config = (folder / "pyproject.toml").read_text()
    classes = "disease, healthy" if REAL.is_dir() else "no, yes"
    told = {
        'classes = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"': f'classes = "{classes}"',
        'shape = "1x8x8"': 'shape = ""',
        'test = "digits"': 'test = ""',
        'out = "run"': f'out = "{out}"',
        "trust-code = false": "trust-code = true",
    }
    for old, new in told.items():
        assert old in config
        config = config.replace(old, new)
    (folder / "pyproject.toml").write_text(config)
