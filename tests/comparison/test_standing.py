"""How rivals stand: on the seeds that all have, by intervals; and all tables and pages of a comparison say the same."""

import csv
import html.parser
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedetf.cli import main
from fedetf.comparison.standing import Standing, chosen_rival, judge_columns
from fedetf.rng import numpy_stream
from fedetf.statistics import Verdict

METHODS = ["fedavg", "ditto", "fedetf"]
SEEDS = (7, 8, 9)
LEVELS = {"fedavg": 0.3, "ditto": 0.5, "fedetf": 0.8}
MARKS = [[False, False, False], [False, False, False], [True, False, True]]  # general, final model, personal


def standings(*rivals: dict[int, float], **options: Any) -> list[Standing]:
    return judge_columns({"general": rivals}, **options)["general"].standings


def test_all_values_of_a_column_are_on_the_seeds_that_all_have() -> None:
    lucky = {7: 0.5, 8: 0.9, 9: 0.9}
    column = judge_columns({"general": [lucky, {8: 0.2, 9: 0.4}, {}]}, against=0)["general"]
    assert column.seeds == [8, 9]
    assert [standing.spread and (standing.spread.mean, standing.spread.std) for standing in column.standings] == [
        pytest.approx((0.9, 0.0)),
        pytest.approx((0.3, 0.2 / math.sqrt(2))),  # of a sample
        None,
    ]
    assert [standing.words for standing in column.standings] == ["", "no difference shown (n = 2)", ""]
    apart = judge_columns({"general": [{7: 0.5}, {8: 0.6}]}, against=0)["general"]
    assert (apart.seeds, [standing.spread.mean for standing in apart.standings]) == ([], [0.5, 0.6])
    assert apart.standings[1].difference is None


CLEAR = [{s: level + 0.01 * s for s in range(5)} for level in (0.2, 0.5, 0.801)]  # the seeds move all alike


def jittered(scores: dict[int, float], *by: float) -> dict[int, float]:
    return {seed: value + 0.001 * j for (seed, value), j in zip(scores.items(), by, strict=True)}


def test_marks_and_words_follow_the_interval() -> None:
    low, middle, high = jittered(CLEAR[0], 0, 1, 0, 2, 1), jittered(CLEAR[1], 1, 0, 0, 0, 2), CLEAR[2]
    near = jittered(high, -9, 8, -7, 9, -3)
    said = standings(low, middle, high, near, against=1)
    assert [standing.words for standing in said] == ["behind", "", "ahead", "ahead"]
    assert [standing.best for standing in said] == [False, False, True, True]  # the last is not shown to be behind
    assert [standing.best for standing in standings(high, near)] == [False, False]  # nobody is behind: no mark
    assert [standing.best for standing in standings(low, high)] == [False, True]
    assert [standing.best for standing in standings(low, high, lower=True)] == [True, False]
    assert [standing.words for standing in standings(low, high, against=0, lower=True)] == ["", "behind"]
    assert standings(low, high, against=0, lower=True)[1].difference.mean > 0.5  # as it is; only the word turns
    assert not any(standing.best for standing in standings({7: 0.1}, {7: 0.9}))  # one seed shows nothing
    assert [standing.words for standing in standings(low, dict(low), against=0)] == ["", "identical"]


def test_references_are_not_ranked() -> None:
    low, high = jittered(CLEAR[0], 0, 1, 0, 2, 1), CLEAR[2]
    said = standings(low, high, {0: 0.9}, against=0, references=[2])
    assert [standing.best for standing in said] == [False, True, False]
    assert (said[2].difference, said[2].words, said[2].spread.mean) == (None, "", 0.9)
    assert said[0].spread.count == 5  # the seeds that a reference lacks are not missing
    assert chosen_rival([["local"], ["mine"]], None, references=[0]) == 1


def test_holms_family_is_all_comparisons_of_a_setting() -> None:
    first, second = {0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.52, 1: 0.61, 2: 0.724}
    both = judge_columns({"general": [first, second], "personal": [first, second]}, against=0)
    alone = judge_columns({"general": [first, second]}, against=0)
    raw = stats.ttest_rel(list(second.values()), list(first.values())).pvalue
    assert alone["general"].standings[1].p == pytest.approx(raw)
    assert both["general"].standings[1].p == pytest.approx(2 * raw)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"against": 0}])
def test_the_best_of_many_is_chosen_by_the_same_numbers_so_all_pairs_count(options: dict[str, int]) -> None:
    """Six times the same code: marks are as rare as the level says, though the leader is picked after the fact."""
    rng, marked = numpy_stream(7, "simulation"), 0
    for _ in range(400):
        level = rng.normal(0.5, 0.05, 5)
        rivals = [dict(enumerate(level + rng.normal(0, 0.01, 5))) for _ in range(6)]
        marked += any(standing.best for standing in standings(*rivals, **options))
    assert marked / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("methods", [2, 3, 6])
def test_marks_never_contradict_words(methods: int) -> None:
    rng, marked, unlike = numpy_stream(7, "contradictions", methods), 0, 0
    for _ in range(30):
        level, steps = rng.normal(0.5, 0.05, 5), rng.normal(0, 0.02, methods)
        columns = {c: [dict(enumerate(level + step + rng.normal(0, 0.01, 5))) for step in steps] for c in "ab"}
        for name, column in judge_columns(columns, against=0).items():
            words = [standing.verdict for standing in column.standings]
            best = [standing.best for standing in column.standings]
            leader = max(range(methods), key=lambda number: sum(columns[name][number].values()))
            assert not any(mark and word is Verdict.BEHIND for mark, word in zip(best, words, strict=True))
            if leader == 0 and any(best):
                assert best == [word is not Verdict.BEHIND for word in words]
            elif any(best):
                assert best[0] == (words[leader] is not Verdict.AHEAD)
            marked += any(best)
            alone = judge_columns({name: columns[name]})[name].standings
            unlike += best != [standing.best for standing in alone]
    assert marked > 10
    assert unlike > 0  # both families alone would have said something else


class FirstTable(html.parser.HTMLParser):
    """The cells of a page's first table."""

    def __init__(self, page: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(page[page.index("<table") : page.index("</table")])

    def handle_starttag(self, name: str, attributes: list) -> None:
        if name == "tr":
            self.rows.append([])
        if name in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a terminal shows of a comparison in which the best seed of FedAvg failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    blocked = Path("compared/fedavg-s8/config.toml.part")  # a folder where the run wants to write: it cannot begin
    blocked.mkdir(parents=True)
    small = ["--clients", "5", "--rounds", "3", "--epochs", "3", "--alpha", "0.1"]
    small += ["--set", "data.limit=300", "--set", "personal.rounds=1"]
    command = [
        "compare",
        "--methods",
        ",".join(METHODS),
        "--seeds",
        ",".join(map(str, SEEDS)),
        "--no-references",
        *small,
    ]
    assert main([*command, "--out", "compared"]) == 1
    for method, level in LEVELS.items():  # so far apart that two seeds show it, and marks are due
        for file in Path("compared").glob(f"{method}-s*/result.json"):
            besides = {7: 0.0, 8: 0.1, 9: 1e-4 * level}[int(file.parent.name[-1])]  # seed 8 would move every mean
            reached = dict.fromkeys(("general_last5", "personal"), level + besides)
            file.write_text(json.dumps({**json.loads(file.read_text()), **reached}))
    capsys.readouterr()
    assert main([*command, "--out", "compared"]) == 1
    out, err = capsys.readouterr()
    assert "1 run failed" in err
    return out


@pytest.mark.slow
def test_after_a_failed_seed_all_say_the_same(said: str) -> None:
    def values(method: str, key: str) -> list[float]:  # the truth, from the runs: all have seeds 7 and 9
        files = (Path(f"compared/{method}-s{seed}/result.json") for seed in (7, 9))
        return [100 * json.loads(file.read_text())[key] for file in files]

    keys = ("general_last5", "general", "personal")
    truth = [
        [f"{statistics.mean(v):.2f}±{statistics.stdev(v):.2f}" for v in (values(method, key) for key in keys)]
        for method in METHODS
    ]
    differences = []
    for method in ("fedavg", "ditto"):
        for key in ("general_last5", "personal"):
            interval = stats.ttest_rel(values(method, key), values("fedetf", key)).confidence_interval(0.95)
            mean = statistics.mean(a - b for a, b in zip(values(method, key), values("fedetf", key), strict=True))
            text = f"{mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
            differences.append(text.replace("-", "\N{MINUS SIGN}"))
    seeds = ["2", "2 of 3", "2 of 3"]

    text = Path("compared/table.md").read_text("utf-8")
    markdown = [line.strip("| ").split(" | ") for line in text.splitlines()[2:5]]
    assert [[cell.strip("*") for cell in row[1:4]] for row in markdown] == truth
    assert [[cell.startswith("**") for cell in row[1:4]] for row in markdown] == MARKS
    assert [row[4] for row in markdown] == seeds
    assert re.findall(r"[+−][\d.]+ \[[^]]*\]", text) == differences
    assert "Failed: fedavg, seed 8" in text

    html_page = Path("compared/report.html").read_text("utf-8")
    order = {row[0].lower(): row for row in FirstTable(html_page).rows[1:]}  # the page has the order of the paper
    assert [[cell.removesuffix("best") for cell in order[m][1:4]] for m in METHODS] == truth
    assert [[cell.endswith("best") for cell in order[m][1:4]] for m in METHODS] == MARKS
    assert [order[m][4] for m in METHODS] == seeds
    assert all(difference in html_page for difference in differences)

    with Path("compared/table.csv").open(encoding="utf-8") as file:
        in_csv = list(csv.DictReader(file))
    for rows in (json.loads(Path("compared/table.json").read_text()), in_csv):
        names = ("general", "final", "personal")
        numbers = [[(100 * float(row[f"{n}_mean"]), 100 * float(row[f"{n}_std"])) for n in names] for row in rows]
        assert [[f"{mean:.2f}±{std:.2f}" for mean, std in row] for row in numbers] == truth
        assert [[str(row[f"{n}_best"]) == "True" for n in ("general", "personal")] for row in rows] == [
            [general, personal] for general, _, personal in MARKS
        ]

    cells = [re.findall(r"(\x1b\[1m)?(\d+\.\d+±\d+\.\d+)", line) for line in said.splitlines()]
    terminal = [row for row in cells if len(row) == len(keys)]  # not the legend, nor the line of the majority class
    assert [[value for _, value in row] for row in terminal] == truth
    assert [[bool(bold) for bold, _ in row] for row in terminal] == MARKS
    with Path("compared/seeds.csv").open(encoding="utf-8") as file:
        each = list(csv.DictReader(file))
    assert [(row["method"], row["seed"]) for row in each] == [
        (method, str(seed)) for method in METHODS for seed in SEEDS if (method, seed) != ("fedavg", 8)
    ]
