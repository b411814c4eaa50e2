"""What it costs to reach an accuracy, on made-up runs whose numbers can be worked out by hand."""

import csv
import json
from pathlib import Path

import pytest
from made_runs import make_run

from fedetf import UserError
from fedetf.cli import main
from fedetf.comparison.target import Cost, check_target, cost_to_target, to_target
from fedetf.runs.read import Run, read_run


def made(folder: Path, general: list[float | None], seed: int = 7, **more: object) -> Run:
    """A run with this general accuracy in each round; a round costs 10 + 20 bytes, 100 images, 2 seconds."""
    make_run(folder, rounds=len(general), seed=seed)
    lines = [
        {"round": t, "participants": [0], "bytes_up": 10, "bytes_down": 20, "images": 100, "seconds": 2.0}
        | ({} if value is None else {"general": value})
        for t, value in enumerate(general, start=1)
    ]
    for line, extra in zip(reversed(lines), more.get("completed", []), strict=False):  # of the last rounds
        line["completed"] = {"general": extra}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads((folder / "result.json").read_text())
    sums = {"bytes_up": 10 * len(lines) + 3, "bytes_down": 20 * len(lines) + 4}  # 3 and 4: after the last round
    (folder / "result.json").write_text(json.dumps({**result, **sums}))
    return read_run(folder)


def test_the_mean_of_five_rounds_has_to_reach_it(tmp_path: Path) -> None:
    # a lucky second round: the means are .1, .5, .4, .35, .32, .44, .4 ...
    run = made(tmp_path / "a", [0.1, 0.9, 0.2, 0.2, 0.2, 0.7, 0.7, 0.7, 0.7, 0.7])
    assert cost_to_target(run, 0.1) == Cost(1, 30, 100, 2.0)
    assert cost_to_target(run, 0.5) == Cost(2, 60, 200, 4.0)  # (.1 + .9) / 2
    assert cost_to_target(run, 0.6) == Cost(9, 270, 900, 18.0)  # (.2 + 4 × .7) / 5
    assert cost_to_target(run, 0.7 - 1e-9) == Cost(10, 300, 1000, 20.0)
    assert cost_to_target(run, 0.71) is None


def test_only_measured_rounds_count_but_all_are_paid_for(tmp_path: Path) -> None:
    run = made(tmp_path / "a", [None, 0.2, None, 0.6, None, 0.7])
    assert cost_to_target(run, 0.4) == Cost(4, 120, 400, 8.0)  # (.2 + .6) / 2
    assert cost_to_target(run, 0.5) == Cost(6, 180, 600, 12.0)  # (.2 + .6 + .7) / 3


def test_a_completed_model_pays_for_its_completion(tmp_path: Path) -> None:
    run = made(tmp_path / "a", [0.1, 0.1, 0.1], completed=[0.9, 0.8])
    assert cost_to_target(run, 0.4) == Cost(2, 60 + 7, 200, 4.0)  # (.1 + .8) / 2
    assert cost_to_target(run, 0.1) == Cost(1, 30, 100, 2.0)


def test_a_mean_over_seeds_only_if_all_reach_it(tmp_path: Path) -> None:
    fast, slow = made(tmp_path / "a", [0.6, 0.6, 0.6]), made(tmp_path / "b", [0.1, 0.5, 0.9], seed=8)
    both = to_target([fast, slow], 0.5)
    assert (both.reached, both.seeds, both.mean) == (2, 2, Cost(2, 60, 200, 4.0))
    one = to_target([fast, slow], 0.55)
    assert (one.reached, one.seeds, one.mean) == (1, 2, None)
    none = to_target([made(tmp_path / "c", [None, None], seed=9)], 0.5)
    assert (none.reached, none.seeds, none.mean) == (0, 0, None)


def test_tables_say_what_a_target_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--model", "mlp", "--engine", "serial"]
    small += ["--set", "data.limit=100", "--set", "data.test_limit=50", "--no-references", "--out", "grid"]
    compare = ["compare", "--methods", "fedavg,fedproto", "--seeds", "7", *small]
    assert main([*compare, "--target", "0.001"]) == 0  # reached in the first round
    assert "Rounds to 0.1 %" in capsys.readouterr().out
    grid = tmp_path / "grid"
    first = json.loads((grid / "fedavg-s7" / "rounds.jsonl").read_text().splitlines()[0])
    result = json.loads((grid / "fedavg-s7" / "result.json").read_text())
    rows = {row["method"]: row for row in csv.DictReader((grid / "table.csv").read_text().splitlines())}
    assert float(rows["fedavg"]["rounds_to_target"]) == 1
    assert float(rows["fedavg"]["bytes_to_target"]) == first["bytes_up"] + first["bytes_down"]
    assert float(rows["fedavg"]["image_passes_to_target"]) == first["images"]
    assert rows["fedproto"]["rounds_to_target"] == ""
    assert float(rows["fedavg"]["personal_worst_decile"]) == result["personal_worst_decile"]
    assert float(rows["fedavg"]["personal_median"]) == result["personal_quartiles"][1]
    seeds = next(csv.DictReader((grid / "seeds.csv").read_text().splitlines()))
    assert (seeds["rounds_to_target"], seeds["image_passes"]) == ("1", str(result["image_passes"]))
    table = (grid / "table.md").read_text()
    assert "no global model" in table
    assert "| Worst client |" in table
    assert "--target 0.001" in (grid / "command.txt").read_text()
    assert "Rounds to 0.1 %" in (grid / "report.html").read_text()
    assert main([*compare, "--target", "50"]) == 2
    assert "such as 0.5" in capsys.readouterr().err


@pytest.mark.parametrize("target", [0, -1, 1.01, 50, float("nan")])
def test_a_target_is_a_fraction(target: float) -> None:
    assert check_target(1) == 1
    with pytest.raises(UserError, match="such as"):
        check_target(target)
