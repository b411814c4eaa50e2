"""A package that is not fedetf's brings one of each kind by entry points; and the same from a file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.config import resolve
from fedetf.data.deals import registry as partitions
from fedetf.data.partition import make_partition
from fedetf.methods import registry as methods
from fedetf.nn.encoders import own_encoder
from fedetf.plugins import Registry
from fedetf.settings import DataSettings

CODE = '''
"""One of each kind."""

import math

import numpy as np
import torch
from torch import nn

import fedetf
from fedetf.data import Dataset, Samples
from fedetf.metrics import Metric


class Unbiased(fedetf.Method):
    """FedAvg whose head has no bias."""

    strength: float = 1.0

    def build(self, *arguments):
        net = super().build(*arguments)
        net.head.bias = None
        return net


def seven(shape):
    """Seven features of anything."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 7), nn.Tanh())


def corners(settings, seed):
    """Three classes at the corners of a triangle."""
    y = torch.arange(120) % 3
    x = torch.eye(3)[y] + 0.1 * torch.randn(120, 3, generator=torch.Generator().manual_seed(seed))
    return Dataset(Samples(x[:90], y[:90]), Samples(x[90:], y[90:]), ["a", "b", "c"])


def in_order(labels, settings, rng):
    """The first samples to the first client."""
    return np.array_split(np.arange(len(labels)), settings.clients)


class Sure(Metric):
    """How sure the model is on average."""

    def part(self, seen):
        return {"sum": seen.logits.softmax(1).amax(1).sum(), "count": torch.tensor(len(seen.y))}

    def value(self, sums):
        return {"sure": float(sums["sum"] / sums["count"])}


class Halves:
    """Numbers of half the size."""

    def encode(self, update):
        return {name: tensor.half() for name, tensor in update.items()}

    def decode(self, sent, shapes):
        return {name: sent[name].float().reshape(shape) for name, shape in shapes.items()}

    def shapes(self, shapes):
        return shapes


number = 3
'''
# What the package brings: entry points by what `fedetf list` calls the kind. A further kind (a metric, a transform) is
# a line here, a function or class above, and a flag in USED.
BRINGS = {
    "methods": ("fedetf.methods", "unbiased", "Unbiased", "FedAvg whose head has no bias"),
    "models": ("fedetf.encoders", "seven", "seven", "Seven features of anything"),
    "datasets": ("fedetf.datasets", "corners", "corners", "Three classes at the corners of a triangle"),
    "partitions": ("fedetf.partitions", "in-order", "in_order", "The first samples to the first client"),
    "metrics": ("fedetf.metrics", "sure", "Sure", "How sure the model is on average"),
    "transforms": ("fedetf.transforms", "halves", "Halves", "Numbers of half the size"),
}
USED = ["--method", "unbiased", "--model", "seven", "--dataset", "corners", "--set", "data.partition=in-order"]
USED += ["--set", "update.transform=halves", "--set", 'measure.metrics=["sure"]']
SMALL = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--set", "method.strength=2.0"]


def entry_points() -> str:
    """Each kind, sound and broken: of a module that is not there, and of what is no such thing."""
    groups = [
        f'[project.entry-points."{group}"]\n{name} = "one_of_each:{thing}"\n'
        'absent = "no_such_module:thing"\nnumber = "one_of_each:number"\n'
        for group, name, thing, _ in BRINGS.values()
    ]
    return "\n".join(groups)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built and installed by pip into a folder of its own."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "one_of_each.py").write_text(CODE)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "one-of-each"\nversion = "1.0"\n'
        f'[tool.setuptools]\npy-modules = ["one_of_each"]\n{entry_points()}'
    )
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be imported in this process."""
    monkeypatch.syspath_prepend(str(site))
    for name in ("one_of_each", "no_such_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def python(site: Path, *words: str) -> str:
    """``python …`` in a process that finds the package; what it prints."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    whole, environment = [sys.executable, *words], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_everything_of_a_package_is_listed(site: Path) -> None:
    code = (
        "import sys\nfrom fedetf.cli import main\nfor what in sys.argv[1:]: assert main(['list', what, '--json']) == 0"
    )
    rest, decoder = python(site, "-c", code, *BRINGS), json.JSONDecoder()
    for _, name, _, description in BRINGS.values():
        listed, end = decoder.raw_decode(rest)
        rest, rows = rest[end:].lstrip(), {row["name"]: row for row in listed}
        assert rows[name]["package"] == "one-of-each"
        assert rows[name]["description"] == description
        assert rows[name]["error"] is None
        assert "cannot be imported: ModuleNotFoundError" in rows["absent"]["error"]
        assert "the package one-of-each is not a" in rows["number"]["error"]
        assert {row["package"] for row in rows.values()} == {"fedetf", "one-of-each"}


@pytest.mark.slow
def test_everything_of_a_package_is_used_on_worker_processes_too(site: Path, tmp_path: Path) -> None:
    engines = {"serial": ["--engine", "serial"], "processes": ["--engine", "processes", "--workers", "2"]}
    for engine, flags in engines.items():
        python(site, "-m", "fedetf", "run", *USED, *SMALL, *flags, "--out", str(tmp_path / engine))
    folder = tmp_path / "processes"
    assert resolve(str(folder / "config.toml")).method.model_dump() == {"name": "unbiased", "strength": 2.0}
    tensors = load_file(folder / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert shapes == {"encoder.1.weight": (7, 3), "encoder.1.bias": (7,), "head.weight": (3, 7)}  # and no head.bias
    held = json.loads((folder / "partition.json").read_text())
    assert held["classes"] == ["a", "b", "c"]
    dealt = [sorted(client["train"] + client["test"]) for client in held["clients"]]
    assert dealt == [list(range(30)), list(range(30, 60)), list(range(60, 90))]
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "serial" / "model.safetensors").read_bytes()
    config = str(tmp_path / "serial" / "config.toml")  # no consent is needed: the package was installed
    python(site, "-m", "fedetf", "run", config, "--engine", "serial", "--out", str(tmp_path / "again"))
    assert (tmp_path / "again" / "result.json").is_file()


def test_a_table_names_the_package_only_where_there_is_one(installed: None, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", "partitions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "description", "package"]
    assert [line.split()[-1] for line in lines[1:4]] == ["fedetf"] * 3
    assert any(line.startswith("absent") and "broken: " in line for line in lines)
    assert main(["list", "presets"]) == 0
    assert "package" not in capsys.readouterr().out.splitlines()[0]


def test_settings_of_an_installed_method_are_listed(installed: None, capsys: Any) -> None:
    assert main(["list", "settings", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["default"] for row in rows if row["setting"] == "method.strength"] == ["1.0"]


@pytest.mark.parametrize(
    "flags",
    [["--method", "absent"], ["--model", "absent"], ["--dataset", "absent"], ["--set", "data.partition=absent"]],
)
def test_a_broken_one_is_one_line(flags: list[str], installed: None, capsys: Any, tmp_path: Path) -> None:
    assert main(["run", *flags, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'absent' of the package one-of-each cannot be imported: ModuleNotFoundError" in line
    assert not (tmp_path / "run").exists()


def test_finding_one_imports_no_other(installed: None) -> None:
    assert methods.is_known("unbiased")
    assert "in-order" in partitions.names()
    assert "one_of_each" not in sys.modules
    assert methods.find("fedavg").name == "fedavg"
    assert "one_of_each" not in sys.modules
    assert methods.find("unbiased").__name__ == "Unbiased"


def fake_package(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_names_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package replaces what fedetf has, and of two that disagree neither is taken by chance."""
    for name, value in (("first", "math:pi"), ("second", "math:e")):
        fake_package(tmp_path, name, f"[fedetf.things]\nours = {value}\ntheirs = {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    things = Registry[float]("thing", "fedetf.things", "--thing", {"ours": 1.0}, lambda found, name: float(found))
    assert things.find("ours") == 1.0
    assert things.names() == ["ours", "theirs"]
    with pytest.raises(
        UserError, match="first and second both have a thing 'theirs'; choose --thing math:e or math:pi"
    ):
        things.find("theirs")
    listed = [(each.name, each.package, each.thing) for each in things.listing()]
    nobody = [(name, package, None) for name in ("ours", "theirs") for package in ("first", "second")]
    assert sorted(listed, key=str) == sorted([("ours", "fedetf", 1.0), *nobody], key=str)


def test_metadata_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package(tmp_path, "first", "[fedetf.things]\nno equals sign\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    things = Registry[float]("thing", "fedetf.things", "--thing", {"ours": 1.0}, lambda found, name: float(found))
    assert things.find("ours") == 1.0
    with pytest.raises(UserError, match="the entry points of a package cannot be read"):
        things.find("theirs")


# --- the same from a file ---------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_things.py"
    path.write_text(CODE)
    return path


def test_from_a_file(file: Path, tmp_path: Path) -> None:
    own = {"method.name": f"{file}:Unbiased", "model.name": f"{file}:seven", "data.name": f"{file}:corners"}
    settings = {**own, "data.partition": f"{file}:in_order", "measure.tensorboard": False}
    result = fedetf.run(clients=3, rounds=1, epochs=1, settings=settings, out=tmp_path / "run")
    both = zip(result.partition.train, result.partition.test, strict=True)
    assert [sorted(np.concatenate(parts)) for parts in both] == np.arange(90).reshape(3, 30).tolist()
    assert result.partition.classes == ["a", "b", "c"]
    assert result.model().encoder[1].weight.shape == (7, 3)
    again = fedetf.load(tmp_path / "run", method=methods.find(own["method.name"]), model=result.model().encoder)
    assert again.classes == ["a", "b", "c"]  # no consent for data that is not loaded


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise KeyError('no corner')", "cannot be loaded: KeyError: 'no corner'"),
        ("return [1, 2]", "gives list, not a fedetf.data.Dataset"),
        ("return Dataset(Samples(x.double(), y), Samples(x.double(), y), ['a', 'b'])", "gives inputs torch.float64"),
        ("return Dataset(Samples(x, y.int()), Samples(x, y.int()), ['a', 'b'])", "labels torch.int32"),
        ("return Dataset(Samples(x, y), Samples(x, y), ['a'])", "one class only"),
    ],
)
def test_datasets_that_are_none(code: str, message: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "own_data.py").write_text(
        "import torch\nfrom fedetf.data import Dataset, Samples\nx, y = torch.zeros(8, 2), torch.arange(8) % 2\n"
        f"def load(settings, seed):\n    {code}\n"
    )
    assert main(["partition", "--dataset", f"{tmp_path / 'own_data.py'}:load", "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "failed: ZeroDivisionError"),
        ("[[0, 1, 2, 3, 4]]", "gives 1 parts for 2 clients"),
        ("[[0.5] * 5, [1] * 5]", "not lists of whole numbers"),
        ("[labels > 3, labels < 3]", "not lists of whole numbers"),
        ("[range(5), range(4, 9)]", "gives a sample twice"),
        ("[range(5), range(10**6, 10**6 + 5)]", "gives samples that do not exist"),
        ("[range(5), range(-9, -4)]", "gives samples that do not exist"),
        ("None", "failed: TypeError"),
    ],
)
def test_partitions_that_are_none(code: str, message: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "own_partition.py").write_text(f"def deal(labels, settings, rng):\n    return {code}\n")
    name = f"data.partition={tmp_path / 'own_partition.py'}:deal"
    assert main(["partition", "--clients", "2", "--set", name, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.filterwarnings("ignore:after 100 redraws")
def test_samples_may_be_left_out_and_small_clients_are_repaired(tmp_path: Path) -> None:
    """Of 20 samples the last five belong to nobody; the second client has one, and must have four."""
    (tmp_path / "own_few.py").write_text("def deal(labels, settings, rng):\n    return [range(1, 15), [0]]\n")
    settings = DataSettings(clients=2, partition=f"{tmp_path / 'own_few.py'}:deal", test_fraction=0)
    made = make_partition(np.arange(20) % 2, ["a", "b"], settings, 0)
    assert [len(part) for part in made.train] == [11, 4]
    assert sorted(np.concatenate(made.train)) == list(range(15))
    assert made.repaired == [1]


def test_an_encoder_factory_may_take_the_shape_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "own_encoders.py").write_text(
        "from torch import nn\n"
        "def none(): return nn.Linear(1, 2)\n"
        "def optional(features=3): return nn.Linear(1, features)\n"
        "class Shaped(nn.Linear):\n    def __init__(self, shape): super().__init__(shape[0], 4)\n"
        "def two(shape, other): return nn.Linear(1, 5)\n"
    )
    made = {
        name: own_encoder(f"{tmp_path / 'own_encoders.py'}:{name}", (6,), 0) for name in ("none", "optional", "Shaped")
    }
    sizes = {name: (linear.in_features, linear.out_features) for name, linear in made.items()}
    assert sizes == {"none": (1, 2), "optional": (1, 3), "Shaped": (6, 4)}
    with pytest.raises(UserError, match="cannot be made: TypeError"):
        own_encoder(f"{tmp_path / 'own_encoders.py'}:two", (6,), 0)


def test_unknown_partition() -> None:
    with pytest.raises(UserError, match="unknown partition 'dirichle'; did you mean 'dirichlet'"):
        fedetf.run(settings={"data.partition": "dirichle"})
