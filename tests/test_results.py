"""docs/results.md: every number comes from the kept runs, by one command, and the text says what they say."""

import json
import re
import shutil
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from made_runs import make_run

from fedetf.methods import METHODS

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "benchmarks/results"
COLUMN = "CIFAR-10, α = 0.05"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The command as a module."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import results
    finally:
        sys.path.pop(0)
    return results


@pytest.fixture(scope="module")
def made(script: ModuleType) -> tuple[str, Any]:
    """The page as the kept runs give it."""
    return script.render(script.TEMPLATE.read_text("utf-8"), KEPT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the page and its pictures."""
    shutil.copytree(ROOT / "docs/images", tmp_path / "images")
    return Path(shutil.copy(ROOT / "docs/results.md", tmp_path / "results.md"))


def test_the_page_is_what_the_runs_give(script: ModuleType, made: tuple[str, Any]) -> None:
    assert script.changes(*made, script.PAGE) == [], "run python benchmarks/results.py"


def test_other_metrics_are_those_of_the_runs(script: ModuleType) -> None:
    """Means and sample deviations over seeds, worked out from the files; a metric that a method has not is a dash."""
    folders = sorted((KEPT / "sites/heart-disease").glob("fedetf-*"))
    assert len(folders) == 3
    personal, general = [], []
    for folder in folders:
        personal.append(json.loads((folder / "result.json").read_text())["metrics"]["personal"]["brier"])
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        general.append(statistics.mean(line["measures"]["auroc"] for line in lines[-5:]))
    runs = script.Page(KEPT).comparison("heart-disease")
    table = runs.scores_table(["auroc"], ["brier"]).splitlines()
    assert table[0] == "| method | rate | general: AUROC | personal: Brier score |"
    cells = [f"{statistics.mean(v):.3f} ± {statistics.stdev(v):.3f}" for v in (general, personal)]
    assert f"| fedetf | 0.08 | {cells[0]} | {cells[1]} |" in table
    assert next(line for line in table if line.startswith("| fedbn |")).startswith("| fedbn | 0.16 | - | 0.")


def test_a_number_changed_by_hand_is_found(script: ModuleType, made: tuple[str, Any], copy: Path) -> None:
    text = copy.read_text("utf-8")
    assert made[0] == text
    for at in [match.start() for match in re.finditer(r"\d", text)]:
        digit = "1" if text[at] == "2" else "2"
        copy.write_text(text[:at] + digit + text[at + 1 :], "utf-8")
        assert script.changes(*made, copy) == ["results.md"]
    script.write(*made, copy)
    assert copy.read_text("utf-8") == text


def test_a_number_changed_in_a_run_is_found(script: ModuleType, copy: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(KEPT, tmp_path / "kept"))
    (run,) = kept.glob("medium/runs/cifar10-fedrod-*-s8/rounds.jsonl")
    lines = run.read_text("utf-8").splitlines()
    lines[4] = json.dumps({**json.loads(lines[4]), "general": 0.5})  # what the picture alone shows
    run.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    made = script.render(script.TEMPLATE.read_text("utf-8"), kept)
    assert script.changes(*made, copy) == ["results-medium.png"]
    script.write(*made, copy)
    assert script.changes(*made, copy) == []


def test_no_number_is_typed(script: ModuleType) -> None:
    """What has a decimal point is a setting or a version; all else is asked for."""
    text = script.TEMPLATE.read_text("utf-8")
    prose = re.sub(r"```.*?```|\{\{.*?\}\}|\{%.*?%\}|<!--.*?-->", "", text, flags=re.DOTALL)
    assert set(re.findall(r"\S+ =? ?\(?\d+\.\d+", prose)) <= {"(α = 0.05", "α = 0.05", "α = 0.1", "PyTorch 2.13"}


def test_values_are_those_of_the_files(script: ModuleType) -> None:
    runs = script.Page(KEPT).experiment("table1", "medium", COLUMN, "fedavg,ccvr,fedetf,fedrod,fednh")
    assert {8, 9} <= set(runs.seeds)

    def file(method: str, seed: int, name: str) -> str:
        (path,) = KEPT.glob(f"medium/runs/cifar10-{method}-*-s{seed}/{name}")
        return path.read_text("utf-8")

    etf = {seed: json.loads(file("fedetf", seed, "result.json")) for seed in runs.seeds}
    assert runs.by_seed("FedETF") == {seed: result["general_last5"] for seed, result in etf.items()}
    personal = statistics.mean(result["personal"] for result in etf.values())
    assert runs.mean("FedETF", "personal") == pytest.approx(100 * personal)
    ccvr = {seed: json.loads(file("ccvr", seed, "result.json"))["general"] for seed in runs.seeds}
    assert {seed: runs.by_seed("CCVR")[seed] for seed in runs.seeds} == ccvr
    rounds = {seed: file("ccvr", seed, "rounds.jsonl").splitlines()[-5:] for seed in runs.seeds}
    fedavg = {seed: statistics.mean(json.loads(line)["general"] for line in last) for seed, last in rounds.items()}
    assert {seed: runs.by_seed("FedAvg")[seed] for seed in runs.seeds} == pytest.approx(fedavg)
    assert runs.lead("FedETF", "FedAvg") == pytest.approx(
        100 * statistics.mean(etf[seed]["general_last5"] - fedavg[seed] for seed in runs.seeds)
    )
    row = next(line for line in runs.table("table1", COLUMN).splitlines() if line.startswith("| FedETF |"))
    assert row.split(" | ")[2] == "56.08"  # the paper's


def test_a_sentence_that_does_not_hold_stops_it(script: ModuleType) -> None:
    assert script.render("{{ sure(2 > 1, 'two is more') }}", KEPT)[0] == script.HEAD
    with pytest.raises(script.NotSoError, match="one is more"):
        script.render("{{ sure(1 > 2, 'one is more') }}", KEPT)


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_came(script: ModuleType, tmp_path: Path) -> None:
    (done,) = KEPT.glob("medium/runs/cifar10-fedetf-*-s8")
    begun = Path(shutil.copytree(done, tmp_path / "medium/runs" / done.name))
    assert script.Page(tmp_path).unfinished() == ""
    (begun / "result.json").unlink()
    lines = (begun / "rounds.jsonl").read_text("utf-8").splitlines(keepends=True)
    (begun / "rounds.jsonl").write_text("".join(lines[:12]), "utf-8")
    general = 100 * json.loads(lines[9])["general"]
    last = script.Page(tmp_path).unfinished().splitlines()[-1]
    assert last == f"| FedETF | medium, cifar10, α = 0.05 | 8 | 12 of 60 | {general:.1f} (round 10) |"


def test_every_method_between_the_floor_and_the_ceiling(script: ModuleType, tmp_path: Path) -> None:
    """Runs of all methods with one seed and of some with another: the table is of the seed that all have."""
    kept = Path(shutil.copytree(KEPT, tmp_path / "kept"))
    shutil.rmtree(kept / "family", ignore_errors=True)
    for seed in (8, 9):
        for place, method in enumerate(list(METHODS)[: 5 if seed == 9 else None]):
            level = {"local": 0.1, "pooled": 0.9, "moon": 0.6}.get(method, 0.2 + place / 200)
            folder = kept / "family" / f"cifar10-{method}-s{seed}"
            result = make_run(folder, method, seed, clients=4, level=level, majority=0.25)
            result |= {"image_passes": 12_345, "bytes_up": 8 * 2**20, "bytes_down": 4 * 2**20}
            (folder / "result.json").write_text(json.dumps(result), "utf-8")
    text, _ = script.render(script.TEMPLATE.read_text("utf-8"), kept)
    section = text.split("\n## Every method\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| [")]
    between = [name for name in METHODS if name not in ("local", "pooled")]
    assert [row[0] for row in rows] == [f"[`{name}`](methods/{name}.md)" for name in ("local", *between, "pooled")]
    moon = json.loads((kept / "family/cifar10-moon-s8/result.json").read_text("utf-8"))
    bold = f"**{100 * moon['general_last5']:.1f}**"
    assert next(row for row in rows if "`moon`" in row[0])[1:] == [
        bold, f"**{100 * moon['personal']:.1f}**", "3.0", "12,345", "3",
    ]  # fmt: skip
    assert [row[0] for row in rows if row[1].startswith("**")] == ["[`moon`](methods/moon.md)"]
    assert next(row for row in rows if "`fedproto`" in row[0])[1] == "-"
    assert "seed 8, commit" in section
    shown = section.split("**What it shows.**")[1]
    assert f"`moon`, {100 * moon['general_last5']:.1f} %" in shown
    assert "most frequent class is right in 25.0 %" in shown
    assert "(`spherefed`, `feddrplus`) want one many times higher" in shown


def test_the_rates_are_those_with_the_best_validation(script: ModuleType) -> None:
    """Worked out from the files: the mean over seeds, of global models, or of personal ones where there is no other."""
    found: dict[tuple[str, float], list[float]] = {}
    for path in (KEPT / "sites/rates-heart-disease").glob("*/result.json"):
        method, rate = path.parent.name.split("-lr=")
        validation = json.loads(path.read_text())["validation"]
        value = validation["personal" if method in ("fedbn", "local") else "general_last5"]
        found.setdefault((method, float(rate.split("-")[0])), []).append(value)
    best = {
        method: max((pair for pair in found if pair[0] == method), key=lambda p: sum(found[p]))[1]
        for method, _ in found
    }
    page = script.Page(KEPT)
    assert page.chosen("rates-heart-disease") == best
    assert page.comparison("heart-disease").at(best)
    assert not page.comparison("heart-disease").at({**best, "fedetf": 0.5})
