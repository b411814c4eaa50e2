"""What a whole table says: whom all are compared with, on which seeds, and over which settings."""

import json
from pathlib import Path

import pytest
from made_runs import make_run

from fedetf.comparison.judged import Judged
from fedetf.comparison.table import Line, Table
from fedetf.report.comparison import to_json, to_markdown
from fedetf.report.groups import arrange
from fedetf.report.page import write_report
from fedetf.runs.read import SCORES, read_run, scores_by_seed

RISING = {"fedavg": (0.30, 0.31, 0.33), "fedprox": (0.41, 0.40, 0.44), "fedetf": (0.52, 0.55, 0.51)}


def line(folder: Path, method: str, values: dict[int, float], **settings: object) -> Line:
    """A line of runs that were never run, whose accuracies are given by seed; keys of settings as a row has them."""
    runs = []
    for seed, value in values.items():
        place = folder / "-".join(map(str, (method, *settings.values(), seed)))
        result = make_run(place, method, seed, level=value, **settings)
        reached = {"general": value, "general_last5": value, "personal": value, "personal_per_client": [value] * 4}
        costs = {"bytes_up": 4 * 2**20 * seed, "epochs_train": float(seed), "epochs_personal": 0.0}
        (place / "result.json").write_text(json.dumps({**result, **reached, **costs}))
        runs.append(read_run(place))
    scores = {which: scores_by_seed(runs, which) for which in SCORES}
    row = {"method": method, **{key: str(value) for key, value in settings.items()}}
    means = [sum(parts) / len(values) for parts in (values, [2**20 * seed for seed in values])]
    return Line(row, list(values), scores, *means, runs=runs)


def lines(folder: Path, methods: list[str], **settings: object) -> list[Line]:
    return [line(folder, m, dict(zip((7, 8, 9), RISING[m], strict=True)), **settings) for m in methods]


def compared(table: Judged) -> list[bool]:
    return [standing["general"].difference is not None for standing in table.standings]


def test_differences_are_to_the_same_method_in_every_setting(tmp_path: Path) -> None:
    whole = lines(tmp_path, ["fedavg", "fedprox", "fedetf"], **{"data.alpha": 0.1})
    without = lines(tmp_path, ["fedavg", "fedprox"], **{"data.alpha": 1.0})  # there FedETF failed with every seed
    for table in (Table([*whole, *without]), Table([*without, *whole])):
        assert table.compared_with == "fedetf"
        named = dict(zip((f"{each.method} {each.setting}" for each in table.lines), compared(table), strict=True))
        assert [name for name, has in named.items() if has] == ["fedavg alpha = 0.1", "fedprox alpha = 0.1"]
    page = arrange([run for each in (*without, *whole) for run in each.runs]).judged
    assert page.compared_with == "FedETF"
    assert {group.setting for group, has in zip(page.lines, compared(page), strict=True) if has} == {"alpha = 0.1"}


def test_each_at_its_best_is_compared_by_method_whatever_was_chosen(tmp_path: Path) -> None:
    rates = [(alpha, method, lr) for alpha, lr in ((0.1, 0.01), (1.0, 0.1)) for method in ("fedavg", "fedetf")]
    found = [lines(tmp_path, [m], **{"data.alpha": a, "train.lr": lr})[0] for a, m, lr in rates]
    table = Table([Line(**{**vars(each), "own": frozenset(["train.lr"])}) for each in found])
    assert [each.name for each in table.lines][:2] == ["fedavg, lr = 0.01", "fedetf, lr = 0.01"]
    assert compared(table) == [True, False] * 2
    assert table.compared_with == "fedetf"  # its rate is another in each setting


def test_costs_clients_and_curves_are_on_the_seeds_of_the_accuracies(tmp_path: Path) -> None:
    """FedAvg has a seed more, in which it sends more, trains longer, and treats its clients worse."""
    table = Table([line(tmp_path, "fedavg", {7: 0.5, 8: 0.5, 9: 0.1}), line(tmp_path, "fedetf", {7: 0.7, 8: 0.7})])
    rows = to_markdown(table).splitlines()[2:4]
    assert [row.split(" | ")[4:] for row in rows] == [["2 of 3", "7.5", "7.5 |"], ["2", "7.5", "7.5 |"]]
    first, second = json.loads(to_json(table, target=0.4))
    assert (first["seeds"], first["general_seeds"], first["general"]) == ([7, 8, 9], 2, [0.5, 0.5, 0.1])
    assert first["personal_worst_decile"] == pytest.approx(0.5)
    assert first["epochs_per_client"] == second["epochs_per_client"] == 7.5
    assert first["rounds_to_target"] is not None  # with the third seed it is never reached
    page = write_report([tmp_path], tmp_path / "page.html", target=0.4).path.read_text()
    assert "reached by" not in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert {curve["seeds"] for curve in data["charts"]["general"]["curves"]} == {2}


def test_json_has_a_place_for_every_seed(tmp_path: Path) -> None:
    table = Table([line(tmp_path, "fedavg", {7: 0.5, 8: float("nan"), 9: 0.1})])
    (row,) = json.loads(to_json(table))
    assert (row["general"], row["general_seeds"]) == ([0.5, None, 0.1], 2)  # what is not finite is no value


def test_learning_rates_are_no_settings_to_count_wins_over(tmp_path: Path) -> None:
    methods = ["fedavg", "fedprox", "fedetf"]
    by_alpha = Table([each for a in (0.1, 1.0) for each in lines(tmp_path, methods, **{"data.alpha": a})])
    assert by_alpha.overall["general"].methods == methods
    by_rate = Table([each for lr in (0.3, 0.4) for each in lines(tmp_path, methods, **{"train.lr": lr})])
    assert by_rate.overall == {}


def test_who_is_not_ranked_over_all_settings_is_named(tmp_path: Path) -> None:
    methods = ["fedavg", "fedprox", "fedetf"]
    table = Table([each for a in (0.1, 1.0) for each in lines(tmp_path, methods, **{"data.alpha": a})])
    table.lines.append(line(tmp_path, "ditto", {7: 0.9, 8: 0.9, 9: 0.9}, **{"data.alpha": 0.1}))
    said = table.overall["general"].sentence
    assert "by permutation, p = 0.17" in said  # the same order twice: one in six, whatever F says
    assert said.endswith("Left out, without a value in every setting: ditto.")
