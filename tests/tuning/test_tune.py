"""`fedetf tune`: the same trials for each method, judged on validation data, whatever is killed in between."""

import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import in_child

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.comparison.plan import PlannedRun
from fedetf.comparison.run import RunsProgress
from fedetf.federation import Listener
from fedetf.outcome import Outcome, Round
from fedetf.ranges import Choice, Range
from fedetf.tuning.run import tune
from fedetf.tuning.space import read_space
from fedetf.tuning.trials import Trial, Trials

OPTIONS = {"clients": 3, "rounds": 4, "epochs": 1, "model": "mlp", "engine": "serial", "alpha": 1.0}
SETTINGS = {"data.limit": 300, "data.test_limit": 40, "train.batch_size": 16}
ROUNDS = 4
METHODS = ["fedavg", "fedprox"]
TRIALS = 5


class Diary(RunsProgress):
    """Writes down each round that is trained, and kills the process in a round of a trial, or at its very end (0)."""

    def __init__(self, path: Path, kill: tuple[int, int] | None = None):
        self.path, self.kill = path, kill

    def run_started(self, run: PlannedRun, number: int, total: int) -> Sequence[Listener]:
        diary = self

        class Rounds(Listener):
            def round_done(self, record: Round, server: object) -> None:
                with diary.path.open("a") as file:
                    file.write(f"{run.folder.name} {record.round}\n")
                diary.maybe((number, record.round))

            def finished(self, outcome: Outcome) -> None:
                diary.maybe((number, 0))

        return [Rounds()]

    def maybe(self, now: tuple[int, int]) -> None:
        if now == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


def tuned(folder: Path, trials: int = TRIALS, progress: RunsProgress | None = None) -> fedetf.Tuning:
    return tune(METHODS, trials, settings=SETTINGS, out=folder, progress=progress, trial_rounds=ROUNDS, **OPTIONS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedetf.Tuning:
    return tuned(tmp_path_factory.mktemp("tune") / "whole")


def test_every_method_has_as_many_trials_and_the_first_has_its_defaults(whole: fedetf.Tuning) -> None:
    assert [len(each.trials) for each in whole.methods] == [TRIALS, TRIALS]
    assert [each.trials[0].values for each in whole.methods] == [
        {"train.lr": 0.04},
        {"train.lr": 0.04, "method.mu": 0.001},
    ]
    for each in whole.methods:
        for trial in each.trials:
            assert all(values.low <= trial.values[key] <= values.high for key, values in each.space.items())
    assert len({trial.values["train.lr"] for trial in whole.methods[0].trials}) == TRIALS


def test_a_trial_is_judged_by_its_validation_accuracy_alone(whole: fedetf.Tuning) -> None:
    for each in whole.methods:
        for trial in each.trials:
            folder = whole.folder / f"trials/{each.method}-{trial.number + 1:03d}"
            rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
            assert trial.images == sum(line["images"] for line in rounds)
            seen = [line["validation"] for line in rounds]
            assert trial.validation == pytest.approx(sum(seen) / len(seen))  # four rounds, less than five
        there = [trial.validation for trial in each.trials if trial.state == "complete"]
        assert each.best.validation == max(there)
        assert each.images == sum(trial.images for trial in each.trials)


def test_the_settings_of_a_full_run_have_what_was_chosen_and_hold_nothing_out(whole: fedetf.Tuning) -> None:
    for path, each in zip(whole.files, whole.methods, strict=True):
        settings = fedetf.config.resolve(str(path))
        assert settings == each.settings
        assert settings.train.lr == each.best.values["train.lr"]
        assert (settings.data.validation_fraction, settings.train.rounds) == (0, 4)
        assert settings.personal.enabled
    best = whole.methods[1].best.values
    assert whole.chosen["fedprox:method.mu"] == best["method.mu"]


@pytest.mark.parametrize("kill", [(2, 2), (3, 0), (TRIALS + 1, 1)])
def test_killed_and_called_again_no_trial_is_lost_and_none_is_run_twice(
    kill: tuple[int, int], whole: fedetf.Tuning, tmp_path: Path
) -> None:
    diary = tmp_path / "diary.txt"
    in_child(lambda: tuned(tmp_path / "killed", progress=Diary(diary, kill)))
    assert not (tmp_path / "killed/fedavg.toml").exists()
    again = tuned(tmp_path / "killed", progress=Diary(diary))
    assert [each.trials for each in again.methods] == [each.trials for each in whole.methods]
    assert again.chosen == whole.chosen
    lines = diary.read_text().splitlines()
    assert len(lines) == len(set(lines))  # no round of any trial was trained twice
    assert len(lines) == sum(len(trial.curve) for each in whole.methods for trial in each.trials)
    assert [path.read_text() for path in again.files] == [path.read_text() for path in whole.files]


def test_more_trials_go_on_from_those_that_are_there(whole: fedetf.Tuning, tmp_path: Path) -> None:
    tuned(tmp_path / "grown", trials=2)
    diary = tmp_path / "diary.txt"
    assert tuned(tmp_path / "grown", progress=Diary(diary)).methods[0].trials == whole.methods[0].trials
    assert "fedavg-001 1" not in diary.read_text()
    with pytest.raises(UserError, match="holds trials of fedavg with other settings; give another --out"):
        tune(["fedavg"], 2, settings={**SETTINGS, "data.limit": 200}, out=tmp_path / "grown", **OPTIONS)


def test_a_line_of_the_journal_that_was_cut_short_is_dropped(whole: fedetf.Tuning, tmp_path: Path) -> None:
    trials = Trials(tmp_path / "journal.jsonl", "fedavg", "x", {"train.lr": Range(0.1, 1.0)}, {"train.lr": 0.5}, 7)
    trials.add(Trial(0, {"train.lr": 0.5}, "complete", 0.9, 10, {1: 0.9}))
    text = (tmp_path / "journal.jsonl").read_text()
    (tmp_path / "journal.jsonl").write_text(text + text.splitlines()[-1][:50])
    again = Trials(tmp_path / "journal.jsonl", "fedavg", "x", {"train.lr": Range(0.1, 1.0)}, {"train.lr": 0.5}, 7)
    assert again.done == trials.done
    again.add(Trial(1, {"train.lr": 0.2}, "failed", None, 3, {}, "it diverged"))
    assert [trial.state for trial in again.done] == ["complete", "failed"]
    assert again.done[1].reason == "it diverged"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"train.lr"', '"model.name"'),  # what is chosen is passed on as if the user had typed it
        ('"images": 10', '"images": "10"'),
        ('"op_code": 4', '"op_code": 9'),
        ('"op_code": 4', '"x": 4'),
        ('{"op_code"', '[{}, {"op_code"'),
        ('"state": 1', '"state": 0'),
        ("0.9", "1e999"),
        ("0.9", "7"),
        ('"value": 0.9', '"value": null'),  # of a trial that was carried out
        ('"directions": [2]', '"directions": [1]'),  # the worst would be taken for the best
        ('"directions": [2]', '"directions": []'),
    ],
)
def test_a_strangers_journal_names_no_code_and_breaks_nothing(old: str, new: str, tmp_path: Path) -> None:
    journal, space, first = tmp_path / "journal.jsonl", {"train.lr": Range(0.1, 1.0)}, {"train.lr": 0.5}
    Trials(journal, "fedavg", "x", space, first, 7).add(Trial(0, first, "complete", 0.9, 10, {1: 0.9}))
    text = journal.read_text()
    assert old in text
    journal.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=r"journal\.jsonl is damaged"):
        Trials(journal, "fedavg", "x", space, first, 7)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"datetime_complete"', '"x"'),
        ('"system_attrs": {}', '"system_attrs": []'),
        (r"\"high\": 1.0", r"\"high\": 0.6"),
    ],
)
def test_of_a_journal_only_trials_count(old: str, new: str, tmp_path: Path) -> None:
    """What else Optuna keeps of them, their ranges and times, is not believed."""
    journal, space, first = tmp_path / "journal.jsonl", {"train.lr": Range(0.1, 1.0)}, {"train.lr": 0.5}
    Trials(journal, "fedavg", "x", space, first, 7).add(Trial(0, first, "complete", 0.9, 10, {1: 0.9}))
    text, expected = journal.read_text(), Trials(journal, "fedavg", "x", space, first, 7).propose()
    assert old in text
    journal.write_text(text.replace(old, new))
    assert Trials(journal, "fedavg", "x", space, first, 7).propose() == expected


def test_a_trial_is_stopped_if_three_quarters_are_better_but_not_at_first(tmp_path: Path) -> None:
    trials = Trials(tmp_path / "journal.jsonl", "a", "x", {"train.lr": Range(0.1, 1.0)}, {"train.lr": 0.5}, 7)
    for number, accuracy in enumerate((0.5, 0.6, 0.7)):
        curve = {1: accuracy, 2: accuracy, 3: accuracy}
        assert not trials.is_hopeless({1: 0.0, 2: 0.0}, warm_up=1)  # until three are there
        trials.add(Trial(number, {"train.lr": 0.2}, "complete", accuracy, 1, curve))
    trials.add(Trial(3, {"train.lr": 0.2}, "complete", 0.8, 1, {1: 0.8, 2: 0.8, 3: 0.8}))
    # a quarter of 0.5, 0.6, 0.7, 0.8 is at or below 0.575
    assert trials.is_hopeless({1: 0.0, 2: 0.57}, warm_up=1)
    assert not trials.is_hopeless({1: 0.0, 2: 0.58}, warm_up=1)
    assert not trials.is_hopeless({1: 0.0}, warm_up=2)


def test_what_comes_next_depends_on_what_came_before_only(tmp_path: Path) -> None:
    def proposals(folder: Path, values: Sequence[float]) -> list[float]:
        space = {"train.lr": Range(0.001, 1.0), "method.k": Range(1, 9), "train.momentum": Choice((0.0, 0.9))}
        first = {"train.lr": 0.01, "method.k": 3, "train.momentum": 0.9}
        trials = Trials(folder / "journal.jsonl", "a", "x", space, first, 7)
        found = []
        for number, value in enumerate(values):
            proposed = trials.propose()
            assert isinstance(proposed["method.k"], int)
            assert proposed["train.momentum"] in (0.0, 0.9)
            found.append(proposed["train.lr"])
            trials.add(Trial(number, proposed, "complete", value, 1))
            trials = Trials(folder / "journal.jsonl", "a", "x", space, first, 7)  # as after a kill
        return found

    for name in "abc":
        (tmp_path / name).mkdir()
    same = [0.1, 0.2, 0.9, 0.3, 0.2, 0.1, 0.4]
    assert proposals(tmp_path / "a", same) == proposals(tmp_path / "b", same)
    assert proposals(tmp_path / "c", [0.9, 0.1, 0.1, 0.8, 0.2, 0.1, 0.4]) != proposals(tmp_path / "a", [])


def test_a_trial_that_fails_is_counted_and_not_chosen(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[train]\nlr = [0.05, 1e30]\n")
    found = tune(["fedavg"], 4, settings=SETTINGS, space=space, trial_rounds=2, out=tmp_path / "out", **OPTIONS)
    (each,) = found.methods
    assert {trial.state for trial in each.trials if trial.values["train.lr"] == 1e30} == {"failed"}
    assert "lower train.lr" in next(trial.reason for trial in each.trials if trial.state == "failed")
    assert each.best.values == {"train.lr": 0.05}


class Fragile(fedetf.Method):
    """FedAvg that cannot combine updates with a large number of its own."""

    mu: float = 0.1

    def aggregate(self, server, updates):
        if self.mu > 0.1:
            raise ValueError("boom")
        return super().aggregate(server, updates)


def test_a_fault_of_the_method_on_the_server_fails_its_trial_only(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[method]\nmu = [0.1, 0.5]\n")
    found = tune([Fragile], 4, settings=SETTINGS, space=space, trial_rounds=1, out=tmp_path / "out", **OPTIONS)
    failed = {trial.values["method.mu"]: trial.reason for trial in found.methods[0].trials if trial.state == "failed"}
    assert failed == {0.5: "ValueError: boom"}
    assert found.methods[0].best.values == {"method.mu": 0.1}


def test_a_method_without_a_global_model_is_judged_by_personal_ones(tmp_path: Path) -> None:
    found = tune(["fedproto"], 1, settings=SETTINGS, trial_rounds=1, out=tmp_path / "out", **OPTIONS)
    result = json.loads((tmp_path / "out/trials/fedproto-001/result.json").read_text())
    assert found.methods[0].best.validation == result["validation"]["personal"]


def test_the_command_line_leaves_tables_pictures_settings_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    small = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    flags = ["--methods", "fedavg,fedprox", "--trials", "2", "--trial-rounds", "1", "--clients", "3", "--rounds", "1"]
    flags += ["--epochs", "1", "--model", "mlp", "--engine", "serial", *small, "--out", str(out)]
    assert main(["tune", *flags, "--then-compare", "--seeds", "7,8"]) == 0
    stdout, stderr = capsys.readouterr()
    assert "[1/4] fedavg, trial 1, lr = 0.04, seed 1: validation" in stderr
    assert "was tuned on too" not in stdout
    assert "held out, after the only round; of a method without" in stdout
    assert "Nothing was chosen on test data" in stdout
    assert "references (local, pooled) were not tuned" in stdout
    (majority,) = re.findall(r"^\| majority class \(reference\) \|(.*)$", stdout, re.MULTILINE)
    assert majority.split("|")[0].strip() == "-"  # it has no learning rate
    note = json.loads((out / "tuning.json").read_text())
    best = {each["method"]: each["chosen"] for each in note["methods"]}
    assert f"| fedavg | lr = {best['fedavg']['train.lr']:g} |" in (out / "tuning.md").read_text()
    assert (out / "settings.png").read_bytes().startswith(b"\x89PNG")
    command = (out / "compare/command.txt").read_text()
    assert f"--set fedprox:method.mu={best['fedprox']['method.mu']}" in command
    rows = {row["method"]: row for row in json.loads((out / "compare/table.json").read_text())}
    assert float(rows["fedprox"]["method.mu"]) == best["fedprox"]["method.mu"]
    page = (out / "compare/report.html").read_text()
    assert "of its tuning" in page
    passes = next(each["image_passes"] for each in note["methods"] if each["method"] == "fedavg")
    assert f">{passes:,}</td>" in page
    assert {fedetf.config.resolve(str(file)).seed for file in out.glob("trials/*/config.toml")} == {1}
    assert fedetf.config.resolve(str(out / "fedavg.toml")).seed == 7  # of a run, as always
    assert main(["tune", *flags, "--then-compare", "--seeds", "7,8"]) == 0  # nothing is run again
    assert capsys.readouterr().err.count("was done before") == 4 + 4 * 2  # two references are compared too


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--methods", "fedavg", "--then-compare"], "--then-compare and --seeds belong together"),
        (["--methods", "fedavg", "--trials", "0"], "--trials must be at least 1"),
        (["--methods", "fedagv"], "unknown method 'fedagv'"),
        (["--methods", "fedavg,fedavg"], "--methods takes one or more different values"),
        (["--methods", "fedavg", "--set", "train.lr=[0.1, 0.2]"], "train.lr has several values; say by --space"),
        (["--methods", "fedavg", "--space", "none.toml"], "none.toml"),
        (["--methods", "fedavg", "--set", "train.lr=0"], "train.lr = 0 has no range around it"),
        (["--methods", "fedavg", "--dataset", "nosuch"], "unknown dataset 'nosuch'"),
        (
            ["--methods", "fedavg", "--clients", "2", "--alpha", "100", "--set", "data.limit=60"],
            "too little is held out to validate",
        ),
        (["--methods", "fedavg", "--clients", "100000"], "100000"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_written(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_optuna_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'fedetf\[tune\]'"):
        tune(["fedavg"], 1, out=tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nlr = 3", "train.lr takes a list of values, or"),
        ("[train]\nlr = {low = 0.0, high = 1.0}", "with 0 < low < high"),
        ("[train]\nlr = {low = 2.0, high = 1.0, log = false}", "with 0 < low < high"),
        ("[train]\nrounds = [1, 2]", "train.rounds is the same in all trials"),
        ("[data]\nalpha = [0.1, 1.0]", "data.alpha is the same in all trials"),
        ("lr = [1]", "lr is not a section"),
        ("[methods.fedagv.train]\nlr = [0.1]", "unknown method 'fedagv'; did you mean 'fedavg'"),
        ("[methods.fedprox.train]\nlr = [0.1]", "unknown method 'fedprox'"),
        ("", "says nothing for fedavg"),
        ("[train]\nrate = [0.1, 1.0]", "train.rate is the same in all trials"),
        ("[train]\nmomentum = {low = 0.5, high = 2.0}", r"train.momentum: input should be less than 1 \(got 2.0\)"),
        ("[train]\nlr = [0.1, -1.0]", "train.lr: input should be greater than or equal to 0"),
        ("[train]\nlr = {low = 0.1, high = inf}", "with 0 < low < high"),
    ],
)
def test_a_file_of_ranges_is_checked(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        tune(["fedavg"], 1, space=path, out=tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_file_of_ranges_is_for_all_methods_or_single_ones(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        "[train]\nlr = {low = 0.01, high = 1.0}\nmomentum = [0.0, 0.9]\n"
        "[methods.fedprox.method]\nmu = {low = 0.0, high = 1.0, log = false}\n"
    )
    assert read_space(path) == {
        None: {"train.lr": Range(0.01, 1.0), "train.momentum": Choice((0.0, 0.9))},
        "fedprox": {"method.mu": Range(0.0, 1.0, log=False)},
    }
