"""The bench runs and compares what it says; how fast anything is, is not a matter for a test."""

import json
from functools import cache

import pytest

from fedetf import bench
from fedetf.bench.scale import deal
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
    dealt, same = deal(1000, False, 20_000), deal(1000, True, 20_000)
    assert sorted(i for part in dealt.train for i in part) == list(range(20_000))
    assert {len(part) for part in same.train} == {256}


@pytest.mark.parametrize("flags", [["--scale", "0"], ["--scale", "2"], ["--repeats", "0"]])
def test_bad_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.slow
def test_it_measures_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = cache(bench._in_process)  # two real runs, of few clients, stand for eight
    monkeypatch.setattr(bench, "_in_process", lambda _, kind, rounds, images: real(20, kind, rounds, images // 10))
    monkeypatch.setattr(bench, "find_spec", lambda _: None)  # Ray has its own tests
    monkeypatch.setattr("fedetf.bench.cores", lambda: 2)
    assert main(["bench", "--json", "--scale", "0.01", "--repeats", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    names = " ".join(row["name"] for row in rows)
    for part in (
        "NCHW",
        "channels_last",
        "serial",
        "2 workers",
        "--compile",
        "features reused",
        "checkpoint",
        "10,000",
    ):
        assert part in names
    assert all(row["value"] > 0 for row in rows if row["name"] != "compiling, or taking it from the cache")
