"""The report without a browser: what is gathered, how it is named and summed up, and that everything is escaped."""

import html.parser
import json
import shlex
import shutil
import statistics
from pathlib import Path

import pytest
from made_runs import make_run

import fedetf
from fedetf import UserError
from fedetf.cli import build_parser, main
from fedetf.cli.flags import given_settings
from fedetf.comparison.caption import caption
from fedetf.comparison.plan import plan
from fedetf.config import resolve
from fedetf.report.curves import curve, measure_charts
from fedetf.report.groups import Judging, arrange
from fedetf.report.html import safe_json, tag
from fedetf.report.page import write_report
from fedetf.runs.read import gather


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Tables(html.parser.HTMLParser):
    """The cells of a page's tables, as a browser without scripts has them."""

    def __init__(self, page: str):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list) -> None:
        if name == "table":
            self.tables.append([])
        elif name == "tr":
            self.tables[-1].append([])
        elif name in ("td", "th"):
            self.tables[-1][-1].append("")
            self._inside = True

    def handle_endtag(self, name: str) -> None:
        self._inside = self._inside and name not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][-1][-1] += data


def tables(folder: str = "runs") -> list[list[list[str]]]:
    write_report([folder], "page.html")
    return Tables(Path("page.html").read_text("utf-8")).tables


def grid(folder: str = "runs"):
    return arrange(gather([Path(folder)])[0])


def test_the_headline_is_the_mean_and_sample_deviation_and_the_best_is_marked() -> None:
    results = {}
    for method, level in (("fedavg", 0.3), ("fedproto", 0.4), ("fednh", 0.5), ("fedetf", 0.6)):
        results[method] = [make_run(Path(f"runs/deep/{method}-{s}"), method, s, level=level) for s in (7, 8, 9)]
    head, *rows = tables()[0]
    assert [name.partition(", %")[0] for name in head] == ["Method", "General", "Final", "Personal", "Seeds"]
    assert [row[0] for row in rows] == ["FedAvg", "FedProto", "FedNH", "FedETF"]  # the order of the paper

    def expected(method: str, *keys: str) -> list[str]:
        values = [[100 * r[key] for r in results[method]] for key in keys]
        return [f"{statistics.mean(v):.2f}±{statistics.stdev(v):.2f}" for v in values]

    assert rows[0][1:] == [*expected("fedavg", "general_last5", "general", "personal"), "3"]
    assert rows[1][1:] == ["–", "–", *expected("fedproto", "personal"), "3"]
    assert rows[3][1:3] == [expected("fedetf", "general_last5")[0] + "best", *expected("fedetf", "general")]
    assert rows[3][3] == expected("fedetf", "personal")[0] + "best"
    page = Path("page.html").read_text("utf-8")
    mean = statistics.mean(100 * r["general_last5"] for r in results["fedetf"])
    assert f"<b>{mean:.2f}\N{NO-BREAK SPACE}%</b>: ahead of FedAvg and FedNH." in page  # digits as in the table
    assert "References, which are not ranked" not in page  # of what is not there, no word
    assert "changed the model after the last round" not in page


def test_equal_values_are_identical_and_one_method_alone_has_no_mark() -> None:
    for method in ("fedavg", "fedetf"):
        make_run(Path(f"runs/{method}"), method)
        result = json.loads(Path(f"runs/{method}/result.json").read_text())
        Path(f"runs/{method}/result.json").write_text(json.dumps({**result, "general_last5": 0.5, "personal": None}))
    _, *rows = tables()[0]
    assert [(row[1], row[3], row[4]) for row in rows] == [("50.00", "–", "1")] * 2
    assert "identical to FedAvg" in Path("page.html").read_text("utf-8")
    (alone,) = tables("runs/fedetf")[0][1:]
    assert alone[1] == "50.00"


def test_methods_are_compared_on_the_seeds_that_all_have() -> None:
    for seed, level in ((7, 0.4), (8, 0.8)):
        make_run(Path(f"runs/fedavg-{seed}"), "fedavg", seed, level=level)
    make_run(Path("runs/fedetf-7"), "fedetf", 7, level=0.5)
    rows = {row[0]: row[1:] for row in tables()[0]}
    alone = json.loads(Path("runs/fedavg-7/result.json").read_text())["general_last5"]
    assert rows["FedAvg"][0] == f"{100 * alone:.2f}"  # without the seed that the other lacks
    assert rows["FedAvg"][3] == "1 of 2"
    assert "no difference shown to FedAvg (n = 1)" in Path("page.html").read_text("utf-8")
    for method, seed in (("fedetf", 8), ("fedavg", 9)):
        make_run(Path(f"runs/{method}-{seed}"), method, seed)
    assert {row[0]: row[4] for row in tables()[0][1:]} == {"FedAvg": "2 of 3", "FedETF": "2"}


def test_words_follow_the_interval_not_the_mean() -> None:
    for seed, level in ((7, 0.3), (8, 0.7), (9, 0.5)):
        make_run(Path(f"runs/a{seed}"), "fedavg", seed, level=level)
        make_run(Path(f"runs/b{seed}"), "fedetf", seed, level=level + 0.1)  # seeds differ, the difference does not
        make_run(Path(f"runs/c{seed}"), "fedprox", seed, level=1 - level)  # the same mean, but not seed by seed
    tables()
    page = Path("page.html").read_text("utf-8")
    assert "ahead of FedAvg; no difference shown to FedProx (n = 3)" in page
    write_report(["runs"], "page.html", judging=Judging(against="fedavg"))
    assert "behind FedETF; no difference shown to FedProx (n = 3)" in Path("page.html").read_text("utf-8")
    with pytest.raises(UserError, match="--against fedrod is not one of the methods here"):
        write_report(["runs"], "page.html", judging=Judging(against="fedrod"))
    with pytest.raises(UserError, match="no run here has recorded macro_f1"):
        write_report(["runs"], "page.html", judging=Judging(metric="macro_f1"))


def test_references_stand_last_and_apart() -> None:
    for method, level in (("fedavg", 0.3), ("local", 0.1), ("fedetf", 0.6), ("pooled", 0.9)):
        for seed in (7, 8, 9):
            make_run(Path(f"runs/{method}-{seed}"), method, seed, level=level, majority=0.4)
    _, *rows = tables()[0]
    assert [row[0] for row in rows] == [
        "FedAvg", "FedETF", "Local reference", "Pooled reference", "majority class reference"
    ]  # fmt: skip
    assert [row[1].endswith("best") for row in rows] == [False, True, False, False, False]  # pooled is no rival
    assert rows[4][3] == "40.00±0.00"
    page = Path("page.html").read_text("utf-8")
    assert "<title>FedAvg and FedETF on digits" in page
    assert "References, which are not ranked: Local (every client alone), Pooled (all data in one place)." in page


def test_titles_name_what_was_reduced() -> None:
    less = {"data.limit": 5000, "data.test_limit": 200, "personal.rounds": 2}
    make_run(Path("runs/a"), **less)
    tables()
    page = Path("page.html").read_text("utf-8")
    assert "(reduced: 5,000 training samples, 200 test samples, personal stage of 2 turns)" in page.split("</title>")[0]
    planned = plan(["fedavg"], [7], None, {**less, "personal.enabled": False}, False, Path("g"))[1]
    assert "5,000 samples, 200 test samples" in caption(planned)
    assert "no personal stage" in caption(planned)


def test_what_is_held_out_or_done_to_updates_is_said() -> None:
    less = {"data.validation_fraction": 0.2, "data.unseen": 2, "update.bits": 8, "train.steps": 4, "data.imbalance": 10}
    make_run(Path("runs/a"), **less)
    tables()
    head = Path("page.html").read_text("utf-8").split("</header>")[0]
    held_out = "20 % of the training data held out to validate"
    assert f"(reduced: {held_out}, 2 unseen clients)" in head
    subtitle = head.split('data-part="subtitle">')[1].split("</p>")[0]
    assert "local steps 4" in subtitle
    assert "local epochs" not in subtitle  # they do not count
    assert "a long tail of 10 to 1 · update.bits = 8" in subtitle
    said = caption(plan(["fedavg"], [7], None, less, False, Path("g"))[1])
    assert f"{held_out}, update.bits = 8; seeds 7" in said
    assert "2 of them unseen" in said


def test_a_run_that_completed_its_model_once_only_is_said_to_be_so() -> None:
    make_run(Path("runs/old"), "ccvr")
    tables()
    assert "CCVR changed the model after the last round" in Path("page.html").read_text("utf-8")
    path = Path("runs/old/rounds.jsonl")
    lines = [json.loads(line) | {"completed": {"general": 0.5}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tables()
    assert "CCVR changed the model after the last round" not in Path("page.html").read_text("utf-8")
    assert '"mean":[0.5,0.5,0.5,0.5,0.5]' in Path("page.html").read_text("utf-8")  # curves show what the table says


def test_many_settings_have_ranks_and_a_diagram() -> None:
    for alpha in (0.1, 0.2, 0.3, 0.4, 0.5):
        for method, level in (("fedavg", 0.3), ("fedprox", 0.5), ("fedetf", 0.7)):
            make_run(Path(f"runs/{alpha}-{method}"), method, level=level, **{"data.alpha": alpha})
    tables()
    page = Path("page.html").read_text("utf-8")
    assert "Mean ranks, 1 is best: FedETF 1.00, FedProx 2.00, FedAvg 3.00" in page
    assert page.count('<img src="data:image/png;base64,') == 2  # general and personal
    shutil.rmtree("runs/0.5-fedavg")  # so that it is in four settings only, and two methods are left
    tables()
    assert "Mean ranks" not in Path("page.html").read_text("utf-8")


def test_a_partition_by_sites_has_no_alpha() -> None:
    make_run(Path("runs/sites"), **{"data.site_column": "hospital"})
    tables()
    page = Path("page.html").read_text("utf-8")
    assert "4 clients, one for each hospital, seed 7" in page
    assert "alpha = 0" not in page.split("<h2>Settings")[0].split('id="data"')[0]


def test_settings_are_columns_and_variants_of_a_method_are_rows() -> None:
    for alpha in (0.5, 0.05):
        for gamma in (0.0, 1.0):
            settings = {"data.alpha": alpha, "method.gamma": gamma}
            make_run(Path(f"runs/{alpha}-{gamma}"), **settings)
        make_run(Path(f"runs/{alpha}"), "fedavg", **{"data.alpha": alpha, "engine.workers": 1})
        make_run(Path(f"runs/{alpha}-8"), "fedavg", seed=8, **{"data.alpha": alpha, "engine.workers": 2})
    found = grid()
    assert found.settings == ["alpha = 0.05", "alpha = 0.5"]
    assert found.variants == ["FedAvg", "FedETF", "FedETF (gamma = 0)"]  # of the default, its name
    assert found.get("FedAvg", "alpha = 0.05").seeds == [7, 8]  # the number of workers does not part them
    assert found.common["train.rounds"] == 5
    top, head, *rows = tables()[0]
    assert top == ["", "alpha = 0.05", "alpha = 0.5"]
    assert len(head) == len(rows[0]) == 9


def test_one_method_in_several_settings_has_a_row_for_each() -> None:
    for alpha in (0.5, 0.05):
        make_run(Path(f"runs/{alpha}"), **{"data.alpha": alpha})
    head, *rows = tables()[0]
    assert head[0] == "Setting"
    assert [row[0] for row in rows] == ["alpha = 0.05", "alpha = 0.5"]
    assert not any("1st" in row[1] for row in rows)


def test_of_two_equal_runs_the_measured_one_is_shown() -> None:
    make_run(Path("runs/plain"))
    make_run(Path("runs/with"), measures=["nc2"], **{"measure.collapse": True})
    found = grid()
    assert [run.folder for group in found.groups for run in group.runs] == [Path("runs/with")]
    assert [double.folder for double in found.doubles] == [Path("runs/plain")]


def test_variants_are_named_by_what_is_not_the_default_and_stand_in_order() -> None:
    for number, dim in enumerate((128, None, 32)):
        make_run(Path(f"runs/{number}"), **({"method.dim": dim} if dim else {}))
    assert grid().variants == ["FedETF", "FedETF (dim = 32)", "FedETF (dim = 128)"]


def test_folders_with_the_same_problem_are_named_together(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/good"))
    Path("nothing").mkdir()
    for number in range(5):
        Path(f"runs/bad{number}").mkdir()
        Path(f"runs/bad{number}/error.part").write_text("Traceback\nfedetf.errors.UserError: no data\n")
    assert main(["report", "runs", "nothing"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "not shown: runs/bad0, runs/bad1, runs/bad2 and 2 more: failed: no data" in out
    assert "not shown: nothing: holds no run" in out


def test_runs_that_cannot_be_shown_are_named() -> None:
    make_run(Path("runs/good"))
    make_run(Path("runs/good-again"))
    names = ("unfinished", "cut", "nan", "no-partition", "empty", "list", "toml", "other-classes", "number", "folder")
    for name in names:
        make_run(Path(f"runs/{name}"), seed=8)
    Path("runs/unfinished/result.json").unlink()
    Path("runs/cut/rounds.jsonl").write_text('{"round": 1}\n{"round": 2, "lo')
    Path("runs/nan/result.json").write_text('{"method": "fedetf", "seed": NaN}')
    Path("runs/no-partition/partition.json").unlink()
    Path("runs/empty/result.json").write_bytes(b"")
    Path("runs/list/result.json").write_text("[" * 5000)
    Path("runs/toml/config.toml").write_bytes(b"\xff\x00")
    Path("runs/other-classes/partition.json").write_text('{"classes": ["a"], "clients": [{"counts": [1, 2]}]}')
    config = Path("runs/number/config.toml")
    config.write_text(config.read_text().replace('name = "fedetf"', "name = 3"))
    for name in ("result.json", "rounds.jsonl"):
        Path("runs/folder", name).unlink()
    Path("runs/folder/rounds.jsonl").mkdir()
    Path("runs/failed").mkdir()
    Path("runs/failed/error.part").write_text("Traceback\nRunError: <b>no</b> memory\n")
    report = write_report(["runs", "runs/good"], "page.html")
    assert report.runs == 1
    reasons = {problem.folder.name: problem.reason for problem in report.left_out}
    fixed = "; to fix the run, remove it and call: fedetf resume runs/"
    assert reasons == {
        "unfinished": "not finished, 5 rounds done; go on with: fedetf resume runs/unfinished",
        "cut": "rounds.jsonl is damaged: it is not JSON (Unterminated string starting at: line 1 column 14 (char 13))"
        f"{fixed}cut",
        "nan": f"result.json is damaged (seed){fixed}nan",
        "no-partition": "partition.json is missing",
        "empty": f"result.json is damaged: it is not JSON (Expecting value: line 1 column 1 (char 0)){fixed}empty",
        "list": f"result.json is damaged: it is not JSON (nested too deep){fixed}list",
        "toml": "config.toml is not text in UTF-8",
        "other-classes": f"partition.json is damaged: counts and classes do not match{fixed}other-classes",
        "number": "config.toml is damaged: it names no method",
        "folder": "rounds.jsonl is not a regular file; put one there, or remove it",
        "failed": "failed: RunError: <b>no</b> memory",
        "good-again": "has the settings and seed of runs/good, which is shown",
    }
    page = Path("page.html").read_text("utf-8")
    assert "12 folders are not shown" in page
    assert "RunError: &lt;b&gt;no&lt;/b&gt; memory" in page
    assert "<b>no" not in page


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "no folder 'nowhere'"),
        (["void"], "no run in void"),
        (["half"], "no finished run to report on; for example half: not finished, 0 rounds done"),
        (["runs", "--out", "page.txt"], "give --out a name that ends with .html"),
        (["runs", "--out", f"{'x' * 300}.html"], "choose a shorter name"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/good"))
    Path("void").mkdir()
    Path("half").mkdir()
    Path("half/config.toml").write_text('[method]\nname = "fedavg"\n')
    assert main(["report", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_the_command_says_what_it_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/good"))
    Path("runs/bad").mkdir()
    Path("runs/bad/error.part").write_text("")
    assert main(["report", "runs"]) == 0
    out = capsys.readouterr().out
    assert "report: report.html (1 run)" in out
    assert "not shown: runs/bad: failed: no reason is on record" in out
    assert Path("report.html").is_file()


def test_curves_are_mean_and_range_at_the_rounds_that_all_seeds_have() -> None:
    for seed in (7, 8):
        make_run(Path(f"runs/{seed}"), seed=seed, rounds=3)
    values = {7: {"a": [1.0, 2.0, 3.0], "b": [1.0, None, 1.0]}, 8: {"a": [3.0, 4.0, 8.0], "b": [2.0, 2.0, 4.0]}}
    for seed, named in values.items():
        path = Path(f"runs/{seed}/rounds.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for t, line in enumerate(lines):
            line["measures"] = {name: row[t] for name, row in named.items()}
        lines[2]["measures"]["never"] = None
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = grid()
    main_charts, more = measure_charts(found)
    assert main_charts == []
    assert [chart.title for chart in more] == ["a", "b"]  # unknown names are shown, what was never measured is not
    (group,) = found.groups
    a, b = (curve(group.runs, chart.of) for chart in more)
    assert a == {"x": [1, 2, 3], "mean": [2.0, 3.0, 5.5], "low": [1.0, 2.0, 3.0], "high": [3.0, 4.0, 8.0], "seeds": 2}
    assert b["x"] == [1, 3]
    assert b["mean"] == [1.5, 2.5]


def test_a_long_curve_is_thinned_but_keeps_its_ends() -> None:
    make_run(Path("runs/long"), rounds=1001)
    (group,) = grid().groups
    drawn = curve(group.runs, lambda run: {r.round: r.general for r in run.rounds})
    assert len(drawn["x"]) == 250
    assert (drawn["x"][0], drawn["x"][-1]) == (1, 1001)


def test_costs_are_per_client_and_means_over_seeds() -> None:
    result = make_run(Path("runs/a"), "fedavg", rounds=10, clients=4)
    page_tables = tables()
    cost = next(table for table in page_tables if table[0][1].startswith("Sent"))
    sent = result["bytes_up"] / 4 / 2**20
    assert cost[1] == ["FedAvg", f"{sent:.2f}", f"{sent:.2f}", "30", "3", "15"]


def test_the_command_of_a_comparison_makes_the_same_runs() -> None:
    settings = {"data.limit": 100, "train.lr": [0.1, 0.01], "model.name": "mlp", "personal.enabled": False}
    settings["measure.tensorboard"] = False
    fedetf.compare(
        ["fedavg"], [7, 8], references=False, clients=3, rounds=1, epochs=1, settings=settings, out="my grid"
    )
    fedetf.compare(["fedprox"], [7], references=False, clients=3, rounds=1, epochs=1, settings=settings, out="my grid")
    fedetf.compare(["fedprox"], [7], references=False, clients=3, rounds=1, epochs=1, settings=settings, out="my grid")
    lines = Path("my grid/command.txt").read_text().splitlines()
    assert len(lines) == 2  # each once
    made = set()
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "fedetf"
        options = build_parser().parse_args(words)
        seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
        _, cells = plan(options.methods, seeds, options.source, given_settings(options), False, Path("my grid"))
        made |= {cell.folder for cell in cells}
        for cell in cells:
            there = resolve(str(cell.folder / "config.toml"))
            assert (there.data, there.model, there.train) == (
                cell.settings.data,
                cell.settings.model,
                cell.settings.train,
            )
    assert made == {path.parent for path in Path("my grid").glob("*/config.toml")}
    write_report(["my grid"], "page.html")
    page = Path("page.html").read_text("utf-8")
    assert "--methods fedavg --seeds 7,8" in page
    assert "--out &#x27;my grid-again&#x27;" in page
    assert "fedetf run &#x27;my grid/fedavg-lr=0.01-s7/config.toml&#x27;" in page


def test_what_is_not_markup_is_escaped() -> None:
    assert tag("td", tag("b", "<i>"), '"&', title='"<') == '<td title="&quot;&lt;"><b>&lt;i&gt;</b>&quot;&amp;</td>'
    nasty = {"</script><!--": ["<b>&", "\u2028"]}
    dumped = safe_json(nasty)
    assert json.loads(dumped) == nasty
    assert not set("<>&\u2028") & set(dumped)
    with pytest.raises(ValueError, match="Out of range"):
        safe_json(float("nan"))


def test_a_missing_folder_is_a_user_error_from_python_too() -> None:
    with pytest.raises(UserError, match="no folder"):
        write_report(["nowhere"], "page.html")
