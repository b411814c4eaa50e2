"""The bench runs and compares what it says; how fast anything is, is not a matter for a test."""

import json
from pathlib import Path

import pytest

from fedetf import bench
from fedetf.bench.peers import Peer
from fedetf.bench.scale import deal
from fedetf.bench.startup import loading
from fedetf.cli import main


def test_ratios_are_of_the_same_turn() -> None:
    assert bench._ratio([4.0, 10.0, 6.0], [2.0, 2.0, 2.0]) == 3.0


def test_contestants_take_turns_and_the_first_is_not_counted() -> None:
    order: list[str] = []
    contestants = {name: lambda name=name: order.append(name) or float(len(order)) for name in "ab"}
    seconds = bench._interleaved(contestants, 2)
    assert order == list("ababab")
    assert seconds == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_the_same_images_for_any_number_of_clients() -> None:
    dealt, same = deal(1000, None, 20_000), deal(1000, 256, 20_000)
    assert sorted(i for part in dealt.train for i in part) == list(range(20_000))
    assert {len(part) for part in same.train} == {256}


@pytest.mark.parametrize("flags", [["--scale", "0"], ["--scale", "2"], ["--repeats", "0"]])
def test_bad_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.slow
def test_stages_costs_clients_and_the_bare_loop() -> None:
    rows = [*bench._finetuning(0.1, 1), *bench._costs(0.01, 1)]
    assert {"second finetuning stage, features reused", "checkpoint"} <= {row.name for row in rows}
    assert all(row.value > 0 for row in rows)
    measured = bench._in_process(20, "same", 1, 1000)
    assert measured["images"] == 10 * 256
    assert measured["bytes"] > 0
    assert bench._in_process(20, "3", 1, 100)["images"] == 20 * 3
    assert all(seconds > 0 for seconds in loading(100))
    with bench._bare("channels_last", 0.01) as once:
        assert once() > 0


def test_no_peer_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(bench, "PEERS", {"nobody": Peer(("no_such_package",), "nobody-fl", "")})
    assert main(["bench", "--peers"]) == 2
    assert "error: there is no other package to measure" in capsys.readouterr().err


@pytest.mark.slow
def test_a_peer_that_fails_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    peers = {
        "broken": Peer(("json",), "", "tuned"),  # it is there, and there is no such file in bench/peers
        "absent": Peer(("no_such_package",), "absent-fl", "tuned"),
    }
    monkeypatch.setattr(bench, "PEERS", peers)
    rows = bench._peers(said.append, 0.01, 1)
    assert [row.name.partition(",")[0] for row in rows] == ["fedetf"]
    assert all(row.value > 0 for row in rows)
    assert "absent is not installed (pip install absent-fl)" in said
    assert any(line.startswith("broken, tuned: does not run here, ModuleNotFoundError") for line in said)


def test_the_table_and_the_json_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "LOCK", tmp_path / "lock")  # another benchmark of this machine is none of its business
    row = bench.Row("process engine", 220.0, "images/s", 1.05, "bare loop")
    for name in ("_one_core", "_all_cores", "_finetuning", "_costs", "_clients", "_sizes", "start_up"):
        monkeypatch.setattr(bench, name, lambda scale, repeats: [row])
    assert main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [vars(row)] * 7
    assert main(["bench"]) == 0
    assert "process engine       220  images/s   1.05  × bare loop" in capsys.readouterr().out
