"""Code that a file names runs only by consent; what the user types is consent."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from pydantic import ValidationError

import fedetf
from fedetf import RunError, UserError
from fedetf.cli import main
from fedetf.config import resolve
from fedetf.core.state import load_checked, save_state
from fedetf.methods import METHODS
from fedetf.models.export import export
from fedetf.settings import Settings

if TYPE_CHECKING:
    from sites import Wire

SMALL = {"data.limit": 60, "data.test_limit": 20, "measure.tensorboard": False, "personal.enabled": False}
OPTIONS = {"method": "fedavg", "model": "mlp", "clients": 2, "rounds": 1, "epochs": 1, "settings": SMALL}
FLAGS = ["--dataset", "digits", "--clients", "2", "--rounds", "1", "--epochs", "1", "--set", "data.limit=60"]


class Stranger:
    """A file of Python that leaves a mark when it is imported: a method, and a function that makes an encoder."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.file, self._mark = folder / "stranger.py", folder / "it-ran"
        lines = ["import fedetf, pathlib", "from torch import nn", f"pathlib.Path({str(self._mark)!r}).touch()"]
        lines += ["class M(fedetf.methods.FedAvg): pass", "def encoder(): return nn.Sequential(nn.Flatten())"]
        self.file.write_text("\n".join(lines))
        self.method, self.model = f"{self.file}:M", f"{self.file}:encoder"

    @property
    def ran(self) -> bool:
        return self._mark.exists()


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "strange")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run, from beginning to end."""
    folder = tmp_path_factory.mktemp("done") / "run"
    fedetf.run(out=folder, engine="serial", **OPTIONS)
    return folder


@pytest.fixture
def planted(done: Path, stranger: Stranger, tmp_path: Path) -> Path:
    """The same run as a stranger passes it on: its settings name the stranger's method."""
    folder = tmp_path / "planted"
    shutil.copytree(done, folder)
    config = (folder / "config.toml").read_text()
    assert 'name = "fedavg"' in config
    (folder / "config.toml").write_text(config.replace('name = "fedavg"', f'name = "{stranger.method}"'))
    return folder


def refused(
    command: list[str], name: str, stranger: Stranger, capsys: pytest.CaptureFixture[str], status: int = 2
) -> None:
    """One line that says what would have run and how to agree to it."""
    capsys.readouterr()
    assert main(command) == status
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert name in line
    assert "--trust-code" in line
    assert not stranger.ran


@pytest.mark.parametrize(
    "command",
    [
        lambda folder, tmp: ["predict", str(folder), str(tmp / "image.png")],
        lambda folder, tmp: ["export", str(folder), "--to", str(tmp / "exported.safetensors")],
        lambda folder, tmp: ["resume", str(folder), "--engine", "serial"],
        lambda folder, tmp: ["run", str(folder / "config.toml"), "--out", str(tmp / "out"), "--engine", "serial"],
    ],
    ids=["predict", "export", "resume", "run"],
)
def test_a_strangers_run_folder_runs_nothing(
    command: Callable[[Path, Path], list[str]], planted: Path, stranger: Stranger, tmp_path: Path, capsys
) -> None:
    from PIL import Image

    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    refused(command(planted, tmp_path), stranger.method, stranger, capsys)
    assert not (tmp_path / "exported.safetensors").exists()
    assert not (tmp_path / "out").exists()
    assert main([*command(planted, tmp_path), "--trust-code"]) == 0
    assert stranger.ran


@pytest.mark.parametrize("command", ["compare", "diagnose", "partition"])
def test_a_strangers_settings_file_runs_nothing(command: str, stranger: Stranger, tmp_path: Path, capsys) -> None:
    file = tmp_path / "theirs.toml"
    file.write_text(f'[model]\nname = "{stranger.model}"\n')
    more = {"compare": ["--methods", "fedavg", "--seeds", "7"], "diagnose": ["--seeds", "7,8"], "partition": []}[
        command
    ]
    out = [] if command == "diagnose" else ["--out", str(tmp_path / "out")]
    refused([command, str(file), *more, *out], stranger.model, stranger, capsys)
    assert not (tmp_path / "out").exists()


def test_a_comparison_by_consent_says_so_in_the_command_that_repeats_it(stranger: Stranger, tmp_path: Path) -> None:
    file = tmp_path / "theirs.toml"
    file.write_text(f'[model]\nname = "{stranger.model}"\n')
    flags = [*FLAGS, "--out", str(tmp_path / "grid"), "--engine", "serial", "--trust-code"]
    assert main(["compare", str(file), "--methods", "fedavg", "--seeds", "7", "--no-references", *flags]) == 0
    assert stranger.ran
    assert "--trust-code" in (tmp_path / "grid" / "command.txt").read_text()
    page = (tmp_path / "grid" / "report.html").read_text()
    assert "fedavg-s7/config.toml --trust-code" in page


def test_in_python(planted: Path, stranger: Stranger, tmp_path: Path) -> None:
    for call in (
        lambda **trust: fedetf.load(planted, **trust),
        lambda **trust: export(planted, tmp_path / "model.safetensors", **trust),
        lambda **trust: fedetf.resume(planted, engine="serial", **trust),
        lambda **trust: fedetf.run(str(planted / "config.toml"), engine="serial", **trust),
    ):
        with pytest.raises(UserError, match=r"would run code .*stranger\.py:M.*trust_code=True"):
            call()
        assert not stranger.ran
    assert fedetf.load(planted, trust_code=True).classes[0] == "0"
    assert stranger.ran


def test_a_lone_model_file_runs_nothing(done: Path, stranger: Stranger, tmp_path: Path, capsys) -> None:
    file = tmp_path / "model.safetensors"
    export(done, file)
    about, state = load_checked(file)
    about["settings"]["model"]["name"] = stranger.model
    save_state(state, file, about)
    refused(["predict", str(file), "image.png"], stranger.model, stranger, capsys)
    with pytest.raises(UserError, match="would run code"):
        fedetf.load(file)
    assert not stranger.ran
    with pytest.raises(UserError, match="does not fit the encoder"):  # it is not the one that was trained
        fedetf.load(file, trust_code=True)
    assert stranger.ran


@pytest.mark.slow
def test_any_importable_name_in_a_model_file_is_refused(done: Path, tmp_path: Path) -> None:
    """What ended the process: ``os:abort`` needs no file of the stranger's own."""
    file = tmp_path / "model.safetensors"
    export(done, file)
    about, state = load_checked(file)
    about["settings"]["model"]["name"] = "os:abort"
    save_state(state, file, about)
    code = f"import fedetf; fedetf.load({str(file)!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "UserError" in ended.stderr
    assert "os:abort" in ended.stderr


def test_what_is_typed_is_consent_and_wins_over_the_file(planted: Path, stranger: Stranger, tmp_path: Path) -> None:
    config = str(planted / "config.toml")
    assert main(["run", config, "--method", "fedavg", "--out", str(tmp_path / "a"), "--engine", "serial"]) == 0
    assert not stranger.ran
    assert main(["run", *FLAGS, "--method", stranger.method, "--out", str(tmp_path / "b"), "--engine", "serial"]) == 0
    assert stranger.ran


def test_an_object_at_hand_is_used_instead_of_the_name(planted: Path, stranger: Stranger, done: Path) -> None:
    x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    model = fedetf.load(planted, method=METHODS["fedavg"])
    assert torch.equal(model(x), fedetf.load(done)(x))
    assert not stranger.ran


def test_going_on_with_a_comparison_runs_only_what_was_typed(stranger: Stranger, tmp_path: Path) -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "method"}
    fedetf.compare(["fedavg"], [7], references=False, out=tmp_path / "grid", engine="serial", **options)
    config = tmp_path / "grid" / "fedavg-s7" / "config.toml"
    config.write_text(config.read_text().replace('name = "fedavg"', f'name = "{stranger.method}"'))
    with pytest.raises(UserError, match="holds a run with other settings"):
        fedetf.compare(["fedavg"], [7], references=False, out=tmp_path / "grid", engine="serial", **options)
    assert not stranger.ran


def test_a_report_runs_nothing(planted: Path, stranger: Stranger, tmp_path: Path) -> None:
    assert main(["report", str(planted), "--out", str(tmp_path / "page.html")]) == 0
    assert not stranger.ran


def test_settings_that_ask_for_code_cannot_come_into_being_unasked() -> None:
    with pytest.raises(ValidationError, match=r"would run code .*a\.py:B"):
        Settings.model_validate({"method": {"name": "a.py:B"}})


@pytest.mark.parametrize("key", ["data.name", "data.partition"])
def test_data_and_partition_of_a_strangers_settings_file(key: str, stranger: Stranger, tmp_path: Path, capsys) -> None:
    file, out = tmp_path / "theirs.toml", str(tmp_path / "out")
    file.write_text(f'{key} = "{stranger.method}"\n')
    for command in (["run"], ["partition"], ["compare", "--methods", "fedavg", "--seeds", "7"]):
        refused([*command[:1], str(file), *command[1:], "--out", out], f"{key} = '{stranger.method}'", stranger, capsys)
    assert main(["partition", str(file), "--out", out, "--trust-code"]) == 2  # a class of another kind: it was called
    assert stranger.ran


def test_a_name_of_data_is_code_only_if_it_can_be(
    planted: Path, stranger: Stranger, tmp_path: Path, monkeypatch
) -> None:
    """A path may hold a colon: such a folder is data, whoever names it, and is neither asked about nor imported."""
    monkeypatch.chdir(tmp_path)
    for name in ("os:abort", str(stranger.method)):
        with pytest.raises(ValidationError, match="would run code"):
            Settings.model_validate({"data": {"name": name}})
    for name in ("/data/12:30/images", "C:/images", "owner/images:v2", "http://example.org/images"):
        assert Settings.model_validate({"data": {"name": name}}).data.name == name
    Path("os:abort").mkdir()
    assert Settings.model_validate({"data": {"name": "os:abort"}}).data.name == "os:abort"
    with pytest.raises(UserError, match=r"os:abort has neither \*\.parquet or"):
        fedetf.run(dataset="os:abort")


def test_a_model_in_use_asks_for_no_data(done: Path, stranger: Stranger, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    config = (folder / "config.toml").read_text()
    assert 'partition = "dirichlet"' in config
    config = config.replace('partition = "dirichlet"', f'partition = "{stranger.method}"')
    (folder / "config.toml").write_text(config)
    assert fedetf.load(folder).classes[0] == "0"
    with pytest.raises(UserError, match=r"data\.partition"):
        fedetf.resume(folder, engine="serial")
    assert not stranger.ran


def test_a_ray_cluster_that_a_file_names_needs_consent_too(planted: Path, done: Path, tmp_path: Path) -> None:
    """Ray's driver and cluster exchange pickles: who chooses the cluster chooses code."""
    file = tmp_path / "theirs.toml"
    file.write_text('[engine]\nname = "ray"\naddress = "ray://theirs:10001"\n')
    with pytest.raises(UserError, match=r"engine\.address = 'ray://theirs:10001'"):
        resolve(str(file))
    file.write_text(file.read_text().replace("theirs", "me:pass@theirs"))  # what is hidden is asked for all the same
    with pytest.raises(UserError, match=r"engine\.address = 'ray://\*\*\*@theirs:10001'"):
        resolve(str(file))
    file.write_text(file.read_text().replace("me:pass@", ""))
    assert resolve(str(file), {"engine.address": "ray://mine:10001"}).engine.address == "ray://mine:10001"
    assert resolve(str(file), {"engine.name": "serial"}).engine.name == "serial"  # then it is connected to nothing
    assert resolve(str(file), trust_code=True).engine.address == "ray://theirs:10001"
    folder = tmp_path / "ray"
    shutil.copytree(done, folder)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(
        config.replace('[engine]\nname = "serial"', '[engine]\nname = "ray"\naddress = "theirs:6379"')
    )
    with pytest.raises(UserError, match=r"engine\.address = 'theirs:6379'"):
        fedetf.resume(folder)
    assert fedetf.load(folder).classes[0] == "0"  # a model in use has no engine


def test_a_resumed_run_takes_where_it_runs_but_nothing_that_decides_it(done: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "again"
    shutil.copytree(done, folder)
    assert main(["resume", str(folder), "--set", "train.lr=0.5"]) == 2
    assert "train.lr belongs to the run and stays" in capsys.readouterr().err
    assert main(["resume", str(folder), "--set", "engine.name=serial"]) == 0


# --- Flower -----------------------------------------------------------------------------------------------------------


def federation(tmp_path: Path, stranger: Stranger, server: bool, sites: bool) -> "Wire":
    """Three sites and a server in this process; who of them trusts code is theirs to say."""
    pytest.importorskip("flwr")
    from sites import Wire, make_app

    app = make_app(tmp_path / "app", method=stranger.method, rounds=1, model="mlp", limit=60)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"), join=0.1, **{"trust-code": server})
    for node in wire.nodes.values():
        node["trust-code"] = sites  # type: ignore[assignment]  # as Flower reads --node-config: of any plain type
    return wire


def test_a_server_app_runs_nothing_that_its_settings_name(stranger: Stranger, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"settings\.toml would run code .*stranger\.py:M.*trust-code=true"):
        federation(tmp_path, stranger, server=False, sites=True).run_server()
    assert not stranger.ran
    assert not (tmp_path / "run").exists()


def test_a_site_decides_for_itself(stranger: Stranger, tmp_path: Path, caplog, monkeypatch) -> None:
    """The server's settings and its own consent do not make a site import anything."""
    monkeypatch.setattr("fedetf.flower.engine.PAUSE", 0.0)
    wire = federation(tmp_path, stranger, server=True, sites=False)
    with pytest.raises(RunError, match="the step failed"):
        wire.run_server()
    assert len(wire.answers) == 3
    assert all(answer.has_error() for answer in wire.answers)
    assert caplog.text.count("would run code") >= 3


def test_by_consent_of_all_the_federation_runs(stranger: Stranger, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedetf.flower.engine.PAUSE", 0.0)
    federation(tmp_path, stranger, server=True, sites=True).run_server()
    assert stranger.ran
    assert (tmp_path / "run" / "result.json").is_file()
