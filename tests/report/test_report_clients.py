"""What a page and a table say of clients and of a target."""

import json
from pathlib import Path

import pytest
from made_runs import make_run

from fedetf.report.clients import client_rows, lead, shortfall_lines
from fedetf.report.curves import CLIENTS, OVER_BYTES, OVER_PASSES, curve
from fedetf.report.groups import Group, arrange
from fedetf.report.page import render
from fedetf.report.target import target_rows
from fedetf.runs.read import Run, read_run


def made(folder: Path, method: str, accuracies: list[float | None], seed: int = 7, **more: object) -> Run:
    """A run of ten rounds of 4,000,000 bytes each way and 1,000 images, whose clients reach these accuracies."""
    make_run(folder, method, seed, 10, len(accuracies), classes=["ant", "bee"], level=0.5)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "personal_per_client": accuracies, **more}))
    partition = json.loads((folder / "partition.json").read_text())
    partition["clients"] = [{"client": k, "counts": [k, max(0, 9 - k)]} for k in range(len(accuracies))]
    (folder / "partition.json").write_text(json.dumps(partition))
    config = (folder / "config.toml").read_text()
    if more.get("as_local"):
        (folder / "config.toml").write_text(config.replace(f'name = "{method}"', 'name = "local"'))
    return read_run(folder)


def test_rows_of_clients(tmp_path: Path) -> None:
    runs = [made(tmp_path / "a", "fedavg", [0.25, 0.5, 0.75, 1.0])]
    alone = [made(tmp_path / "l", "fedprox", [0.5, 0.25, 1.0, 1.0], as_local=True)]
    rows = client_rows([Group("FedAvg", "", runs), Group("local", "", alone)])
    assert rows[0] == ["Method", "Worst tenth, %", "Quartiles, %", "Worse off than alone", "Worst client"]
    worst = "client 0, seed 7: 25.0 %, trains on class bee (9)"
    assert rows[1] == ["FedAvg", "25.00", "43.8 / 62.5 / 81.2", "2 of 4", worst]
    assert rows[2][3] == "–"
    assert client_rows([Group("FedAvg", "", runs)])[0] == ["Method", "Worst tenth, %", "Quartiles, %", "Worst client"]
    assert "alone" not in lead([Group("FedAvg", "", runs)])
    elsewhere = client_rows(
        [Group("FedAvg", "alpha = 1", runs), Group("local", "alpha = 2", alone)]
    )  # of another setting
    assert [row[:2] + row[4:5] for row in elsewhere[1:]] == [
        ["FedAvg", "alpha = 1", "–"],
        ["local", "alpha = 2", "–"],
    ]


MAJORITY = "does worse than always answering the client's most frequent training class, at"
ALONE = "does worse than the client does alone (local), at"


def test_who_is_below_the_majority_or_alone_is_named(tmp_path: Path) -> None:
    general = {"per_client": {"general": {"accuracy": [0.3, 0.5, None]}, "personal": {}}}
    low = made(tmp_path / "a", "fedavg", [0.6, 0.4, 0.9], majority_per_client=[0.6, 0.6, 0.2], **general)
    alone = made(tmp_path / "l", "fedprox", [0.7, 0.4, 0.9], as_local=True, majority_per_client=[0.6, 0.3, 0.2])
    assert shortfall_lines([Group("FedAvg", "", [low]), Group("local", "", [alone])]) == [
        f"FedAvg: the global model {MAJORITY} client 0, client 1",
        f"FedAvg: the global model {ALONE} client 0",
        f"FedAvg: the personal model {MAJORITY} client 1",  # as good as it is not below it
        f"FedAvg: the personal model {ALONE} client 0",
    ]
    assert shortfall_lines([Group("FedAvg", "", [made(tmp_path / "old", "fedavg", [0.1, 0.2])])]) == []


def test_over_seeds_sites_have_names_and_clients_a_seed(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / f"{seed}", "fedavg", [0.1, value], seed=seed, majority_per_client=[0.6, 0.6])
        for seed, value in ((7, 0.7), (8, 0.5))
    ]
    drawn = f"x: the personal model {MAJORITY} client 0 (seed 7), client 0 (seed 8), client 1 (seed 8)"
    assert shortfall_lines([Group("x", "", runs)]) == [drawn]
    for run in runs:
        partition = json.loads((run.folder / "partition.json").read_text())
        (run.folder / "partition.json").write_text(json.dumps({**partition, "sites": ["north", "south"]}))
    named = [read_run(run.folder) for run in runs]
    said = f"x: the personal model {MAJORITY} north (2 of 2 seeds), south (1 of 2 seeds)"
    assert shortfall_lines([Group("x", "", named)]) == [said]
    assert "north (2 of 2 seeds), south (1 of 2 seeds)" in render(arrange(named))


def test_many_are_not_all_named(tmp_path: Path) -> None:
    run = made(tmp_path / "a", "fedavg", [0.1] * 12, majority_per_client=[0.2] * 12)
    assert shortfall_lines([Group("x", "", [run])])[0].endswith("client 9 and 2 more")


def test_rows_of_unseen_clients(tmp_path: Path) -> None:
    unseen = {"clients": [1], "general": 0.25, "personal": 0.5, "gap": 0.1}
    runs = [made(tmp_path / "a", "fedavg", [0.25, 0.5], unseen=unseen)]
    proto = [made(tmp_path / "b", "fedproto", [0.25, 0.5], unseen={**unseen, "general": None})]
    rows = client_rows([Group("FedAvg", "", runs), Group("FedProto", "", proto)])
    assert [row[3] for row in rows] == ["Unseen clients, %", "25.00 → 50.00", "– → 50.00"]
    assert "Unseen" in lead([Group("FedAvg", "", runs)])


def test_rows_of_a_target(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg", 7, 10, level=0.9)
    make_run(tmp_path / "b", "fedavg", 8, 10, level=0.2)
    make_run(tmp_path / "c", "fedproto", 7, 10)
    fast, slow, none = (read_run(tmp_path / name) for name in "abc")
    rows = target_rows(
        [Group("x", "", [fast]), Group("y", "", [fast, slow]), Group("z", "", [slow]), Group("p", "", [none])], 0.5
    )
    rounds = int(rows[1][1])
    assert rows[0][1] == "Rounds to 50 %"
    assert rows[1][2:] == [f"{rounds * 8_000_000 / 2**20:.3g}", f"{rounds * 1000:,}", f"{rounds * 1.5:.1f}"]
    assert [row[1] for row in rows[2:]] == ["reached by 1 of 2 seeds", "not reached", "no global model"]


def test_curves_over_what_was_spent(tmp_path: Path) -> None:
    runs = [made(tmp_path / "a", "fedavg", [0.75, 0.25, 0.5]), made(tmp_path / "b", "fedavg", [0.5, 0.5, 0.5], seed=8)]
    ranks = curve(runs, CLIENTS.of, CLIENTS.along)
    assert ranks is not None
    assert (ranks["x"], ranks["mean"]) == ([1, 2, 3], [0.375, 0.5, 0.625])
    assert (ranks["low"], ranks["high"]) == ([0.25, 0.5, 0.5], [0.5, 0.5, 0.75])
    sent, passes = (curve(runs, chart.of, chart.along) for chart in (OVER_BYTES, OVER_PASSES))
    assert sent is not None
    assert passes is not None
    assert sent["x"] == pytest.approx([t * 8_000_000 / 2**20 for t in range(1, 11)], rel=1e-4)
    assert passes["x"] == [float(t) for t in range(1, 11)]
    assert sent["mean"] == passes["mean"]


def test_on_the_page(tmp_path: Path) -> None:
    arranged = arrange([made(tmp_path / "a", "fedavg", [0.25, 0.5]), made(tmp_path / "b", "fedetf", [0.5, 0.75])])
    page = render(arranged, target=0.3)
    for text in ("How the clients fare", 'data-chart="clients"', "client 0, seed 7: 25.0 %", "Rounds to 30 %"):
        assert text in page
    assert "Rounds to" not in render(arranged)
    nobody = arrange([made(tmp_path / "c", "fedavg", [None, None])])
    assert "How the clients fare" not in render(nobody)
