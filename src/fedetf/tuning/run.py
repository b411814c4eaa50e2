"""Tunes methods: trials of each on the validation split, the best of them chosen."""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedetf.api import Result, execute, go_on, prepare
from fedetf.comparison.plan import Candidate, PlannedRun, candidates, concerns, own_settings
from fedetf.comparison.run import RunsProgress, check_same, reason_of
from fedetf.config import from_short, resolve
from fedetf.data import Dataset, load_dataset
from fedetf.errors import RunError, UserError, need, unknown
from fedetf.federation import Federation, Listener
from fedetf.files import is_file, make_folder, real_folder, write_whole
from fedetf.methods import Method, Server, method_of
from fedetf.metrics.accuracy import balanced
from fedetf.outcome import Round
from fedetf.ranges import Range
from fedetf.runs.folder import file_name
from fedetf.runs.identity import identity
from fedetf.runs.records import CONFIG
from fedetf.settings import LAST, Settings, flat
from fedetf.tuning.space import Space, default_space, read_space
from fedetf.tuning.trials import Trial, Trials

FRACTION = 0.2  # of each client's training split is held out, if the settings hold out nothing
SEED = 1  # of all trials; not that of a run, so that no partition is reported that was also tuned on
SHARE = 4  # a trial has a fourth of the rounds, unless the user says otherwise
JOURNAL = "journal.jsonl"
TOO_LITTLE = "too little is held out to validate; raise data.validation_fraction, or data.limit"


@dataclass(frozen=True)
class Tuned:
    """One method after its trials."""

    method: str  # its label in tables
    name: str  # what settings call it
    space: Space
    trials: list[Trial]
    settings: Settings  # of a run with what was chosen, as long as the user wants it, on all training data

    @property
    def best(self) -> Trial:
        """The trial with the highest validation accuracy of those that were carried out; the first of equals."""
        return _best(self.trials)

    @property
    def images(self) -> int:
        """The image passes of all its trials."""
        return sum(trial.images for trial in self.trials)


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune` returns."""

    folder: Path
    methods: list[Tuned]
    trial: Settings  # of the first method's first trial: what all trials have in common

    @property
    def files(self) -> list[Path]:
        """The settings of a full run of each method with what was chosen, for ``fedetf run FILE``."""
        return [self.folder / f"{file_name(each.method)}.toml" for each in self.methods]

    @property
    def chosen(self) -> dict[str, Any]:
        """The chosen values as settings for :func:`fedetf.compare`: ``{"fedavg:train.lr": 0.1}``."""
        return {f"{each.method}:{key}": value for each in self.methods for key, value in each.best.values.items()}


def tune(
    methods: Sequence[str | type[Method]],
    trials: int,
    preset: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    space: str | Path | None = None,
    trial_rounds: int | None = None,
    out: str | Path | None = None,
    progress: RunsProgress | None = None,
    trust_code: bool = False,
    **short: Any,
) -> Tuning:
    """Choose settings for each method on validation data: the same number of trials, of the same length, for each.

    The first trial of a method has its defaults; the others are proposed by Optuna, and stopped early where they fall
    behind. Trials that are in ``out`` already are not run again, and one that was cut short goes on where it stopped.
    No choice looks at test data.

    Parameters
    ----------
    methods:
        As for :func:`fedetf.compare`.
    trials:
        Of each method.
    preset, settings, trust_code, short:
        As for :func:`fedetf.run`; ``"fedavg:train.lr"`` is for one method only. Unless they name a seed, it is 1 for
        all trials: take one that no result is reported of.
    space:
        A TOML file of what is tried, instead of the learning rate and every number of the method's own.
    trial_rounds:
        The rounds of a trial; left out: a fourth of ``train.rounds``, at least ten.
    out:
        A folder for the trials, new or of the same tuning. Without it, its name is made from the settings.
    progress:
        Is told when a trial begins and ends.

    Examples
    --------
    >>> folder = getfixture("tmp_path") / "tuned"
    >>> tuned = tune(["fedavg"], 2, clients=3, rounds=1, epochs=1, settings={"data.limit": 300}, out=folder)
    >>> len(tuned.methods[0].trials), list(tuned.chosen)
    (2, ['fedavg:train.lr'])
    """
    if trials < 1:
        raise UserError("--trials must be at least 1")
    overrides = {**from_short(short), **(settings or {})}
    planned = _plan(methods, preset, overrides, None if space is None else Path(space), trial_rounds, trust_code)
    folder = _default_folder(planned) if out is None else Path(out)
    dataset = None if is_file(folder / JOURNAL) else _first_data(planned)
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            tuned = _run(planned, trials, folder, progress or RunsProgress(), dataset)
    except Timeout:
        raise UserError(f"another tuning is running in {folder}; wait for it, or give another --out") from None
    tuning = Tuning(folder, tuned, planned[0].settings({}))
    for path, each in zip(tuning.files, tuned, strict=True):
        write_whole(path, each.settings.to_toml().encode(), private=True)
    return tuning


# --- what is to be done -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A method that is to be tuned."""

    candidate: Candidate
    preset: str | None
    full: Mapping[str, Any]  # what the user says for a run of it, by dotted key
    trial: Mapping[str, Any]  # the same for a trial
    space: Space
    trust_code: bool

    def settings(self, values: Mapping[str, Any], full: bool = False) -> Settings:
        """The settings of a trial with some values, or of a full run."""
        return resolve(self.preset, {**(self.full if full else self.trial), **values}, self.trust_code)

    @property
    def defaults(self) -> dict[str, Any]:
        """What the first trial tries: the settings as they are, the learning rate as the method's ``suggested_rate``
        says; what has no value, because it is derived from others, is left out.
        """
        settings = self.settings({}, full=True)
        method = method_of(settings, self.candidate.at_hand)
        now = {**flat(settings.model_dump()), **{f"method.{k}": v for k, v in method.model_dump().items()}}
        now["train.lr"] *= self.candidate.kind.suggested_rate
        first: dict[str, Any] = {}
        for key, values in self.space.items():
            if isinstance(values, Range):
                first |= {} if now.get(key) is None else {key: values.clipped(now[key])}
            else:
                first[key] = now[key] if now.get(key) in values.values else values.values[0]
        return first

    def check(self) -> None:
        """Refuse a value that could be tried and is not allowed, before the first trial and not in the middle."""
        for key, values in self.space.items():
            for value in (values.low, values.high) if isinstance(values, Range) else values.values:
                method_of(self.settings({**self.defaults, key: value}), self.candidate.at_hand)

    @property
    def about(self) -> str:
        """What decides its trials, to tell it from another tuning."""
        decisive = identity(self.settings({}), self.candidate.at_hand)
        return json.dumps({**decisive, "space": repr(self.space)}, sort_keys=True, default=str)


def _plan(
    methods: Sequence[str | type[Method]],
    preset: str | None,
    overrides: Mapping[str, Any],
    space: Path | None,
    rounds: int | None,
    trust_code: bool,
) -> list[Planned]:
    if not methods or len(set(methods)) != len(methods):
        raise UserError("--methods takes one or more different values, separated by commas")
    several = [key for key, value in overrides.items() if isinstance(value, list) and key != "measure.metrics"]
    if several:
        raise UserError(f"{several[0]} has several values; say by --space what is to be tried")
    compared = candidates(methods)
    own = own_settings(compared, preset, overrides)
    spaces = None if space is None else read_space(space)
    labels = {name for each in compared for name in (each.name, each.label)}
    for name in spaces or ():
        if name is not None and name not in labels:
            raise unknown("method", name, labels)
    planned = []
    for each in compared:
        shared = {key: v for key, v in overrides.items() if ":" not in key and concerns(key, each, compared)}
        full = {**shared, **own[each.label], "method.name": each.name}
        settings = resolve(preset, full, trust_code)
        common = {} if spaces is None else {k: v for k, v in spaces[None].items() if concerns(k, each, compared)}
        single = {} if spaces is None else {**spaces.get(each.name, {}), **spaces.get(each.label, {})}
        tried = default_space(each.kind, settings.train.lr) if spaces is None else {**common, **single}
        if not tried:
            raise UserError(f"{space} says nothing for {each.label}; add [methods.{each.label}.train] or [train]")
        trial = {"seed": SEED, **full, **_short(settings, rounds), "personal.enabled": not each.kind.has_global}
        planned.append(Planned(each, preset, full, trial, tried, trust_code))
        planned[-1].check()
    return planned


def _short(settings: Settings, rounds: int | None) -> dict[str, Any]:
    """The settings of a trial that differ from those of a full run."""
    if rounds is not None and rounds < 1:
        raise UserError("--trial-rounds must be at least 1")
    usual = min(settings.train.rounds, max(2 * LAST, math.ceil(settings.train.rounds / SHARE)))
    return {
        "data.validation_fraction": settings.data.validation_fraction or FRACTION,
        "train.rounds": usual if rounds is None else rounds,
        "train.patience": 0,
        "measure.every": 1,
        "measure.tensorboard": False,
    }


def _default_folder(planned: Sequence[Planned]) -> Path:
    digest = hashlib.blake2b("\n".join(each.about for each in planned).encode(), digest_size=4).hexdigest()
    return Path("runs") / f"tune-{file_name(planned[0].settings({}).data.name)}-{digest}"


# --- doing it ---------------------------------------------------------------------------------------------------------


def _first_data(planned: Sequence[Planned]) -> Dataset:
    """The data of all trials. Whatever is wrong with the input is said here, before anything is written."""
    need("tune", "tuning", "optuna")
    settings = planned[0].settings({})
    dataset = load_dataset(settings.data, settings.seed)
    for each in planned:
        job = prepare(each.settings(each.defaults), own=each.candidate.at_hand, dataset=dataset)
        held_out = [job.dataset.train.y[job.partition.validation[client]] for client in job.partition.seen]
        count = torch.cat(held_out).bincount(minlength=len(job.dataset.classes))
        if not len(count.nonzero()) or (
            job.method.has_global and balanced({"count": count, "correct": count})[0] is None
        ):
            raise UserError(TOO_LITTLE)
    return dataset


def _run(
    planned: Sequence[Planned], trials: int, folder: Path, progress: RunsProgress, dataset: Dataset | None
) -> list[Tuned]:
    first = planned[0].settings({})
    tuned = []
    for place, each in enumerate(planned):
        label = each.candidate.label
        record = Trials(folder / JOURNAL, label, each.about, each.space, each.defaults, first.seed)
        for number in range(trials):
            count, total = place * trials + number + 1, len(planned) * trials
            if number < len(record.done):
                trial = record.done[number]
                progress.run_ended(_planned_run(each, trial.values, number, folder), count, total, "was done before")
                continue
            dataset = dataset or load_dataset(first.data, first.seed)
            values = record.propose()
            run = _planned_run(each, values, number, folder)
            trial = _trial(number, values, run, record, dataset, progress.run_started(run, count, total))
            record.add(trial)
            progress.run_ended(run, count, total, in_words(trial))
        done = record.done[:trials]
        tuned.append(Tuned(label, each.candidate.name, each.space, done, each.settings(_best(done).values, full=True)))
    return tuned


def in_words(trial: Trial) -> str:
    """How a trial ended."""
    if trial.state == "failed":
        return f"failed: {trial.reason}"
    accuracy = "-" if trial.validation is None else f"{100 * trial.validation:.1f} %"
    stopped = f", stopped after round {max(trial.curve)}" if trial.state == "pruned" else ""
    return f"validation {accuracy}{stopped}"


def _best(trials: Sequence[Trial]) -> Trial:
    there = [trial for trial in trials if trial.state == "complete"]
    if not there:
        why = next((trial.reason for trial in trials if trial.reason), "none was carried out")
        raise RunError(f"no trial finished ({why}); give --space FILE.toml with other ranges")
    return max(there, key=lambda trial: (trial.validation or 0.0, -trial.number))


def _planned_run(each: Planned, values: Mapping[str, Any], number: int, folder: Path) -> PlannedRun:
    label = each.candidate.label
    shown = ((key, f"{value:.3g}" if isinstance(value, float) else str(value)) for key, value in values.items())
    row = (("method", label), ("trial", f"trial {number + 1}"), *shown)
    place = real_folder(real_folder(folder / "trials") / f"{file_name(label)}-{number + 1:03d}")
    return PlannedRun(row, each.settings(values), place, each.candidate.at_hand)


class Pruned(Exception):  # noqa: N818 - nothing has gone wrong
    """A trial is not worth going on with."""


class _Watch(Listener):
    """Notes the validation accuracy of each round, as the mean of five, and ends a trial that falls behind.

    Of a trial that was cut short, the rounds that were done before are looked at first, so that it ends where it would
    have ended.
    """

    def __init__(self, trials: Trials, rounds: int):
        self._trials, self._rounds = trials, rounds
        self._values: list[float] = []
        self.curve: dict[int, float] = {}
        self.images = 0

    def started(self, federation: Federation) -> None:
        for record in federation.records:
            self._look(record)

    def round_done(self, record: Round, server: Server) -> None:
        self._look(record)

    def _look(self, record: Round) -> None:
        self.images += record.images
        accuracy = record.reported.validation
        if accuracy is None:
            return
        self._values.append(accuracy)
        self.curve[record.round] = statistics.mean(self._values[-LAST:])
        if record.round < self._rounds and self._trials.is_hopeless(self.curve, warm_up=self._rounds // 2):
            raise Pruned


def _trial(
    number: int,
    values: dict[str, Any],
    run: PlannedRun,
    trials: Trials,
    dataset: Dataset,
    listeners: Sequence[Listener],
) -> Trial:
    """Run one trial, or the rest of it."""
    check_same(run)
    watch = _Watch(trials, run.settings.train.rounds)
    job = prepare(run.settings, own=run.method, dataset=dataset)
    try:
        if is_file(run.folder / CONFIG):
            result = go_on(job, run.folder, [*listeners, watch])
        else:
            result = execute(job, run.folder, [*listeners, watch])
    except Pruned:
        return Trial(number, values, "pruned", list(watch.curve.values())[-1], watch.images, watch.curve)
    except Exception as error:  # one bad trial must not cost the others
        if isinstance(error, (UserError, OSError)):
            raise  # of the folder or the disk, not of what is tried
        return Trial(number, values, "failed", None, watch.images, watch.curve, reason_of(error))
    return Trial(number, values, "complete", _judged(result), watch.images, watch.curve)


def _judged(result: Result) -> float:
    """The validation accuracy by which a trial is judged: of the global model, or of personal ones without it."""
    seen = result.outcome.validation
    accuracy = None if seen is None else seen.general_last5 if result.job.method.has_global else seen.personal
    if accuracy is None:
        raise UserError(TOO_LITTLE)
    return accuracy
