"""Settings for one method of a comparison, methods as classes, and labels that tell them apart."""

from pathlib import Path

import pytest

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.comparison.plan import PlannedRun, plan
from fedetf.config import resolve
from fedetf.report.groups import arrange
from fedetf.runs.read import read_run

OPTIONS = {
    "references": False,
    "clients": 3,
    "rounds": 1,
    "epochs": 1,
    "settings": {"data.limit": 100, "personal.enabled": False},
}
TABLES = """
[train]
lr = 0.02

[methods.fedavg.train]
lr = [0.1, 0.2]

[methods.fedprox]
method.mu = 0.5
"""


def planned(methods: list, overrides: dict, preset: str | None = None) -> list[PlannedRun]:
    return plan(methods, [7], preset, overrides, False, Path("g"))[1]


def rates(runs: list[PlannedRun]) -> list[tuple[str, float]]:
    return [(run.settings.method.name, run.settings.train.lr) for run in runs]


def test_a_setting_for_one_method_leaves_the_others_as_they_are() -> None:
    runs = planned(["fedavg", "fedetf"], {"fedavg:train.lr": 0.1, "train.lr": 0.02})
    assert rates(runs) == [("fedavg", 0.1), ("fedetf", 0.02)]
    assert [dict(run.row) for run in runs] == [
        {"method": "fedavg", "train.lr": "0.1"},
        {"method": "fedetf", "train.lr": "0.02"},
    ]


def test_several_values_for_one_method_multiply_its_runs_only() -> None:
    runs = planned(["fedavg", "fedprox"], {"fedprox:method.mu": [0.1, 1.0], "data.alpha": [0.1, 0.5]})
    assert [(run.row[0][1], dict(run.row)["data.alpha"], dict(run.row)["method.mu"]) for run in runs] == [
        ("fedavg", "0.1", "-"),
        ("fedprox", "0.1", "0.1"),
        ("fedprox", "0.1", "1.0"),
        ("fedavg", "0.5", "-"),
        ("fedprox", "0.5", "0.1"),
        ("fedprox", "0.5", "1.0"),
    ]


def test_tables_in_a_file_are_for_single_methods(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TABLES)
    runs = planned(["fedavg", "fedprox", "fedetf"], {}, str(path))
    assert rates(runs) == [("fedavg", 0.1), ("fedavg", 0.2), ("fedprox", 0.02), ("fedetf", 0.02)]
    assert runs[2].settings.method.model_dump() == {"name": "fedprox", "mu": 0.5}
    assert rates(planned(["fedavg"], {"fedavg:train.lr": 0.3}, str(path))) == [("fedavg", 0.3)]  # --set wins
    run = resolve(str(path), {"method.name": "fedprox"})  # and `fedetf run mine.toml --method fedprox` follows them too
    assert run.method.model_dump() == {"name": "fedprox", "mu": 0.5}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("fedagv:train.lr", "'fedagv' is not among the methods"),
        ("fedavg:data.alpha", "fedavg: data.alpha is the same for all methods"),
        ("fedavg:method.name", "fedavg: method.name is the same for all methods"),
        ("fedavg:train.rate", "unknown setting 'train.rate'"),
        ("fedavg:method.mu", "unknown setting 'method.mu'"),
    ],
)
def test_what_is_wrong_with_such_a_setting_is_said(key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        planned(["fedavg", "fedetf"], {key: 0.1})


def test_a_file_may_not_set_data_for_one_method_nor_name_code_for_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for text, message in (
        ("[methods.fedavg.data]\nalpha = 1.0", "data.alpha is the same for all methods"),
        ("[methods.fedagv.train]\nlr = 1.0", "unknown method 'fedagv'; did you mean 'fedavg'"),
        ("methods = 3", "methods takes a table for each method"),
        ("[methods.fedavg.update]\ntransform = 'mine.py:Mine'", "would run code that is not part of fedetf"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            planned(["fedavg"], {}, str(path))


class Smooth(fedetf.Method):
    """FedAvg under another name."""


class Other(fedetf.Method):
    """The same once more."""

    name = "smooth"


def test_classes_are_compared_and_two_of_a_name_are_told_apart(tmp_path: Path) -> None:
    methods = ["fedavg", Smooth, Other]
    compared = fedetf.compare(methods, [7], out=tmp_path / "grid", **OPTIONS)
    assert [line.row["method"] for line in compared.lines] == ["fedavg", "smooth", "smooth (2)"]
    assert len({tuple(line.general) for line in compared.lines}) == 1  # all three are FedAvg
    again = fedetf.compare(methods, [7], out=tmp_path / "grid", **OPTIONS)  # nothing is run again, or refused
    assert again.lines == compared.lines
    runs = [read_run(tmp_path / "grid" / name) for name in ("fedavg-s7", "smooth-s7", "smooth-2-s7")]
    assert arrange(runs).variants == ["FedAvg", "smooth", "smooth (2)"]


def test_methods_with_their_own_rates_are_rivals_in_the_table_and_on_the_page(tmp_path: Path) -> None:
    options = {**OPTIONS, "settings": {**OPTIONS["settings"], "fedavg:train.lr": 0.1}}
    compared = fedetf.compare(["fedavg", "fedprox"], [7], out=tmp_path / "grid", **options)
    assert [line.setting for line in compared.lines] == ["", ""]
    arranged = arrange([read_run(tmp_path / "grid" / f"{name}-s7") for name in ("fedavg-lr=0.1", "fedprox-lr=0.04")])
    assert arranged.settings == [""]
    assert arranged.variants == ["FedAvg (lr = 0.1)", "FedProx (lr = 0.04)"]


def test_the_command_line_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--set", "data.limit=100"]
    own = ["--set", "fedprox:method.mu=0.5", "--out", str(tmp_path / "grid")]
    assert main(["compare", "--methods", "fedavg,fedprox", "--seeds", "7", *flags, *own]) == 0
    assert "fedprox:method.mu=0.5" in (tmp_path / "grid/command.txt").read_text()
    assert "| fedprox | 0.5 |" in (tmp_path / "grid/table.md").read_text()
