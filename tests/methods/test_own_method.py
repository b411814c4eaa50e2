"""Your own method: from a class, a file, or an installed package."""

import json
import runpy
import sys
from pathlib import Path

import pytest

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.methods import METHODS, find_method

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
SMALL = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--set", "data.limit=100"]


def test_the_example_is_short_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(lines) <= 30
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "general" in capsys.readouterr().out


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *SMALL, "--method", f"{EXAMPLE}:Smooth", "--set", "method.smoothing=0.2"]) == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("digits-own_method.py-Smooth-s7-")
    assert "smoothing = 0.2" in (folder / "config.toml").read_text()
    assert main(["run", str(folder / "config.toml"), "--out", "again", "--trust-code"]) == 0
    assert Path("again/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_as_a_class_with_its_numbers_checked() -> None:
    class Mine(fedetf.Method):
        """FedAvg by another name."""

        strength: float = 1.0

    assert Mine.name == "mine"
    options = {"clients": 3, "rounds": 1, "epochs": 1}
    result = fedetf.run(method=Mine, settings={"data.limit": 100, "method.strength": 2.0}, **options)
    assert result.job.method.strength == 2.0
    plain = fedetf.run(method="fedavg", settings={"data.limit": 100}, **options)
    assert result.general == plain.general
    with pytest.raises(UserError, match=r"unknown setting 'method\.strenth'; did you mean 'strength'"):
        fedetf.run(method=Mine, settings={"method.strenth": 2.0})


def test_from_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a package's metadata names under ``fedetf.methods`` is found by that name."""
    (tmp_path / "their_package.py").write_text("import fedetf\n\nclass Theirs(fedetf.Method):\n    pass\n")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedetf.methods]\ntheirs = their_package:Theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_method("theirs").__name__ == "Theirs"
    sys.modules.pop("their_package")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no file"),
        ("x = (", "cannot be imported: SyntaxError"),
        ("import nosuchpackage", "cannot be imported: ModuleNotFoundError"),
        ("Name = 3", "is not a subclass of fedetf.Method"),
        ("", "there is no 'Name' in"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
        ("raise ValueError('one\\ntwo')", "cannot be imported: ValueError: one"),
        ("import fedetf\nclass Name(fedetf.Method):\n    smoothing = 0.1", "cannot be imported: PydanticUserError"),
    ],
)
def test_files_that_do_not_hold_a_method(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.py"
    if text is not None:
        path.write_text(text)
    assert main(["run", "--method", f"{path}:Name"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_json_of_the_list_has_no_own_methods(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods", "--json"])
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(METHODS)
