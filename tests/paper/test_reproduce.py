"""The paper's tables and figures: the files against the paper's text, and smoke runs of all of them."""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedetf.cli import main
from fedetf.comparison.standing import judge_columns
from fedetf.config import resolve
from fedetf.data.partition import make_partition
from fedetf.errors import UserError
from fedetf.methods import METHODS
from fedetf.paper.experiment import (
    Claim,
    Part,
    ScaleName,
    column_names,
    experiment_names,
    load_experiment,
    load_scale,
    plan,
)
from fedetf.paper.run import reproduce
from fedetf.paper.tables import _marked, really_run, write_reproduction
from fedetf.paper.verdicts import Results, in_the_paper, judge, paper_values, sentence
from fedetf.runs.read import Run
from fedetf.runs.records import RoundLine, RunResult

TABLES = ["table1", "table2", "table3", "table4", "table5"]
FIGURES = ["fig1", "fig4", "fig5", "fig6", "fig7"]


def settings_of(name: str, scale: str = "paper") -> list:
    return [trial.run.settings for trial in plan(load_experiment(name), scale, Part(), {}, Path("out"))]


# --- the files --------------------------------------------------------------------------------------------------------


def test_there_are_ten() -> None:
    assert experiment_names() == sorted(TABLES + FIGURES)


@pytest.mark.parametrize(
    ("name", "count", "total"),  # of all numbers, means and deviations, in the source of the paper's table
    [
        ("table1", 228, "5444.95"),
        ("table2", 80, "2618.31"),
        ("table3", 80, "2777.42"),
        ("table4", 56, "2113.44"),
        ("table5", 20, "485.91"),
    ],
)
def test_a_table_has_the_papers_value_for_every_row_and_column(name: str, count: int, total: str) -> None:
    experiment = load_experiment(name)
    assert all(len(row.values) == len(experiment.column) for row in experiment.row)
    words = [word for row in experiment.row for value in row.values for word in value.split() if word != "-"]
    numbers = [Decimal(number) for word in words for number in word.split("±")]
    assert (len(numbers), str(sum(numbers))) == (count, total)


def test_figure5_has_the_accuracies_of_its_caption() -> None:
    assert [row.values for row in load_experiment("fig5").row] == [["29.73"], ["54.95"]]


def test_the_papers_tables_agree_where_they_overlap() -> None:
    """ResNet-20 in Table 4 is CIFAR-10, α = 0.1 of Table 1; Ditto's global model is FedAvg's."""
    first, fourth = (load_experiment(name) for name in ("table1", "table4"))
    main_results = {row.name: row.values for row in first.row}
    encoders = {row.name: row.values for row in fourth.row}
    resnet20 = [column.name for column in fourth.column].index("ResNet20")
    for method in ("FedAvg", "FedETF"):
        assert encoders[method][resnet20] == main_results[method][0]
    for ditto, fedavg in zip(main_results["Ditto"], main_results["FedAvg"], strict=True):
        assert ditto.split()[0] == fedavg.split()[0]
    assert main_results["FedETF"][1] == "56.08±3.44 92.62±0.54"


def test_the_papers_scale_is_the_papers() -> None:
    runs = settings_of("table1")
    assert {s.method.name for s in runs} == set(list(METHODS)[:10])
    for s in runs:
        tiny = s.data.name == "tiny-imagenet"
        assert (s.data.clients, s.train.participation) == (20, 1.0)
        assert (s.train.rounds, s.train.epochs) == ((50, 1) if tiny else (200, 3))
        assert s.train.lr == (0.04 if s.data.name == "cifar10" else 0.01)
        assert (s.train.lr_decay, s.train.momentum, s.train.weight_decay) == (0.99, 0.9, 5e-4)  # appendix B
        assert s.model.name == ("resnet18" if tiny else "resnet20")
        assert (s.data.limit, s.data.size) == (None, None) or tiny
    assert {(s.data.clients, s.train.participation) for s in settings_of("table2")} == {
        (50, 0.4), (50, 0.6), (100, 0.4), (100, 0.6),
    }  # fmt: skip
    assert {s.train.epochs for s in settings_of("table3")} == {1, 2, 4, 8}
    assert len({s.model.name for s in settings_of("table4")}) == 7
    for name in (*TABLES, "fig1", "fig4", "fig5", "fig6"):  # "In all the experiments, we conduct three trials"
        for trial in plan(load_experiment(name), "paper", Part(), {}, Path("out")):
            s = trial.run.settings
            authors_own = (s.data.name, s.data.alpha) == ("cifar10", 0.05) or name == "fig1"
            assert s.seed in ({7, 8, 9} if authors_own else {8, 9, 10})
        assert len(settings_of(name)) % 3 == 0
    assert {s.data.alpha for name in ("table2", "table3", "table4", "fig6") for s in settings_of(name)} == {0.1}
    without = [s.method.model_dump() for s in settings_of("table5")]
    assert sum(m.get("projection") is False for m in without) == 6
    assert sum(m.get("balanced") is False for m in without) == 6
    assert sum(m.get("learn_beta") is False for m in without) == 6


def test_seeds_at_alpha_005_draw_the_authors_partitions_at_once() -> None:
    """5,000 images of each of ten classes, 20 clients: seed 10 leaves a client with two images, and is drawn again."""
    labels, data = np.repeat(np.arange(10), 5000), resolve("cifar10", {"data.alpha": 0.05}).data
    partitions = {seed: make_partition(labels, [str(c) for c in range(10)], data, seed) for seed in (7, 8, 9, 10)}
    assert {seed: partition.draws for seed, partition in partitions.items()} == {7: 1, 8: 1, 9: 1, 10: 2}
    sizes = {seed: [len(a) + len(b) for a, b in zip(p.train, p.test, strict=True)] for seed, p in partitions.items()}
    extremes = {seed: (min(each), max(each)) for seed, each in sizes.items() if seed < 10}
    assert extremes == {7: (29, 11924), 8: (13, 9814), 9: (10, 10673)}  # as the authors' routine gives them


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("E = 1", ["E = 1"]),
        ("e=8,E = 1", ["E = 8", "E = 1"]),
    ],
)
def test_columns_by_name(text: str, names: list[str]) -> None:
    assert column_names(load_experiment("table3"), text) == names


def test_a_column_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["reproduce", "table3", "--methods", "fedavg", "--out", str(tmp_path)]
    assert main([*flags, "--columns", "E=2"]) == 0
    assert [json.loads(path.read_text())["epochs_train"] for path in tmp_path.glob("runs/*/result.json")] == [4]
    assert "--columns 'E = 2'" in (tmp_path / "table3/table3-E-=-2-fedavg.md").read_text("utf-8")
    assert main([*flags, "--columns", "E=2,E=3"]) == 2
    assert "unknown column of this experiment 'E=3'" in capsys.readouterr().err


def test_the_medium_scale_is_all_of_cifar() -> None:
    runs = settings_of("table1", "medium")
    assert {(s.data.name, s.data.alpha) for s in runs} == {("cifar10", 0.1), ("cifar10", 0.05), ("cifar100", 0.05)}
    for s in runs:
        assert (s.data.limit, s.data.test_limit, s.data.size, s.data.clients) == (None, None, 16, 20)
        assert (s.train.rounds, s.train.epochs, s.train.batch_size) == (60, 1, 64)
        assert s.train.lr == (0.04 if s.data.name == "cifar10" else 0.01)
        assert [t for t in range(1, 61) if s.measure.due(t, 60)] == [*range(5, 56, 5), *range(56, 61)]
    assert {s.seed for s in runs} == {7, 8, 9}


def test_experiments_share_runs_with_the_same_settings() -> None:
    def folders(name: str, overrides: dict | None = None, scale: ScaleName = "small") -> set[Path]:
        return {t.run.folder for t in plan(load_experiment(name), scale, Part(), overrides or {}, Path("out"))}

    assert folders("fig5", scale="paper") < folders("table1", scale="paper")
    assert len(folders("table5") & folders("table1")) == 12  # FedAvg and FedETF, two α, three seeds
    assert folders("fig4") < folders("table1")
    assert folders("fig5", {"engine.name": "serial"}) == folders("fig5")
    assert not folders("fig5", {"fidelity": "authors"}) & folders("fig5")


def test_a_column_or_a_row_can_have_seeds_of_its_own() -> None:
    def seeds(row: str, column: str, *given: int) -> list[int]:
        trials = plan(load_experiment("table1"), "small", Part(seeds=given), {}, Path("out"))
        return [t.run.settings.seed for t in trials if (t.row, t.column) == (row, column)]

    assert seeds("FedETF", "CIFAR-10, α = 0.05") == [8, 9, 10]
    assert seeds("FedProx", "CIFAR-10, α = 0.05") == [8, 9]
    assert seeds("FedETF", "CIFAR-100, α = 0.05") == [8]
    assert seeds("FedETF", "CIFAR-100, α = 0.05", 1, 2) == [1, 2]


def test_a_part_of_an_experiment() -> None:
    part = Part(datasets=["cifar100"], methods=["fedavg"], seeds=[1])
    trials = plan(load_experiment("table1"), "paper", part, {}, Path("out"))
    assert [(t.run.settings.data.name, t.run.settings.seed) for t in trials] == [("cifar100", 1)] * 2
    with pytest.raises(
        UserError, match="unknown dataset of this experiment at scale smoke 'cifar100'; choose from: digits"
    ):
        plan(load_experiment("table1"), "smoke", Part(datasets=["cifar100"]), {}, Path("out"))
    with pytest.raises(UserError, match="leave nothing of this experiment at scale small"):
        plan(load_experiment("table1"), "small", Part(datasets=["cifar100"], methods=["ccvr"]), {}, Path("out"))
    with pytest.raises(UserError, match="--methods takes different values"):
        plan(load_experiment("table1"), "smoke", Part(methods=["fedavg", "fedavg"]), {}, Path("out"))
    with pytest.raises(UserError, match="unknown experiment 'table9'"):
        load_experiment("table9")
    with pytest.raises(UserError, match="unknown scale"):
        load_scale("huge")


# --- claims -----------------------------------------------------------------------------------------------------------


def made_result(**values: object) -> RunResult:
    costs = dict.fromkeys(("rounds", "epochs_train", "epochs_personal", "bytes_up", "bytes_down"), 0)
    accuracies = {"general_last5": None, "personal": None}
    return RunResult.model_validate({"method": "fedavg", "seed": 8, "clients": 1, **costs, **accuracies, **values})


def made_up(**general: float) -> Results:
    """Two seeds; the second is one point better for all, and a little more so for A."""

    def run(value: float, seed: int, lucky: bool) -> Run:
        reached = value + 0.01 * (seed - 8) + (0.002 * (seed - 8) if lucky else 0)
        rounds = [RoundLine(round=t + 1, measures={"nc2": reached + t}) for t in range(7)]
        return Run(Path(), made_result(seed=seed, general_last5=reached), rounds)

    return Results({(row, "here"): [run(v, s, row == "A") for s in (8, 9)] for row, v in general.items()})


def said(claim: Claim, results: Results, columns: tuple[str, ...] = ("here",)) -> str:
    return sentence(claim, judge(claim, results, columns))


def test_claims_in_one_line() -> None:
    """Student's t at one degree of freedom is 12.706, the differences are x and x + 0.2 points: x + 0.1 ± 1.2706."""
    claim = Claim(text="A above the others", metric="general", more="A", less=["B", "C"])
    over = "+9.9 points over C [+8.6, +11.2], 2 seeds"
    assert said(claim, made_up(A=0.5, B=0.3, C=0.402)) == f"A above the others: yes, {over}"
    without = "A above the others: no, -9.9 points over B [-11.2, -8.6], 2 seeds (without C, not run)"
    assert said(claim, made_up(A=0.5, B=0.6)) == without
    assert said(claim, made_up(A=0.5, B=0.4)).startswith("A above the others: yes so far, +10.1 points over B")
    near = "A above the others: not shown, +0.5 points over C [-0.8, +1.8], 2 seeds"
    assert said(claim, made_up(A=0.5, B=0.3, C=0.496)) == near  # the mean is ahead, the interval is not
    level = "A above the others: level, +0.0 points over C [-1.2, +1.3], 2 seeds"
    assert said(claim, made_up(A=0.5, B=0.3, C=0.5007)) == level
    assert "cannot be said" in said(claim, made_up(A=0.5))
    there = f"A above the others: yes, {over} (here); no runs for there"
    assert said(claim, made_up(A=0.5, B=0.3, C=0.402), ("here", "there")) == there
    lower = Claim(text="B's error is lower", metric="nc2", more="A", less=["B"])  # mean of the last five rounds
    text = "B's error is lower: yes, A 4.206, B 4.105 (+0.1) [+0.088, +0.11], 2 seeds"
    assert said(lower, made_up(A=0.2, B=0.1)) == text
    personal = Claim(text="x", metric="personal", more="A", less=["B"])
    assert "cannot be said" in said(personal, made_up(A=0.5, B=0.6))


def test_a_claim_over_several_settings() -> None:
    here, there = made_up(A=0.5, B=0.3), made_up(A=0.5, B=0.496)
    results = Results({**here.runs, **{(row, "there"): runs for (row, _), runs in there.runs.items()}})
    claim = Claim(text="t", metric="general", more="A", less=["B"])
    assert said(claim, results, ("here", "there")).startswith("t: shown in 1 of 2 settings, +20.1 points")


def test_only_seeds_that_both_have_are_compared() -> None:
    results = made_up(A=0.3, B=0.4)
    lucky = Run(Path(), made_result(seed=10, general_last5=0.9), [])
    results.runs["A", "here"].append(lucky)
    claim = Claim(text="t", metric="general", more="A", less=["B"])
    assert said(claim, results) == "t: no, -9.9 points [-11.2, -8.6], 2 seeds"


def test_how_often_a_claim_holds_in_the_paper_itself() -> None:
    experiment = load_experiment("table1")
    assert [in_the_paper(claim, experiment) for claim in experiment.claim] == [
        " [the paper: in 6 of 6]",
        " [the paper: in 5 of 6]",  # Tiny-ImageNet, α = 0.05: CCVR
        " [the paper: in 4 of 6]",  # CIFAR-100: FedRep, FedNH and others
    ]


@pytest.mark.parametrize("setting", ["data.alpha=0.5", "method.name=fedavg", "seed=3"])
def test_what_an_experiment_varies_cannot_be_set(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table5", "--set", setting]) == 2
    assert "is set by the experiment itself" in capsys.readouterr().err


def test_what_only_another_scale_varies_can_be_set() -> None:
    for name, setting in (("table1", {"data.limit": 100}), ("table3", {"train.rounds": 1})):
        assert plan(load_experiment(name), "smoke", Part(), setting, Path("out"))
    with pytest.raises(UserError, match="is set by the experiment itself"):
        plan(load_experiment("table1"), "small", Part(), {"data.limit": 100}, Path("out"))


@pytest.mark.parametrize("no", ["false", "0", "off"])
def test_a_figure_of_measures_needs_them(no: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig1", "--set", f"measure.collapse={no}"]) == 2
    assert "leave it on" in capsys.readouterr().err


def test_the_first_step_of_finetuning() -> None:
    steps = Run(Path(), made_result(personal=0.9, personal_curve=[0.1, 0.5, 0.9]), [])
    assert steps.value("personal_first") == 0.5
    assert Run(Path(), made_result(personal=0.9), []).value("personal_first") == 0.9


def test_beside_the_paper_stands_the_population_deviation_on_common_seeds() -> None:
    def marked(*rows: dict[int, float]) -> list[str]:
        return [_marked(standing) for standing in judge_columns({"general": rows})["general"].standings]

    assert marked({8: 0.5, 9: 0.9, 10: 0.1}, {8: 0.6, 9: 0.61}, {}) == ["70.00±20.00", "60.50±0.50", "-"]
    assert marked({8: 0.5, 9: 0.6, 10: 0.7}, {8: 0.1, 9: 0.21, 10: 0.3})[0] == "**60.00±8.16**"


def test_a_damaged_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["reproduce", "table5", "--methods", "fedavg", "--out", str(tmp_path)]
    assert main(flags) == 0
    next(tmp_path.glob("runs/*/result.json")).write_text("")
    capsys.readouterr()
    assert main(flags) == 2
    assert "result.json is damaged: it is not JSON" in (said := capsys.readouterr().err.splitlines()[-1])
    assert "and the same command makes it anew" in said


def test_two_columns_in_one_claim() -> None:
    iid, skewed = (made_up(A=value).runs["A", "here"] for value in (0.9, 0.4))
    results = Results({("A", "iid"): iid, ("A", "skewed"): skewed})
    claim = Claim(text="t", metric="general", more="A", less=["A"], more_column="iid", less_column="skewed")
    assert said(claim, results) == "t: not shown, +50.0 points [+50.0, +50.0], 2 seeds"  # by signs alone, p is 0.5


def test_what_the_paper_does_not_print_is_a_dash() -> None:
    assert paper_values({"A": ["1±2 3±4", "5±6"]}, "A", 0) == ("1±2", "3±4")
    assert paper_values({"A": ["1±2 3±4", "5±6"]}, "A", 1) == ("5±6", "-")
    assert paper_values({}, "A", 0) == ("-", "-")


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_smoke_of_a_figure_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig5", "--out", str(tmp_path)]) == 0
    first = capsys.readouterr()
    assert "neural-collapse error, of class means as they are: " in " ".join(first.out.split())
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    assert len(runs) == 2
    assert main(["reproduce", "fig5", "--out", str(tmp_path)]) == 0
    assert "was done before" in capsys.readouterr().err
    assert runs == {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    assert_drawn(tmp_path / "fig5/fig5.png")
    assert (tmp_path / "fig5/fig5.pdf").read_bytes().startswith(b"%PDF")


def test_a_table_shows_our_value_beside_the_papers(tmp_path: Path) -> None:
    assert main(["reproduce", "table5", "--seeds", "9", "--methods", "fedavg", "--out", str(tmp_path)]) == 0
    table = (tmp_path / "table5/table5-fedavg-s9.md").read_text("utf-8")
    (ours, *_) = [json.loads(path.read_text())["general_last5"] for path in tmp_path.glob("runs/*/result.json")]
    line = next(line for line in table.splitlines() if line.startswith("| FedAvg |"))
    assert "43.75±0.42" in line
    assert f"| {100 * ours:.2f} |" in line
    assert f"`fedetf reproduce table5 --scale smoke --methods fedavg --seeds 9 --out {tmp_path.name}`" in table
    assert "## α = 0.1 (digits instead)" in table
    page = (tmp_path / "table5/table5-fedavg-s9.html").read_text("utf-8")
    assert ">Table 5: ablation of FedETF</h1>" in page
    assert "FedETF above FedAvg in general accuracy: cannot be said" in page


def test_figure7_needs_no_run(tmp_path: Path) -> None:
    found = reproduce("fig7", out=tmp_path)
    assert list(found.partitions) == ["CIFAR-10, α = 0.1", "CIFAR-10, α = 0.05"]
    assert not found.trials
    few = reproduce("fig7", overrides={"data.clients": 5}, out=tmp_path)
    said = "digits, 200 samples, 100 test samples, 5 clients, alpha = 0.1, seed 8"
    assert really_run(few, ["CIFAR-10, α = 0.1"]) == said
    assert "alpha = 0.1 or alpha = 0.05" in really_run(few, few.columns)
    with pytest.raises(UserError, match="with one seed"):
        reproduce("fig7", part=Part(methods=["fedavg"]), out=tmp_path)


def test_figure6_without_its_method_and_figure7_with_a_seed(tmp_path: Path) -> None:
    assert main(["reproduce", "fig6", "--methods", "fedavg", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "fig6/fig6-fedavg.png").is_file()
    eight, nine = (reproduce("fig7", part=Part(seeds=[s]), out=tmp_path).partitions for s in (8, 9))
    assert any((eight[column].counts != nine[column].counts).any() for column in eight)


def test_a_long_command_has_files_with_a_short_name(tmp_path: Path) -> None:
    long = {"data.clients": 5, "data.test_limit": 50, "data.size": 8, "train.batch_size": 32, "train.lr": 0.01}
    found = [reproduce("fig7", overrides={**long, "personal.rounds": n}, out=tmp_path) for n in (1, 2)]
    assert len({one.stem for one in found}) == 2
    assert all(len(one.stem) < 120 for one in found)
    assert all(path.is_file() for path in write_reproduction(found[0]))


def test_bad_names_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig2"]) == 2
    assert "fig1, fig4" in capsys.readouterr().err


@pytest.mark.slow
def test_smoke_of_everything(tmp_path: Path) -> None:
    for name in TABLES + FIGURES:
        few = ["--methods", "fedetf"] if name == "table4" else []  # the others train; its seven nets are large
        assert main(["reproduce", name, "--out", str(tmp_path), *few]) == 0
        stem = "table4-fedetf" if few else name
        if name in FIGURES:
            assert_drawn(tmp_path / name / f"{name}.png")
            assert (tmp_path / name / f"{name}.pdf").is_file()
        else:
            assert (tmp_path / name / f"{stem}.md").is_file()
            assert (tmp_path / name / f"{stem}.csv").is_file()
            assert (tmp_path / name / f"{stem}.html").is_file()


def assert_drawn(path: Path) -> None:
    """A picture with something in it."""
    with Image.open(path) as picture:
        colours = picture.convert("RGB").getcolors(maxcolors=2**24)
    assert colours is not None
    assert len(colours) > 20
