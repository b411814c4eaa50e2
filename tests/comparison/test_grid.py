"""`fedetf compare`: the grid, what is skipped, what fails, and the table."""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.comparison.plan import plan
from fedetf.comparison.run import RunsProgress
from fedetf.comparison.table import Line
from fedetf.report.comparison import to_csv, to_json, to_markdown

SMALL = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--set", "data.limit=100", "--set", "personal.rounds=1"]
OPTIONS = {"clients": 3, "rounds": 1, "epochs": 1, "settings": {"data.limit": 100, "personal.rounds": 1}}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result(name: str) -> dict:
    return json.loads(Path(f"grid/{name}/result.json").read_text())


def test_the_table_is_the_mean_of_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--methods", "fedavg,fedproto", "--seeds", "7,8", *SMALL, "--out", "grid"]) == 0
    out, err = capsys.readouterr()
    assert "table.md" in out
    assert "[1/4] fedavg, seed 7: done" in err
    rows = {row["method"]: row for row in json.loads(Path("grid/table.json").read_text())}
    runs = [result(f"fedavg-s{seed}") for seed in (7, 8)]
    row = rows["fedavg"]
    assert row["general_mean"] == pytest.approx(statistics.mean(r["general_last5"] for r in runs))
    assert row["general_std"] == pytest.approx(statistics.pstdev(r["general_last5"] for r in runs))
    assert row["personal"] == [r["personal"] for r in runs]
    assert row["seeds"] == [7, 8]
    assert row["bytes_up_per_client"] == statistics.mean(r["bytes_up"] for r in runs) / 3
    assert row["epochs_per_client"] == pytest.approx(2)  # one round, and one personal stage
    assert rows["fedproto"]["general_mean"] is None
    with Path("grid/table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [line["method"] for line in table] == ["fedavg", "fedproto"]
    assert table[1]["general_mean"] == ""
    assert "| fedproto | - |" in Path("grid/table.md").read_text()


def test_all_methods_share_partition_schedule_and_initial_encoder() -> None:
    fedetf.compare(["fedavg", "fedrep", "fedetf"], [7], participation=0.7, out="grid", **OPTIONS)
    for name in ("partition.json", "schedule.json"):
        assert len({Path(f"grid/{m}-s7/{name}").read_bytes() for m in ("fedavg", "fedrep", "fedetf")}) == 1


def test_what_is_done_is_not_run_again_and_what_was_cut_short_is() -> None:
    first = fedetf.compare(["fedavg"], [7, 8], out="grid", **OPTIONS)
    kept = Path("grid/fedavg-s7/result.json").stat().st_mtime_ns
    Path("grid/fedavg-s8/result.json").unlink()  # as if it had been killed before the end
    Path("grid/fedavg-s8/rounds.jsonl").write_text("")
    again = fedetf.compare(["fedavg"], [7, 8], out="grid", **OPTIONS)
    assert Path("grid/fedavg-s7/result.json").stat().st_mtime_ns == kept
    assert again.lines == first.lines
    assert Path("grid/fedavg-s8/rounds.jsonl").read_text()


def test_without_out_the_same_call_finds_its_runs() -> None:
    a = fedetf.compare(["fedavg"], [7], **OPTIONS)
    b = fedetf.compare(["fedavg"], [7], **OPTIONS)
    c = fedetf.compare(["fedavg"], [8], **OPTIONS)
    assert a.folder == b.folder != c.folder
    assert a.folder.name.startswith("compare-digits-")


def test_several_values_are_axes_of_the_grid() -> None:
    flags = ["--alpha", "0.1,1.0", "--set", "train.lr=[0.01, 0.1]"]
    assert main(["compare", "--methods", "fedavg", "--seeds", "7", *SMALL, *flags, "--out", "grid"]) == 0
    rows = json.loads(Path("grid/table.json").read_text())
    assert [(row["data.alpha"], row["train.lr"]) for row in rows] == [
        ("0.1", "0.01"),
        ("0.1", "0.1"),
        ("1.0", "0.01"),
        ("1.0", "0.1"),
    ]
    assert Path("grid/fedavg-alpha=0.1-lr=0.01-s7/config.toml").is_file()


def test_without_data_nothing_is_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FEDETF_DATA", "nowhere")
    flags = ["--methods", "fedavg,fedetf", "--seeds", "7,8", "--out", "grid"]
    assert main(["compare", "cifar10", *flags]) == 2
    assert (
        capsys.readouterr().err == "error: FEDETF_DATA names 'nowhere', which is not a folder; correct it or unset it\n"
    )
    assert not list(Path("grid").glob("*/"))
    assert main(["compare", *flags, *SMALL, "--dataset", "cifar10,digits"]) == 1  # digits are there
    assert len(list(Path("grid").glob("*/result.json"))) == 4
    assert main(["compare", *flags, *SMALL, "--dataset", "cifar10,digits"]) == 1  # and again
    assert Path("grid/table.md").read_text("utf-8").count("Failed: ") == 1  # four runs, one reason


def test_one_bad_run_does_not_cost_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--set", "data.shards=[1, 99]", "--set", "data.partition=shards", "--clients", "10", "--out", "grid"]
    assert main(["compare", "--methods", "fedavg", "--seeds", "7", *SMALL, *flags]) == 1
    err = capsys.readouterr().err
    assert "error: 1 runs failed, the table has the others (fedavg, shards = 99, seed 7: data.shards = 99" in err
    assert "Failed: fedavg, shards = 99, seed 7: data.shards = 99" in Path("grid/table.md").read_text()
    assert "Traceback" in Path("grid/fedavg-shards=99-s7/error.part").read_text()
    assert main(["compare", "--methods", "fedavg", "--seeds", "7", *SMALL, *flags]) == 1  # and it can be called again
    assert [row["data.shards"] for row in json.loads(Path("grid/table.json").read_text())] == ["1"]


def test_a_methods_numbers_go_to_the_methods_that_have_them() -> None:
    _, cells = plan(["fedavg", "fedprox", "ditto"], [7], None, {"method.mu": 0.5, "method.lam": 2.0}, False, Path("g"))
    numbers = [cell.settings.method.model_dump() for cell in cells]
    assert numbers == [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.5}, {"name": "ditto", "lam": 2.0}]


def test_equal_budget_gives_everyone_the_same_personal_epochs() -> None:
    methods = ["fedavg", "fedrep", "fedetf", "fedrod"]
    options = {**OPTIONS, "settings": {"data.limit": 100, "personal.rounds": 2}}
    comparison = fedetf.compare(methods, [7], equal_budget=True, out="grid", **options)
    spent = [result(f"{m}-s7")["epochs_personal"] for m in methods]
    assert spent == pytest.approx([10] * 4)  # FedETF has 1 + 2·2 phases, FedRep 2: the least common multiple
    assert [line.epochs for line in comparison.lines] == pytest.approx([11, 12, 11, 11])  # FedRep trains twice a round
    unequal = fedetf.compare(methods, [7], out="other", **options)
    assert [line.epochs for line in unequal.lines] == pytest.approx([2, 4, 6, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fedavg,nope", "--seeds", "7"], "unknown method 'nope'"),
        (["--methods", "fedavg,fedavg", "--seeds", "7"], "--methods takes one or more different values"),
        (["--methods", ",", "--seeds", "7"], "--methods: no value given"),
        (["--methods", "fedavg", "--seeds", "x"], "--seeds: invalid int value: 'x'"),
        (["--methods", "fedavg"], "required: --seeds"),
        (["--methods", "fedavg", "--seeds", "7", "--alpha", "0.1,0"], "data.alpha"),
        (["--methods", "fedavg", "--seeds", "7", "--set", "method.mu=1"], "unknown setting 'method.mu'"),
        (["--methods", "fedavg", "--seeds", "7", "--alpha", ","], "--alpha: no value given"),
        (
            ["--methods", "fedavg", "--seeds", "7", "--alpha", "0.5,0.5"],
            "data.alpha takes one or more different values",
        ),
        (["--methods", "fedavg", "--seeds", "7", "--set", "seed=[1, 2]"], "use --seeds"),
        (["--methods", "fedavg", "--seeds", "7", "--set", "method.name=[1, 2]"], "use --methods"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(Path().iterdir()) == []


def test_a_folder_with_other_runs_is_left_alone() -> None:
    fedetf.compare(["fedavg"], [7], out="grid", **OPTIONS)
    before = Path("grid/fedavg-s7/result.json").read_bytes()
    with pytest.raises(UserError, match="holds a run with other settings"):
        fedetf.compare(["fedavg"], [7], out="grid", **{**OPTIONS, "rounds": 2})
    assert Path("grid/fedavg-s7/result.json").read_bytes() == before
    Path("mine/fedavg-s7").mkdir(parents=True)
    Path("mine/fedavg-s7/precious").write_text("")
    with pytest.raises(UserError, match="is not a run of this comparison"):
        fedetf.compare(["fedavg"], [7], out="mine", **OPTIONS)
    assert Path("mine/fedavg-s7/precious").is_file()


def test_killed_half_way_and_called_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--methods", "fedavg,ditto", "--seeds", "7,8", *SMALL]
    with subprocess.Popen([sys.executable, "-m", "fedetf", *command, "--out", "grid"], env=os.environ) as run:
        deadline = time.monotonic() + 120
        while not Path("grid/fedavg-s8/result.json").is_file() and time.monotonic() < deadline:
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
    done = {path: path.stat().st_mtime_ns for path in Path("grid").glob("*/result.json")}
    assert 2 <= len(done) < 4
    assert main([*command, "--out", "grid"]) == 0
    assert "was done before" in capsys.readouterr().err
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())
    assert main([*command, "--out", "whole"]) == 0
    for name in ("table.md", "table.csv", "table.json"):
        assert (Path("grid") / name).read_bytes() == (Path("whole") / name).read_bytes()


def test_best_two_of_each_setting_are_bold() -> None:
    def line(method: str, alpha: str, *values: float) -> Line:
        scores = {"general": dict(zip((7, 8), values, strict=True)), "personal": {7: 0.5, 8: 0.5}}
        return Line({"method": method, "data.alpha": alpha}, [7, 8], scores, 3.0, 2**20)

    lines = [line("a", "1", 0.5, 0.7), line("b", "1", 0.1, 0.1), line("c", "1", 0.9, 0.9), line("a", "2", 0.2, 0.2)]
    text = to_markdown(lines).splitlines()
    assert "| a | 1 | **60.00±10.00** |" in text[2]
    assert "| b | 1 | 10.00±0.00 |" in text[3]
    assert "| c | 1 | **90.00±0.00** |" in text[4]
    assert "| a | 2 | 20.00±0.00 |" in text[5]  # alone in its setting, it is not better than anything
    assert "| 2 | 3.0 | 1 |" in text[5]
    assert to_csv(lines).count("\n") == 5
    assert json.loads(to_json(lines))[0]["general"] == [0.5, 0.7]
    assert [row["general_place"] for row in json.loads(to_json(lines))] == [2, None, 1, None]


def test_own_method_in_a_comparison() -> None:
    Path("mine.py").write_text(
        "import fedetf\n\nclass Slow(fedetf.Method):\n    epochs: int = 1\n\n"
        "    def local(self, client):\n        client.train(self.loss, epochs=self.epochs, lr=client.lr / 10)\n"
    )
    comparison = fedetf.compare(["fedavg", "mine.py:Slow"], [7], out="grid", **OPTIONS)
    assert [line.row["method"] for line in comparison.lines] == ["fedavg", "slow"]
    assert Path("grid/slow-s7/result.json").is_file()


def test_methods_that_share_a_name_are_refused() -> None:
    Path("mine.py").write_text("import fedetf\n\nclass FedAvg(fedetf.Method):\n    pass\n")
    with pytest.raises(UserError, match="two runs would both be called fedavg"):
        fedetf.compare(["fedavg", "mine.py:FedAvg"], [7], out="grid", **OPTIONS)
    with pytest.raises(UserError, match="takes methods by name"):
        fedetf.compare([fedetf.Method], [7], out="grid", **OPTIONS)


def test_an_axis_over_a_methods_number_leaves_the_others_alone() -> None:
    _, cells = plan(["fedavg", "fedprox"], [7], None, {"method.mu": [0.1, 0.2]}, False, Path("g"))
    assert [dict(cell.row) for cell in cells] == [
        {"method": "fedavg", "method.mu": "-"},
        {"method": "fedprox", "method.mu": "0.1"},
        {"method": "fedprox", "method.mu": "0.2"},
    ]


def test_equal_budget_under_the_authors_fidelity() -> None:
    settings = {"data.limit": 100, "personal.rounds": 2, "fidelity": "authors"}
    fedetf.compare(["fedavg", "fedetf"], [7], equal_budget=True, out="grid", **{**OPTIONS, "settings": settings})
    assert [result(f"{m}-s7")["epochs_personal"] for m in ("fedavg", "fedetf")] == pytest.approx([5, 5])


def test_two_comparisons_do_not_work_in_one_folder() -> None:
    class Meddler(RunsProgress):
        def run_started(self, cell, number, total):
            with pytest.raises(UserError, match="another comparison is running in grid"):
                fedetf.compare(["fedavg"], [7], out="grid", **OPTIONS)
            seen.append(number)
            return ()

    seen: list[int] = []
    fedetf.compare(["fedavg"], [7], out="grid", progress=Meddler(), **OPTIONS)
    assert seen == [1]


def test_an_own_method_that_was_edited_is_not_taken_for_the_old_one() -> None:
    Path("mine.py").write_text("import fedetf\n\nclass Mine(fedetf.Method):\n    pass\n")
    fedetf.compare(["mine.py:Mine"], [7], out="grid", **OPTIONS)
    fedetf.compare(["mine.py:Mine"], [7], out="grid", **OPTIONS)
    later = time.time() + 10
    os.utime("mine.py", (later, later))
    with pytest.raises(UserError, match=r"mine.py:Mine has changed since"):
        fedetf.compare(["mine.py:Mine"], [7], out="grid", **OPTIONS)


def test_a_run_killed_before_its_settings_were_whole_is_run_again() -> None:
    Path("grid/fedavg-s7").mkdir(parents=True)
    Path("grid/fedavg-s7/config.toml.part").write_text("")
    assert fedetf.compare(["fedavg"], [7], out="grid", **OPTIONS).lines


def test_places_that_are_not_folders() -> None:
    Path("file").write_text("")
    with pytest.raises(UserError, match="cannot write to file"):
        fedetf.compare(["fedavg"], [7], out="file", **OPTIONS)
    Path("grid").mkdir()
    Path("grid/fedavg-s7").symlink_to(Path().resolve())
    with pytest.raises(UserError, match="is not a folder of this comparison"):
        fedetf.compare(["fedavg"], [7], out="grid", **OPTIONS)


def test_bold_is_exact_with_three_seeds() -> None:
    def line(method: str, *values: float) -> Line:
        scores = {"general": dict(zip((7, 8, 9), values, strict=True)), "personal": dict.fromkeys((7, 8, 9), 0.5)}
        return Line({"method": method}, [7, 8, 9], scores, 3.0, 2**20)

    text = to_markdown([line("a", 0.1, 0.2, 0.3), line("b", 0.05, 0.05, 0.05), line("c", 0.01, 0.01, 0.01)])
    assert text.count("**") == 4 + 6  # two of the general values, and all equal personal ones
    one = to_markdown([Line({"method": "a"}, [7], {"general": {7: 0.5}, "personal": {7: 0.5}}, 1.0, 1.0)])
    assert "| 50.00 |" in one  # of one seed there is no deviation
