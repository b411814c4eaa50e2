"""Folders of ``fedetf tune`` from anybody: a tuning, or one line that says why not; nothing outside them changes."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from damage import LINKS, SECRET, Place, damage, files_in, plant
from fuzz import call, examples, mutated, untouched
from hypothesis import given
from hypothesis import strategies as st

from fedetf.config import resolve
from fedetf.errors import UserError
from fedetf.ranges import Choice, Range
from fedetf.tuning.space import Space
from fedetf.tuning.trials import Trial, Trials

SPACE: Space = {"train.lr": Range(0.01, 1.0), "method.k": Range(1, 9), "train.momentum": Choice((0.0, 0.9))}
FIRST = {"train.lr": 0.1, "method.k": 3, "train.momentum": 0.9}
MADE = ("fedprox.toml", "tuning.md", "tuning.json", "settings.png")  # of trials that are over
TUNE = ["tune", "--methods", "fedprox", "--trials", "2", "--trial-rounds", "1", "--clients", "2", "--rounds", "1"]
TUNE += ["--epochs", "1", "--model", "mlp", "--engine", "serial", "--alpha", "100", "--set", "data.limit=120"]
TUNE += ["--set", "data.test_limit=20", "--set", "data.validation_fraction=0.5", "--out"]


def trials_in(journal: Path) -> Trials:
    return Trials(journal, "mine", "about", SPACE, FIRST, seed=7)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A journal with so many trials that the next one is proposed by what came of them, of each state."""
    journal = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    trials = trials_in(journal)
    for number, accuracy in enumerate([0.5, 0.6, 0.7, 0.4]):
        trials.add(Trial(number, trials.propose(), "complete", accuracy, 9, {1: 0.3, 2: accuracy}))
    trials.add(Trial(4, trials.propose(), "pruned", 0.1, 4, {1: 0.1}))
    trials.add(Trial(5, trials.propose(), "failed", None, 0, {}, "it diverged"))
    return [json.loads(line) for line in journal.read_text().splitlines()]


def changed(draw: st.DrawFn, lines: list[Any]) -> list[Any]:
    """The lines with another value somewhere, or with another range that a trial claims to have been drawn from."""
    trials = [place for place, line in enumerate(lines) if isinstance(line, dict) and "distributions" in line]
    if not trials or draw(st.booleans()):
        found = mutated(draw, lines)
        return found if isinstance(found, list) else [found]
    number = draw(st.sampled_from(trials))
    claims = lines[number]["distributions"]
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # it was changed before
        told = mutated(draw, {key: json.loads(text) for key, text in claims.items()})
        claims = {key: json.dumps(claim) for key, claim in told.items()}
    return [*lines[:number], {**lines[number], "distributions": claims}, *lines[number + 1 :]]


@examples(300)
@given(data=st.data())
def test_any_journal_is_trials_or_one_line(lines: list[dict[str, Any]], data: st.DataObject) -> None:
    """What it says was tried could be tried; the next trial follows, is judged and is noted."""
    told: list[Any] = lines
    for _ in range(data.draw(st.integers(1, 2))):
        told = changed(data.draw, told)
    text = "".join(json.dumps(line) + "\n" for line in told).encode("utf-8", "surrogatepass")
    if data.draw(st.integers(0, 3)) == 0:
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.binary(max_size=5)) + text[place + data.draw(st.integers(0, 5)) :]
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal.jsonl")
        journal.write_bytes(text)
        with contextlib.suppress(UserError):
            trials = trials_in(journal)
            assert all(value in SPACE[key] for trial in trials.done for key, value in trial.values.items())
            assert trials.is_hopeless({1: 0.2, 2: 0.2}, warm_up=1) in (True, False)
            proposed = trials.propose()
            assert proposed.keys() == SPACE.keys()
            assert all(value in SPACE[key] for key, value in proposed.items())
            trials.add(Trial(len(trials.done), proposed, "complete", 0.5, 9, {1: 0.5}))
            assert trials_in(journal).done == trials.done
        assert {path.name for path in Path(folder).iterdir()} == {"journal.jsonl"}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning that is done, and a note of it where that of a comparison would be."""
    home = tmp_path_factory.mktemp("tuned")
    assert call(*TUNE, str(home / "tuned"))[0] == 0
    shutil.copy(home / "tuned/tuning.json", home / "tuned/trials")
    return home


@examples(60)
@given(data=st.data())
def test_a_folder_of_tuning(originals: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, "tuned")
        journal = place.copy / "journal.jsonl"
        kept = data.draw(st.sampled_from([4, 4, 4, 3, 2]))  # lines: a trial that it does not know is in its folder
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:kept]))
        for _ in range(data.draw(st.integers(1, 2))):
            there = files_in(place.copy)
            often = 5 * [journal] if journal in there else []
            damage(data.draw, data.draw(st.sampled_from([*often, *there])), place.victim)
        if data.draw(st.booleans()):  # where folders, temporaries and what is made are to be
            name = data.draw(st.sampled_from([".lock", "journal.jsonl.part", "trials", *MADE, "tuning.md.part"]))
            if (place.copy / name).is_dir():
                shutil.rmtree(place.copy / name)
            (place.copy / name).unlink(missing_ok=True)
            if data.draw(st.booleans()):
                (place.copy / name).mkdir()
            else:
                plant(data.draw(st.sampled_from(LINKS)), place.copy / name, place.victim)
        names, made = {path.name for path in place.copy.iterdir()}, made_in(place.copy)
        tuned = data.draw(st.integers(0, 4)) > 0
        command = [*TUNE, str(place.copy)] if tuned else ["report", str(place.copy / "trials"), "--out", f"{folder}/x"]
        with untouched(place.victim):
            status, _, _ = call(*command)
        assert not any(path.suffix == ".part" for path in place.copy.iterdir() if path.name not in names)
        assert {path.name for path in Path(folder).iterdir()} <= {"victim", "tuned", "x"}
        assert not any(SECRET.encode() in path.read_bytes() for path in files_in(Path(folder, "tuned")))
        if status or not tuned:
            assert made_in(place.copy) == made or status == 1  # what is given is judged before anything is written
            return
        assert made_in(place.copy).keys() == set(MADE)
        chosen = resolve(str(place.copy / "fedprox.toml"))
        assert 0.004 <= chosen.train.lr <= 0.4
        assert chosen.train.rounds == 1


def made_in(folder: Path) -> dict[str, bytes]:
    """What a tuning leaves beside its trials."""
    return {path.name: path.read_bytes() for path in files_in(folder) if path.parent == folder and path.name in MADE}
