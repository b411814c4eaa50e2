"""Each method at its best: chosen on validation accuracy, never on test accuracy."""

import json
from pathlib import Path

from made_runs import make_run

import fedetf
from fedetf.comparison.best import CHOSEN, NOT_CHOSEN, at_their_best
from fedetf.report.comparison import best_table
from fedetf.report.page import write_report
from fedetf.runs.read import Run, read_run


def run(folder: Path, level: float, general: float | None, personal: float = 0.5, **options: object) -> Run:
    """A run with some accuracy on test data, and others on validation data; None: without a validation split."""
    make_run(folder, level=level, **options)
    result = json.loads((folder / "result.json").read_text())
    if general is not None:
        result["validation"] = {"general": general, "general_last5": general, "personal": personal}
    (folder / "result.json").write_text(json.dumps(result))
    return read_run(folder)


def rates(runs: list[Run]) -> list[tuple[str, float, int]]:
    return [(run.settings["method.name"], run.settings["train.lr"], run.seed) for run in runs]


def test_validation_decides_whatever_the_test_says(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / f"{method}-{lr}-{seed}", test, general, method=method, seed=seed, **{"train.lr": lr})
        for method, lr, test, general in (
            ("fedavg", 0.01, 0.9, 0.5),
            ("fedavg", 0.1, 0.4, 0.6),
            ("fedetf", 0.01, 0.5, 0.8),
            ("fedetf", 0.1, 0.9, 0.7),
        )
        for seed in (7, 8)
    ]
    best = at_their_best(runs)
    assert best.note == CHOSEN
    assert rates(best.runs) == [("fedavg", 0.1, 7), ("fedavg", 0.1, 8), ("fedetf", 0.01, 7), ("fedetf", 0.01, 8)]
    page = write_report([tmp_path], tmp_path / "report.html").path.read_text()
    assert "<h3>Each at its best</h3>" in page
    assert "FedAvg (lr = 0.1)" in page


def test_each_dataset_has_a_best_of_its_own_and_one_setting_is_its_own_best(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / f"{alpha}-{lr}", 0.5, general, method="fedavg", **{"train.lr": lr, "data.alpha": alpha})
        for alpha, lr, general in ((0.1, 0.01, 0.5), (0.1, 0.1, 0.6), (1.0, 0.01, 0.8), (1.0, 0.1, 0.7))
    ]
    runs.append(run(tmp_path / "other", 0.5, 0.1, method="fedprox", **{"train.lr": 0.5, "data.alpha": 1.0}))
    assert rates(at_their_best(runs).runs) == [("fedavg", 0.1, 7), ("fedavg", 0.01, 7), ("fedprox", 0.5, 7)]


def test_personal_accuracy_decides_between_personal_stages_of_one_model(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / f"{epochs}", 0.5, 0.5, personal, method="fedavg", **{"personal.epochs": epochs})
        for epochs, personal in ((1, 0.6), (5, 0.8), (9, 0.7))
    ]
    assert [run.settings["personal.epochs"] for run in at_their_best(runs).runs] == [5]


def test_only_seeds_that_all_settings_have_count(tmp_path: Path) -> None:
    seen = ((0.01, 7, 0.5), (0.1, 7, 0.4), (0.1, 8, 0.9))  # the second seems better by a seed that is its alone
    runs = [
        run(tmp_path / f"{lr}-{seed}", 0.5, general, method="fedavg", seed=seed, **{"train.lr": lr})
        for lr, seed, general in seen
    ]
    assert rates(at_their_best(runs).runs) == [("fedavg", 0.01, 7)]


def test_without_a_validation_split_nothing_is_chosen_and_it_is_said(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"{lr}", lr, None, method="fedavg", **{"train.lr": lr}) for lr in (0.1, 0.2)]
    assert at_their_best(runs).runs == []
    assert at_their_best(runs).note == NOT_CHOSEN
    assert at_their_best(runs[:1]).note == ""
    assert "test data is not for choosing" in write_report([tmp_path], tmp_path / "a.html").path.read_text()


def test_a_comparison_has_such_a_table(tmp_path: Path) -> None:
    options = {"clients": 3, "rounds": 1, "epochs": 1, "model": "mlp", "references": False, "out": tmp_path / "grid"}
    settings = {"data.limit": 300, "personal.enabled": False, "data.validation_fraction": 0.3}
    rates = {"fedavg:train.lr": [0.0001, 0.4], "train.lr": 0.2}
    compared = fedetf.compare(["fedavg", "fedprox"], [7], settings={**settings, **rates}, **options)
    table, _ = compared.best
    seen = [json.loads((tmp_path / f"grid/fedavg-lr={lr}-s7/result.json").read_text()) for lr in ("0.0001", "0.4")]
    better = max(seen, key=lambda result: result["validation"]["general_last5"])
    assert [line.row["method"] for line in table.lines] == ["fedavg", "fedprox"]
    assert table.lines[0].general == [better["general_last5"]]
    assert [line.setting for line in table.lines] == ["", ""]  # rivals, whatever their rates
    assert CHOSEN in best_table(compared)
