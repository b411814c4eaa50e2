"""`fedetf compare`: the grid, what is skipped, what fails, and the table."""

import csv
import json
import os
import statistics
import time
from pathlib import Path

import pytest
from made_runs import make_run
from processes import Forked

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.comparison.plan import plan, written_out
from fedetf.comparison.run import Comparison, RunsProgress
from fedetf.comparison.table import Line, Table
from fedetf.methods import METHODS
from fedetf.report.comparison import to_csv, to_json, to_markdown, write_tables
from fedetf.report.figures import critical_difference_figure
from fedetf.report.latex import to_latex
from fedetf.runs.read import read_run, scores_by_seed

SMALL = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--set", "data.limit=100", "--set", "personal.rounds=1"]
SMALL += ["--no-references"]
OPTIONS = {
    "references": False,
    "clients": 3,
    "rounds": 1,
    "epochs": 1,
    "settings": {"data.limit": 100, "personal.rounds": 1},
}

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
    assert "General is the global model on the test set" in out
    assert "± is the sample standard deviation" in out
    assert "[1/4] fedavg, seed 7: done" in err
    rows = {row["method"]: row for row in json.loads(Path("grid/table.json").read_text())}
    runs = [result(f"fedavg-s{seed}") for seed in (7, 8)]
    row = rows["fedavg"]
    assert row["general_mean"] == pytest.approx(statistics.mean(r["general_last5"] for r in runs))
    assert row["general_std"] == pytest.approx(statistics.stdev(r["general_last5"] for r in runs))
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
    assert "error: 1 run failed, the table has the others (fedavg, shards = 99, seed 7: data.shards = 99" in err
    assert "Failed: fedavg, shards = 99, seed 7: data.shards = 99" in Path("grid/table.md").read_text()
    assert "Traceback" in Path("grid/fedavg-shards=99-s7/error.part").read_text()
    assert main(["compare", "--methods", "fedavg", "--seeds", "7", *SMALL, *flags]) == 1  # and it can be called again
    assert [row["data.shards"] for row in json.loads(Path("grid/table.json").read_text())] == ["1"]


def test_where_all_runs_fail_the_reason_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--set", "data.unseen=3", "--clients", "3", "--out", "grid"]
    assert main(["compare", "--methods", "fedavg", "--seeds", "7,8", *SMALL, *flags]) == 1
    (error,) = [said for said in capsys.readouterr().err.splitlines() if said.startswith("error: ")]
    assert error.startswith("error: 2 runs failed, so there is no table (fedavg, seed 7, fedavg, seed 8: data.unseen")


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
    run = Forked(*command, "--out", "grid")
    deadline = time.monotonic() + 120
    while not Path("grid/fedavg-s8/result.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    run.kill()
    run.wait()
    done = {path: path.stat().st_mtime_ns for path in Path("grid").glob("*/result.json")}
    assert 2 <= len(done) < 4
    assert main([*command, "--out", "grid"]) == 0
    assert "was done before" in capsys.readouterr().err
    assert all(path.stat().st_mtime_ns == then for path, then in done.items())
    assert main([*command, "--out", "whole"]) == 0
    for name in ("table.md", "table.csv", "table.json"):
        assert (Path("grid") / name).read_bytes() == (Path("whole") / name).read_bytes()


def line(method: str, alpha: str, *values: float) -> Line:
    seeds = list(range(7, 7 + len(values)))
    general = dict(zip(seeds, values, strict=True))
    scores = {"general": general, "final": general, "personal": dict.fromkeys(seeds, 0.5)}
    return Line({"method": method, "data.alpha": alpha}, seeds, scores, 3.0, 2**20)


def test_in_bold_is_the_best_where_others_are_shown_to_be_behind() -> None:
    lines = [line("a", "1", 0.5, 0.6, 0.7), line("b", "1", 0.1, 0.21, 0.3), line("a", "2", 0.2, 0.2, 0.2)]
    table = Table([*lines, line("c", "3", 0.1, 0.9, 0.5), line("d", "3", 0.8, 0.2, 0.4), line("local", "1", 0.9)])
    text = to_markdown(table).splitlines()
    assert "| a | 1 | **60.00±10.00** | 60.00±10.00 | 50.00±0.00 | 3 | 3.0 | 1 |" in text[2]
    assert "| b | 1 | 20.33±10.02 |" in text[3]
    assert "| a | 2 | 20.00±0.00 |" in text[4]  # alone in its setting, it is not better than anything
    assert "| c | 3 | 50.00±40.00 |" in text[5]  # better in the mean only
    assert "| local (reference) | 1 | 90.00 |" in text[7]
    records = json.loads(to_json(table))
    assert [row["general_best"] for row in records] == [True, False, False, False, False, False]
    assert [row["general_shown"] for row in records] == [
        None, "behind", None, None, None, None
    ]  # fmt: skip  # where a is not, there is nobody to compare with
    assert [row["reference"] for row in records] == [False] * 5 + [True]
    assert records[0]["general"] == [0.5, 0.6, 0.7]
    assert "| b | 1 | −39.67 [−41.10, −38.23] | behind | +0.00 [+0.00, +0.00] | identical |" in "\n".join(text)


def test_latex_is_ready_for_a_paper() -> None:
    lines = [line("fedavg", "1", 0.1, 0.21, 0.3), line("fedetf", "1", 0.5, 0.6, 0.7), line("local", "1", 0.4)]
    text = to_latex(Table([*lines, line("my_own", "2", 0.5)]), "100 % of digits")
    cells = [row.removesuffix(r" \\").split(" & ") for row in text.splitlines() if row.endswith(r"\\")]
    assert cells == [
        ["", r"\multicolumn{2}{c}{alpha = 1}", r"\multicolumn{2}{c}{alpha = 2}"],
        ["Method", *[r"General (\%)", r"Personal (\%)"] * 2],
        ["FedAvg", r"20.33 {\scriptsize$\pm$10.02}$^{\downarrow}$", r"50.00 {\scriptsize$\pm$0.00}$^{=}$", "--", "--"],
        ["FedETF", r"\textbf{60.00} {\scriptsize$\pm$10.00}", r"50.00 {\scriptsize$\pm$0.00}", "--", "--"],
        [r"my\_own", "--", "--", "50.00", "50.00"],
        ["Local", "40.00", "50.00", "--", "--"],
    ]
    assert r"100 \% of digits" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for begun in ("table", "tabular"):
        assert text.count(rf"\begin{{{begun}}}") == text.count(rf"\end{{{begun}}}") == 1


def test_names_do_not_break_tables() -> None:
    lines = [line("=a|b<c>", "1", 0.5, 0.6, 0.7), line("fedetf", "1", 0.5, 0.6, 0.7)]
    first = to_markdown(Table(lines)).splitlines()[2]
    assert first.startswith(r"| =a\|b<c> | 1 | 60.00±10.00 |")
    assert to_csv([{"method": "=1+1", "alpha": "-0.5", "general": -0.5}]).splitlines()[1] == "'=1+1,-0.5,-0.5"
    text = to_latex(Table(lines), "digits")
    assert "=a$|$b$<$c$>$ &" in text
    assert "$^{=}$~identical to fedetf" in text
    lines[1] = line("fedetf", "1", 0.5, 0.7, 0.6)
    lines[1].scores["personal"][7] = 0.4
    assert "identical" not in to_latex(Table(lines), "digits")  # no mark, no word on it


def test_the_share_of_the_majority_class_is_on_the_same_seeds(tmp_path: Path) -> None:
    def made(method: str, *seeds: int) -> Line:
        places = {seed: tmp_path / f"{method}-{seed}" for seed in seeds}
        for seed, place in places.items():
            make_run(place, method, seed, majority=seed / 10)
        runs = [read_run(place) for place in places.values()]
        scores = {which: scores_by_seed(runs, which) for which in ("general", "final", "personal")}
        return Line({"method": method, "train.lr": "0.1"}, list(seeds), scores, 3.0, 1.0, frozenset(["train.lr"]), runs)

    table = Table([made("fedavg", 3, 4, 5), made("fedetf", 4, 5)])
    assert [share.mean for share in table.majority.values()] == [pytest.approx(0.45)]
    assert "| majority class (reference) | - | - | - | 45.00±7.07 | 2 |" in to_markdown(table)  # it has no rate


def test_a_diagram_over_five_settings(tmp_path: Path) -> None:
    lines = [line(m, str(a), v, v + 0.01 * a) for a in range(5) for m, v in (("a", 0.2), ("b", 0.4), ("c", 0.3))]
    paths = write_tables(Comparison(tmp_path, Table(lines), "made up"))
    assert [path.name for path in paths[5:]] == [
        f"critical-difference-general.{ending}" for ending in ("png", "pdf")
    ] + [f"critical-difference-personal.{ending}" for ending in ("png", "pdf")]
    text = Path(paths[0]).read_text("utf-8")
    assert "General: Over 5 settings the methods differ" in text
    assert "Mean ranks, 1 is best: b 1.00, c 2.00, a 3.00. Ranks that are 1.48 apart differ (Nemenyi, 5 %)." in text
    assert "Personal: Over 5 settings the methods are not shown to differ" in text  # all are the same
    figure = critical_difference_figure(Table(lines).overall["general"], "General")
    named = {text.get_text().strip(): text.get_position()[0] for text in figure.axes[0].texts}
    assert {"b 1.00", "c 2.00", "3.00 a", "critical difference 1.48"} <= named.keys()
    (bars,) = [[*map(float, drawn.get_xdata())] for drawn in figure.axes[0].lines if drawn.get_linewidth() == 3][1:]
    assert bars == pytest.approx([1.96, 3.04])  # c and a; the other bar is over b and c


def test_every_seed_as_a_data_frame() -> None:
    frame = fedetf.compare(["fedavg", "fedetf"], [7, 8], out="grid", **OPTIONS).to_frame()
    assert list(frame["run"]) == ["fedavg-s7", "fedavg-s8", "fedetf-s7", "fedetf-s8"]
    for name, row in zip(frame["run"], frame.to_dict("records"), strict=True):
        there = result(name)
        assert (row["general"], row["final"], row["personal"]) == (
            there["general_last5"], there["general"], there["personal"]
        )  # fmt: skip
        assert row["seed"] == there["seed"]


def test_the_majority_class_is_what_a_constant_answer_reaches() -> None:
    found = fedetf.run(clients=3, rounds=1, epochs=1, settings={"data.limit": 100, "personal.enabled": False})
    labels, shares = found.job.dataset.train.y, []
    for train, test in zip(found.partition.train, found.partition.test, strict=True):
        answer = int(labels[train].mode().values)
        shares.append(float((labels[test] == answer).float().mean()))
    assert found.summary["personal_majority"] == pytest.approx(statistics.mean(shares))
    assert found.summary["majority_per_client"] == pytest.approx(shares)


def test_references_are_run_and_stand_apart() -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "references"}
    compared = fedetf.compare(["fedavg"], [7], out="grid", **options)
    assert [line.row["method"] for line in compared.lines] == ["fedavg", "local", "pooled"]
    assert [line.reference for line in compared.lines] == [False, True, True]
    assert "--no-references" not in Path("grid/command.txt").read_text()
    noisy = {**OPTIONS["settings"], "update.noise": 1.0, "update.clip": 1.0, "model.name": "mlp"}
    hidden = fedetf.compare(["fedavg"], [7], out="noisy", **{**options, "settings": noisy})
    assert [line.row["method"] for line in hidden.lines] == ["fedavg", "local"]  # pooled has nobody to hide
    assert not hidden.failed


def test_another_metric_and_another_rival() -> None:
    flags = ["--metric", "log_loss", "--against", "FedProx", "--out", "grid"]
    assert main(["compare", "--methods", "fedavg,fedprox", "--seeds", "7,8", *SMALL, *flags]) == 0
    text = Path("grid/table.md").read_text("utf-8")
    losses = [result(f"fedavg-s{seed}")["metrics"]["general"]["log_loss"] for seed in (7, 8)]  # of one round: the mean
    assert f"| fedavg | {statistics.mean(losses):.4f}±{statistics.stdev(losses):.4f} |" in text
    assert "Differences to fedprox" in text
    assert "Log loss" in Path("grid/report.html").read_text("utf-8")
    assert "--metric log_loss --against fedprox" in Path("grid/command.txt").read_text()
    with pytest.raises(UserError, match="--against fedrod is not one of the compared methods"):
        fedetf.compare(["fedavg"], [7], against="fedrod", out="other", **OPTIONS)
    with pytest.raises(UserError, match="unknown metric 'nope'"):
        fedetf.compare(["fedavg"], [7], metric="nope", out="other", **OPTIONS)
    assert not Path("other").exists()


def test_own_method_in_a_comparison() -> None:
    Path("mine.py").write_text(
        "import fedetf\n\nclass Slow(fedetf.Method):\n    epochs: int = 1\n\n"
        "    def local(self, client):\n        client.train(self.loss, epochs=self.epochs, lr=client.lr / 10)\n"
    )
    comparison = fedetf.compare(["fedavg", "mine.py:Slow"], [7], out="grid", **OPTIONS)
    assert [line.row["method"] for line in comparison.lines] == ["fedavg", "slow"]
    assert Path("grid/slow-s7/result.json").is_file()


def test_methods_that_share_a_name_are_told_apart() -> None:
    Path("mine.py").write_text("import fedetf\n\nclass FedAvg(fedetf.Method):\n    pass\n")
    _, cells = plan(["mine.py:FedAvg", "fedavg"], [7], None, {}, False, Path("g"))
    assert [(cell.row, cell.folder.name) for cell in cells] == [
        ((("method", "fedavg"),), "fedavg-s7"),
        ((("method", "fedavg (2)"),), "fedavg-2-s7"),
    ]


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


def test_all_stands_for_every_method_of_fedetf_and_for_each_once() -> None:
    class Mine(fedetf.Method):
        """The user's own."""

    assert written_out(["all"]) == list(METHODS)
    assert written_out(["fedetf", "all", Mine]) == ["fedetf", *(name for name in METHODS if name != "fedetf"), Mine]
    assert written_out(["fedavg", "fedavg"]) == ["fedavg", "fedavg"]  # that is for plan to refuse
    assert len(METHODS) >= 32


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_methods_give_a_row_each(tmp_path: Path) -> None:
    tiny = {"data.limit": 90, "data.test_limit": 20, "personal.rounds": 1, "measure.tensorboard": False}
    comparison = fedetf.compare(
        ["all"], [7], clients=3, alpha=0.3, rounds=1, epochs=1, model="mlp", settings=tiny, out=tmp_path / "grid"
    )
    assert not comparison.failed
    assert [line.row["method"] for line in comparison.lines] == list(METHODS)
