"""Passwords in addresses reach no file and no text; what is passed on names no folder of this machine."""

import logging
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import images

import fedetf
from fedetf import RunError, UserError
from fedetf.cli import main
from fedetf.config import resolve
from fedetf.core.state import load_checked
from fedetf.models.export import export
from fedetf.redact import bare, public_address, redacted, without_folders

SECRET = "hunter2"
CLUSTER, SERVER = f"ray://user:{SECRET}@127.0.0.1:1", f"http://user:{SECRET}@127.0.0.1:9"
SMALL = {"data.limit": 60, "data.test_limit": 20, "measure.tensorboard": False, "personal.enabled": False}
OPTIONS = {"model": "mlp", "clients": 2, "rounds": 1, "epochs": 1, "engine": "serial"}

in_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs fedetf[mlflow]")
in_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs fedetf[ray]")


def assert_nowhere(folder: Path, secret: str = SECRET) -> None:
    """Not one file below a folder holds it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MLflow does not try again and again."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    yield
    logging.getLogger("mlflow").handlers.clear()


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("ray://head:10001", "ray://head:10001"),
        ("ray://me:pass@head:10001", "ray://***@head:10001"),
        ("me:pass@head:6379", "***@head:6379"),
        ("http://me@mlflow/path", "http://***@mlflow/path"),
        ("http://me:p@ss/w'o rd@mlflow:5000/a", "http://***@mlflow:5000/a"),
        ("postgresql://h/db?user=me&password=pass&sslmode=require", "postgresql://h/db?user=***&password=***&sslmode=require"),
        ("https://h/?api_key=pass", "https://h/?api_key=***"),
        ("sqlite:////data/me@lab/mlflow.db", "sqlite:////data/me@lab/mlflow.db"),
        ("sqlite:///mlflow.db?timeout=5", "sqlite:///mlflow.db?timeout=5"),
        ("/data/me@lab/mlruns", "/data/me@lab/mlruns"),
        ("auto", "auto"),
    ],
)  # fmt: skip
def test_what_is_seen_of_an_address(address: str, shown: str) -> None:
    assert public_address(address) == shown
    assert public_address(shown) == shown


def test_texts_with_addresses_and_paths() -> None:
    text = "API request to http://me:pass@h:1/api failed; at 'ray://me:p@ss@head'; of me:pass@head:6379"
    assert redacted(text) == "API request to http://***@h:1/api failed; at 'ray://***@head'; of ***@head:6379"
    assert redacted("ask me@example.org at 10:30, m.py:Mine") == "ask me@example.org at 10:30, m.py:Mine"
    assert str(UserError(text)) == str(RunError(text)) == redacted(text)
    assert without_folders("--set 'data.name=\"/a/b/c\"' /d/e.toml f/g") == "--set 'data.name=\"c\"' e.toml f/g"
    assert (bare("/a/b"), bare("a/b"), bare("digits")) == ("b", "a/b", "digits")


def test_settings_keep_the_password_and_write_none() -> None:
    settings = resolve(None, {"engine.address": CLUSTER, "measure.mlflow": SERVER})
    assert (settings.engine.address, settings.measure.mlflow) == (CLUSTER, SERVER)
    assert 'address = "ray://***@127.0.0.1:1"' in settings.to_toml()
    assert 'mlflow = "http://***@127.0.0.1:9"' in settings.to_toml()
    assert SECRET not in repr(settings)
    with pytest.raises(UserError, match="got 'ray") as error:
        resolve(None, {"engine": CLUSTER})
    assert SECRET not in str(error.value)


def test_a_clusters_password_is_in_no_file_of_a_comparison(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    more = [f"--set={key}={value}" for key, value in {**SMALL, "engine.address": CLUSTER}.items()]
    flags = ["--model", "mlp", "--clients", "2", "--rounds", "1", "--epochs", "1", "--engine", "serial"]
    flags += [text.replace("False", "false") for text in more]
    assert main(["compare", "--methods", "fedavg", "--seeds", "7", "--no-references", *flags, "--out", "grid"]) == 0
    export("grid/fedavg-s7", "model.safetensors")
    assert main(["report", "grid", "--out", "page.html"]) == 0
    assert_nowhere(tmp_path)
    seen = capfd.readouterr()
    assert SECRET not in seen.out + seen.err


def test_a_page_leaves_out_what_older_folders_hold(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fedetf.compare(["fedavg"], [7], references=False, settings=SMALL, out="grid", **OPTIONS)
    config = Path("grid/fedavg-s7/config.toml")
    config.write_text(config.read_text().replace("[engine]", f'[engine]\naddress = "{CLUSTER}"'))
    Path("grid/command.txt").write_text(f"fedetf compare --methods fedavg --set engine.address={CLUSTER}\n")
    shutil.copytree("grid/fedavg-s7", "grid/failed")
    Path("grid/failed/result.json").unlink()
    Path("grid/failed/error.part").write_text(f"ValueError: no answer from {SERVER}/api\n")
    assert main(["report", "grid", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "no answer from http://***@127.0.0.1:9/api" in page
    assert SECRET not in page


@in_mlflow
@pytest.mark.slow
@pytest.mark.usefixtures("no_patience")
def test_mlflows_password_is_in_no_error(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--clients", "2", "--rounds", "1", "--epochs", "1", "--engine", "serial", "--set", "data.limit=60"]
    flags += ["--set", f"measure.mlflow={SERVER}"]
    assert main(["run", *flags, "--out", "run"]) == 2
    assert (
        main(["compare", "--methods", "fedavg,fedprox", "--seeds", "7", "--no-references", *flags, "--out", "grid"])
        == 1
    )
    seen = capfd.readouterr()
    assert "cannot log to MLflow at http://***@127.0.0.1:9" in seen.err
    assert SECRET not in seen.out + seen.err
    assert "***" in Path("grid/fedavg-s7/error.part").read_text()
    assert_nowhere(tmp_path)


@in_mlflow
@pytest.mark.usefixtures("no_patience")
def test_nor_in_the_exception_and_its_causes(tmp_path: Path) -> None:
    """What a notebook shows is the whole chain."""
    import traceback

    with pytest.raises(UserError) as error:
        fedetf.run(method="fedavg", settings={**SMALL, "measure.mlflow": SERVER}, **OPTIONS)
    assert SECRET not in "".join(traceback.format_exception(error.value))


def test_nor_in_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    from fedetf.runs.tracking import _warning_of

    def fails() -> None:
        with _warning_of("round 1 is not in MLflow yet"):
            raise OSError(f"no answer from {SERVER}")

    with pytest.warns(UserWarning, match=r"http://\*\*\*@127"):
        fails()


@in_ray
@pytest.mark.slow
@pytest.mark.parametrize("address", [f"user:{SECRET}@127.0.0.1:1", f"user:{SECRET}@[::1"])
def test_rays_password_is_in_no_error(address: str) -> None:
    with pytest.raises(UserError, match="no Ray cluster to work with at") as error:
        fedetf.run(**{**OPTIONS, "engine": "ray"}, settings={**SMALL, "engine.address": address})
    assert SECRET not in str(error.value)


# --- going on without the password ------------------------------------------------------------------------------------


def test_a_resumed_run_asks_for_the_address_again(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    settings = {**SMALL, "engine.address": CLUSTER}
    fedetf.run(method="fedavg", out=folder, settings=settings, **OPTIONS)
    config = folder / "config.toml"
    assert 'address = "ray://***@127.0.0.1:1"' in config.read_text()
    config.write_text(config.read_text().replace('name = "serial"', 'name = "ray"'))
    assert main(["resume", str(folder)]) == 2
    line = "error: ray://***@127.0.0.1:1 is on file without its password; give it again: --set engine.address="
    assert line in capsys.readouterr().err
    assert main(["resume", str(folder), "--engine", "serial"]) == 0


@in_mlflow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflows_address_can_be_given_again(tmp_path: Path, capsys) -> None:
    folder, store = tmp_path / "run", f"sqlite:///{tmp_path}/mlflow.db?password={SECRET}"
    fedetf.run(method="fedavg", out=folder, settings=SMALL, **OPTIONS)
    config = folder / "config.toml"
    config.write_text(f"{config.read_text()}mlflow = {public_address(store)!r}\n")
    assert main(["resume", str(folder)]) == 2
    assert "give it again: --set measure.mlflow=" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about its own dependencies
        assert main(["resume", str(folder), "--set", f"measure.mlflow=sqlite:///{tmp_path}/mlflow.db"]) == 0
    assert (folder / "mlflow-run.txt").is_file()
    assert_nowhere(folder)


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.usefixtures("open_umask")
def test_files_that_may_name_folders_are_for_their_owner(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import fedetf\nclass Fails(fedetf.Method):\n    def loss(self, client, batch): raise OSError('/data/me')\n"
    )
    methods = ["fedavg", f"{tmp_path}/fails.py:Fails"]
    comparison = fedetf.compare(methods, [7], references=False, settings=SMALL, out=tmp_path / "grid", **OPTIONS)
    assert len(comparison.failed) == 1
    run, failed = tmp_path / "grid" / "fedavg-s7", tmp_path / "grid" / "fails-s7"
    private = [run / "config.toml", run / "result.json", failed / "error.part", tmp_path / "grid" / "command.txt"]
    assert [mode(path) for path in private] == [0o600] * 4
    assert mode(run / "model.safetensors") == 0o644  # the umask's


def test_what_is_passed_on_names_no_folder_of_this_machine(
    tmp_path: Path, write_parquet: Callable[..., Path], monkeypatch
) -> None:
    labels = [str(k % 2) for k in range(40)]
    write_parquet("private/pictures/train.parquet", images(40), labels)
    write_parquet("private/pictures/test.parquet", images(40, seed=1), labels)
    (tmp_path / "private" / "mine.py").write_text("import fedetf\nclass Mine(fedetf.methods.FedAvg): pass\n")
    data, mine = f"{tmp_path}/private/pictures", f"{tmp_path}/private/mine.py:Mine"
    grid = tmp_path / "private" / "grid"
    fedetf.compare(["fedavg", mine], [7], references=False, settings=SMALL, dataset=data, out=grid, **OPTIONS)
    shutil.copytree(grid / "mine-s7", grid / "half")
    (grid / "half" / "result.json").unlink()
    assert f'name = "{data}"' in (grid / "mine-s7" / "config.toml").read_text()  # to go on with
    out = tmp_path / "out"
    assert main(["report", str(grid), "--out", str(out / "page.html")]) == 0
    export(grid / "fedavg-s7", out / "model.safetensors")
    assert load_checked(out / "model.safetensors")[0]["dataset"] == "pictures"
    assert load_checked(grid / "fedavg-s7" / "model.safetensors")[0]["dataset"] == "pictures"
    assert_nowhere(out, str(tmp_path))
    page = (out / "page.html").read_text()
    assert "fedetf run fedavg-s7/config.toml --out fedavg-s7-again" in page
    assert "fedetf run mine-s7/config.toml --trust-code" in page
    assert "fedetf resume half" in page
    card = export(grid / "mine-s7", out / "mine.safetensors", trust_code=True)
    assert card.read_text().startswith("# mine.py:Mine on pictures")
    assert str(tmp_path) not in card.read_text()
    about = load_checked(out / "mine.safetensors")[0]["settings"]
    assert about["method"]["name"] == mine  # the one path that stays: it says where the code is
