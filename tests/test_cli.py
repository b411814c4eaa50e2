"""The command line: what a user types, what comes back, and with which status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import images

from fedetf.cli import main
from fedetf.methods import METHODS

QUICK = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--set", "data.limit=150"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


def test_run_ends_with_a_table_and_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--method", "fedavg", "--out", "runs/a"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(Path("runs/a/result.json").read_text())
    assert f"{100 * result['general']:.1f} %" in out
    assert f"{100 * result['personal']:.1f} %" in out
    assert "files: runs/a" in out
    assert "round 1/1" in err
    assert "personal models 3/3" in err


def test_a_run_names_who_is_below_the_majority(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that stay at their first values are right at random; on two shards a constant answer is right half."""
    frozen = ["--clients", "5", "--set", "train.lr=0", "--set", "data.partition=shards", "--set", "data.shards=2"]
    assert main(["run", *QUICK, "--method", "fedavg", *frozen, "--set", "personal.enabled=false", "--out", "r"]) == 0
    result = json.loads(Path("r/result.json").read_text())
    pairs = list(zip(result["per_client"]["general"]["accuracy"], result["majority_per_client"], strict=True))
    low = [f"client {k}" for k, (value, majority) in enumerate(pairs) if value < majority]
    assert low
    said = "the global model does worse than always answering the client's most frequent training class, at "
    assert said + ", ".join(low) + "\n" in capsys.readouterr().out


def test_run_alone_chooses_a_folder() -> None:
    assert main(["run", *QUICK, "--seed", "5"]) == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("digits-fedetf-s5-")


def test_flags_file_and_set_reach_the_settings() -> None:
    Path("mine.toml").write_text("[train]\nlr = 0.5\n[data]\nclients = 9\n")
    flags = ["--method", "fedavg", "--model", "mlp", "--alpha", "0.3", "--participation", "0.5", "--seed", "4"]
    more = ["--device", "cpu", "--engine", "serial", "--workers", "1", "--set", "train.momentum=0", "--out", "r"]
    assert main(["run", "mine.toml", *QUICK, *flags, *more]) == 0
    text = Path("r/config.toml").read_text()
    for line in ("lr = 0.5", "clients = 3", 'name = "mlp"', "alpha = 0.3", "participation = 0.5", "momentum = 0.0"):
        assert line in text


@pytest.mark.filterwarnings("default")
def test_extreme_skew_warns_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--alpha", "0.01", "--clients", "50", "--out", "p"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: ")
    assert err.count("\n") == 1
    sizes = [len(c["train"]) for c in json.loads(Path("p/partition.json").read_text())["clients"]]
    assert min(sizes) > 0


def test_partition_shows_a_table_and_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--clients", "4", "--alpha", "0.1", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert "4 clients, alpha = 0.1, seed 1" in out
    (folder,) = Path("runs").iterdir()
    assert (folder / "partition.png").read_bytes().startswith(b"\x89PNG")
    assert f"picture: {folder / 'partition.png'}" in out


def test_where_each_file_is_a_site_alpha_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clinics").mkdir()
    for name in ("north", "south"):
        rows = [f"{age},{'sick' if age > 60 else 'healthy'}" for age in range(40, 80)]
        Path(f"clinics/{name}.csv").write_text("\n".join(["age,label", *rows]))
    assert main(["partition", "--dataset", "clinics", "--out", "p"]) == 0
    out = capsys.readouterr().out
    assert "clinics, 2 clients, one for each site, seed 7" in out
    assert "alpha" not in out


# --- list -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["methods", "models", "datasets", "partitions", "presets", "settings"])
def test_lists(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    plain = capsys.readouterr().out
    assert main(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 2
    assert all(next(iter(row.values())) in plain for row in rows)


def test_transforms_are_listed_by_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "transforms", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["update.top_k", "update.bits"]


def test_all_models_are_listed_with_their_counts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "models", "--json"])
    rows = {row["name"]: row["parameters"] for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() >= {
        "cnn",
        "mlp",
        "resnet20",
        "wrn56_4",
        "densenet121",
        "mobilenetv2",
        "efficientnet_b0",
        "vgg11",
    }
    assert rows["resnet18"] == 11_173_962 - 5130  # kuangliu's, less the 10-class head
    assert all(isinstance(count, int) and count > 0 for count in rows.values())


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--method", "nope"], "unknown method 'nope'; choose from: apfl, ccvr, ditto, fedala"),
        (["run", "--method", "smooth.py"], "does not say which method of the file; give --method smooth.py:NAME"),
        (["run", "--method", "fedevg"], "did you mean 'fedavg'?"),
        (["run", "--model", "nope"], "unknown model 'nope'"),
        (["run", "--alpha", "0"], "data.alpha"),
        (["run", "--alpha", "nan"], "data.alpha"),
        (["run", "--alpha", "inf"], "data.alpha"),
        (["run", "--alpha", "-1"], "data.alpha"),
        (["run", "--clients", "0"], "data.clients"),
        (["run", "--clients", "many"], "--clients: invalid int value: 'many'"),
        (["run", "--clients", "1000"], "cannot give 1000 clients 4 each"),
        (["run", "--rounds", "-1"], "train.rounds"),
        (["run", "--rounds", "0"], "train.rounds"),
        (["run", "--epochs", "0"], "train.epochs"),
        (["run", "--participation", "0"], "train.participation"),
        (["run", "--participation", "1.5"], "train.participation"),
        (["run", "--seed", "-1"], "seed"),
        (["run", "--engine", "warp"], "engine.name"),
        (["run", "--workers", "0"], "engine.workers"),
        (["run", "--device", "warp"], "device 'warp' is not available"),
        (["run", "--set", "nosuch.key=1"], "unknown setting 'nosuch'"),
        (["run", "--set", "method.mu=1"], "unknown setting 'method.mu'; method has: balanced, beta"),
        (["run", "--set", "method.dim=3"], "needs dim >= 9"),
        (["run", "--set", "nonsense"], "key.path=value"),
        (["run", "--dataset", "nope"], "unknown dataset 'nope'"),
        (["run", "--dataset", "no/such"], "is neither in $FEDETF_DATA nor in the cache"),
        (["run", "--dataset", "./nope"], "is not a folder"),
        (["run", "nope"], "unknown preset 'nope'"),
        (["run", "--out", ""], "the folder's name is empty"),
        (["run", "--set", "train.ruonds=3"], "unknown setting 'train.ruonds'; did you mean 'rounds'?"),
        (["run", "--method", "fedavg", "--set", "method.gamma=2"], "method has: no settings of its own"),
        (["run", "--nope"], "unrecognized arguments: --nope"),
        (["partition", "--clients", "0"], "data.clients"),
        (["list", "nope"], "invalid choice: 'nope'"),
        ([], "required"),
        (["nope"], "invalid choice: 'nope'"),
    ],
)
def test_bad_input_is_one_error_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(Path().iterdir()) == []  # nothing half-written


def test_parquet_file_cut_in_half(write_parquet, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_parquet("data/train.parquet", images(20), [0, 1] * 10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["run", "--dataset", str(path.parent), "--out", "r"]) == 2
    assert "is not a whole Parquet file" in capsys.readouterr().err
    assert not Path("r").exists()


def test_existing_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r").mkdir()
    Path("r/mine").write_text("precious")
    assert main(["run", *QUICK, "--out", "r"]) == 2
    assert "r exists already and is not overwritten" in capsys.readouterr().err
    assert [p.name for p in Path("r").iterdir()] == ["mine"]
    assert main(["partition", "--clients", "3", "--out", "r"]) == 2


def test_a_run_that_diverges_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--method", "fedavg", "--set", "train.lr=1e30", "--epochs", "3", "--out", "r"]) == 1
    err = capsys.readouterr().err
    assert "error: round 1: every update was refused" in err
    assert "Traceback" not in err


# --- as a process ---------------------------------------------------------------------------------------------------


def fedetf(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedetf", *arguments], capture_output=True, text=True, **options)


@pytest.mark.parametrize("command", [[], ["run"], ["partition"], ["list"]])
def test_help_has_an_example_and_does_not_wait_for_torch(command: list[str]) -> None:
    code = (
        "import sys\nfrom fedetf.cli import main\n"
        f"try:\n    main({[*command, '--help']!r})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "slow = {'torch', 'numpy', 'pydantic', 'datasets', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "example: fedetf" in done.stdout


@pytest.mark.slow
def test_module_and_exit_status() -> None:
    assert fedetf("list", "presets").returncode == 0
    assert fedetf("run", "--alpha", "0").returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["list settings", "list settings --json", "partition --clients 300 --set data.partition=iid"]
)
def test_output_into_a_closed_pipe(command: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m fedetf {command} | head -1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("fedetf 0.")


def test_the_list_of_methods_is_that_of_the_classes_and_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom fedetf.cli import main\nmain(['list', 'methods', '--json'])\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    listed = [(row["name"], row["description"], row["citation"]) for row in rows]
    assert listed == [(name, method.summary, method.citation) for name, method in METHODS.items()]
    said = [(row["family"], row["extra_passes"], row["suggested_rate"]) for row in rows]
    assert said == [(method.family, method.extra_passes, method.suggested_rate) for method in METHODS.values()]
    assert all(isinstance(row["extra_bytes_up"], int) and isinstance(row["client_state"], list) for row in rows)
    assert len(rows) >= 32


def test_the_list_of_methods_as_people_read_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", "methods"]) == 0
    lines = {
        line.split()[0]: " ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line[:1] != " "
    }
    assert lines["name"] == "name description family extra passes extra bytes client keeps rate"
    assert lines["spherefed"].endswith("fixed classifier 0 -2,600 down, -2,600 up, 37,968 in the end × 55")
    assert lines["apfl"].endswith("personal 3 +0 down, +0 up v, alpha × 1")
