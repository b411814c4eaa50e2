"""How clients fare: worst tenth, quartiles, who is worst, and who would do better alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run

import fedetf
from fedetf.comparison.fairness import Worst, fairness
from fedetf.runs.read import Run, read_run


def made(folder: Path, accuracies: list[float | None], counts: list[list[int]] | None = None, **options: object) -> Run:
    """A run whose clients reach these accuracies."""
    make_run(folder, clients=len(accuracies), classes=["ant", "bee", "cat"], **options)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "personal_per_client": accuracies}))
    if counts is not None:
        partition = json.loads((folder / "partition.json").read_text())
        partition["clients"] = [{"client": k, "counts": row} for k, row in enumerate(counts)]
        (folder / "partition.json").write_text(json.dumps(partition))
    return read_run(folder)


def test_worst_tenth_and_quartiles_are_means_over_seeds(tmp_path: Path) -> None:
    first = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.95, 0.85, 0.75, 0.1, None]
    second = [0.5] * 11
    runs = [made(tmp_path / "a", first, seed=7), made(tmp_path / "b", second, seed=8)]
    found = fairness(runs)
    assert found is not None
    assert found.worst_decile == pytest.approx((0.1 + 0.5) / 2)
    expected = (np.percentile(first[:-1], [25, 50, 75]) + 0.5) / 2
    assert found.quartiles == pytest.approx(tuple(expected))
    assert (found.worse_off, found.compared) == (None, None)  # nobody trained alone


def test_the_worst_client_and_what_it_holds(tmp_path: Path) -> None:
    counts = [[5, 0, 5], [0, 2, 9], [1, 1, 1]]
    runs = [
        made(tmp_path / "a", [0.5, 0.4, 0.6], counts, seed=7),
        made(tmp_path / "b", [0.5, 0.3, 0.6], counts, seed=8),
    ]
    found = fairness(runs)
    assert found is not None
    assert found.worst == Worst(8, "client 1", 0.3, [("cat", 9), ("bee", 2)])


def test_clients_are_compared_with_themselves_on_common_seeds(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "a7", [0.5, 0.4, 0.6, None], seed=7),
        made(tmp_path / "a8", [0.1, 0.1, 0.1, 0.1], seed=8),
        made(tmp_path / "a9", [0.0, 0.0, 0.0, 0.0], seed=9),  # local was not run with it
    ]
    alone = [
        made(tmp_path / "l7", [0.6, 0.4, 0.5, 0.9], seed=7, method="fedavg"),  # worse, equal, better, not measured
        made(tmp_path / "l8", [0.2, 0.2, 0.1, 0.2], seed=8, method="fedavg"),  # worse, worse, equal, worse
    ]
    found = fairness(runs, alone)
    assert found is not None
    assert found.worse_off == pytest.approx((1 + 3) / 2)
    assert found.compared == pytest.approx((3 + 4) / 2)


def test_nothing_of_nothing(tmp_path: Path) -> None:
    assert fairness([]) is None
    assert fairness([made(tmp_path / "a", [None, None])]) is None


def test_a_result_says_how_its_clients_fare_and_what_it_cost() -> None:
    result = fedetf.run(method="fedavg", clients=4, rounds=2, epochs=3, model="mlp", engine="serial",
                        settings={"data.limit": 200, "data.test_limit": 40})  # fmt: skip
    own = [a for a in result.personal_per_client if a is not None]
    assert result.summary["personal_worst_decile"] == min(own)  # one of four
    assert result.summary["personal_quartiles"] == pytest.approx(np.percentile(own, [25, 50, 75]))
    assert result.summary["image_passes"] == 2 * 3 * sum(map(len, result.partition.train))
    off = {"data.limit": 200, "data.test_limit": 40, "personal.enabled": False}
    short = fedetf.run(method="fedavg", clients=4, rounds=1, epochs=1, model="mlp", engine="serial", settings=off)
    assert short.summary["personal_worst_decile"] is short.summary["personal_quartiles"] is None
