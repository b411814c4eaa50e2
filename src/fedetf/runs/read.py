"""Reads run folders: finds them, and gives what their files say by the types of :mod:`fedetf.runs.records`.

It is tolerant: :func:`gather` names what is unfinished or damaged instead of raising, a file that is being written is
read as far as it goes, and a folder of an older version has the defaults of settings that came later.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedetf.errors import UserError, printable
from fedetf.files import RECORD, UnfitFile, is_file, parse_json, read_json, read_text, read_toml, stamp
from fedetf.redact import redacted
from fedetf.runs.commands import read_commands
from fedetf.runs.records import (
    CONFIG,
    ERROR,
    PARTITION,
    RESULT,
    ROUNDS,
    TUNING,
    Holdings,
    RoundLine,
    RoundLines,
    RunResult,
    TuningNote,
    fitting,
    mended_by_resume,
)
from fedetf.settings import ADDRESSES, LAST, Settings, flat

ACCURACIES = ("general", "personal")  # metrics that every run has; all others but the next are of measure.collapse
SCORES = ("general", "final", "personal")  # of any metric: mean of the last five rounds, final model, personal models
FIRST_STEP = "personal_first"  # personal accuracy after the first step of finetuning; most methods have no other
MOST_NAMED = 3  # folders with the same problem

# What a setting that a folder does not name had as its value: it was added later, and its default changes nothing.
DEFAULTS = flat(Settings().model_dump(exclude_none=True, exclude={"method"}))


@dataclass(frozen=True)
class Run:
    """A run, from its folder; unless it is done, its result says nothing yet."""

    folder: Path
    result: RunResult
    rounds: list[RoundLine]
    settings: dict[str, Any] = field(default_factory=dict)  # by dotted key, without addresses
    commands: list[str] = field(default_factory=list)  # of the comparison that it belongs to, if it does
    done: bool = True
    written: float = 0.0  # when its last round was, in seconds since 1970; of a run that is not done

    @property
    def seed(self) -> int:
        """The seed of every draw in it."""
        return self.result.seed

    @cached_property
    def tuning_passes(self) -> int | None:
        """The image passes that the choice of its method's settings took; None if they were not tuned."""
        path = self.folder.parent / TUNING
        if not is_file(path):
            return None
        tuned = fitting(TuningNote, read_json(path, RECORD), str(path)).methods
        return next((each.image_passes for each in tuned if each.name == self.settings["method.name"]), None)

    @cached_property
    def holdings(self) -> Holdings:
        """Who held what; read when it is first asked for, since results can be kept without it."""
        return read_holdings(self.folder)

    def value(self, metric: str) -> float | None:
        """An accuracy, or a measure of neural collapse as the mean over the last five rounds; None if it has none."""
        if metric in ACCURACIES:
            return self.result.general_last5 if metric == "general" else self.result.personal
        if metric == FIRST_STEP:
            return [self.result.personal, *self.result.personal_curve[:2]][-1]
        values = [line.value(metric) for line in self.rounds[-LAST:]]
        known = [value for value in values if value is not None]
        return statistics.mean(known) if known else None

    def score(self, which: str, metric: str = "accuracy") -> float | None:
        """One of :data:`SCORES` by a metric; None if the run has none."""
        result = self.result
        if metric == "accuracy":
            return {"general": result.general_last5, "final": result.general, "personal": result.personal}[which]
        if which == "general":
            return self.value(metric)
        return (result.metrics.general if which == "final" else result.metrics.personal).get(metric)

    def curve(self, metric: str) -> list[float]:
        """A value per round, NaN where it was not measured."""
        return [math.nan if (value := line.value(metric)) is None else value for line in self.rounds]


def by_seed(runs: Iterable[Run], metric: str) -> dict[int, float]:
    """A value for each seed that has it."""
    return {run.seed: value for run in runs if (value := run.value(metric)) is not None}


def scores_by_seed(runs: Iterable[Run], which: str, metric: str = "accuracy") -> dict[int, float]:
    """One of :data:`SCORES` for each seed that has it; what is not finite is no value."""
    scores = {run.seed: run.score(which, metric) for run in runs}
    return {seed: value for seed, value in scores.items() if value is not None and math.isfinite(value)}


# --- one folder -------------------------------------------------------------------------------------------------------


def is_done(folder: Path) -> bool:
    """Whether a folder holds a run from beginning to end."""
    return is_file(folder / RESULT)


def config_of(folder: Path) -> Path:
    """The file of its settings."""
    config = folder / CONFIG
    if not _exists(folder):
        raise UserError(f"there is no folder {folder}; check the path")
    if not is_file(config):
        raise UserError(f"{folder} is not a run folder: there is no {CONFIG} in it")
    return config


def read_run(folder: Path) -> Run:
    """A finished run; one that is not finished, or damaged, is an error of one line."""
    settings = _settings(folder)
    if not _exists(folder / RESULT):
        raise UserError(_how_far(folder))
    result, rounds = read_result(folder), read_rounds(folder)
    if len(rounds) != result.rounds:
        with mended_by_resume(folder / ROUNDS):
            raise UnfitFile(f"{folder / ROUNDS} is damaged: it does not hold rounds 1 to {result.rounds}")
    return Run(folder, result, rounds, settings, read_commands(folder.parent))


def read_so_far(folder: Path) -> Run:
    """A run that may be going on, or was stopped: its rounds so far."""
    settings = _settings(folder)
    if _exists(folder / ERROR):
        raise UserError(_how_far(folder))
    nothing = dict.fromkeys(("epochs_train", "epochs_personal", "bytes_up", "bytes_down"), 0)
    begun = {"method": settings["method.name"], "seed": settings.get("seed"), "clients": settings.get("data.clients")}
    accuracies = dict.fromkeys(("general_last5", "personal"))
    result = fitting(RunResult, {**begun, "rounds": 0, **accuracies, **nothing}, str(folder / CONFIG))
    written = stamp(folder / ROUNDS)
    ended = written[0] / 1e9 if written else 0.0
    rounds, commands = rounds_so_far(folder), read_commands(folder.parent)
    return Run(folder, result, rounds, settings, commands, done=False, written=ended)


def read_result(folder: Path) -> RunResult:
    """The result of a run that is done."""
    path = _there(folder / RESULT)
    with mended_by_resume(path):
        return fitting(RunResult, read_json(path, RECORD), str(path))


def read_rounds(folder: Path) -> list[RoundLine]:
    """Its rounds, in order."""
    path = _there(folder / ROUNDS)
    with mended_by_resume(path):
        return _rounds(path, read_text(path, RECORD).splitlines())


def rounds_so_far(folder: Path) -> list[RoundLine]:
    """The rounds that a run has done which may be going on; a last line that is being written is left out."""
    return _rounds(folder / ROUNDS, _whole_lines(folder / ROUNDS))


def read_holdings(folder: Path) -> Holdings:
    """Who held what in it."""
    path = _there(folder / PARTITION)
    with mended_by_resume(path):
        holdings = fitting(Holdings, read_json(path, RECORD), str(path))
        if any(len(client.counts) != len(holdings.classes) for client in holdings.clients):
            raise UnfitFile(f"{path} is damaged: counts and classes do not match")
    return holdings


def _whole_lines(path: Path) -> list[str]:
    lines = read_text(path, RECORD).splitlines(keepends=True) if _exists(path) else []
    return [line for line in lines if line.endswith("\n")]


def _rounds(path: Path, lines: Sequence[str]) -> list[RoundLine]:
    rounds = fitting(RoundLines, [parse_json(line, str(path)) for line in lines], str(path)).root
    if [line.round for line in rounds] != list(range(1, len(rounds) + 1)):
        raise UnfitFile(f"{path} is damaged: its rounds are not 1 to {len(rounds)}")
    return rounds


def _settings(folder: Path) -> dict[str, Any]:
    config, error = folder / CONFIG, folder / ERROR
    if not _exists(config):
        raise UserError(f"failed: {_last_line(error)}" if _exists(error) else f"{CONFIG} is missing")
    settings = flat(read_toml(config))
    settings |= {key: value for key, value in DEFAULTS.items() if key not in settings}
    if not isinstance(settings.get("method.name"), str):
        raise UnfitFile(f"{CONFIG} is damaged: it names no method")
    return {key: value for key, value in settings.items() if key not in ADDRESSES}  # pages of runs are passed on


def _how_far(folder: Path) -> str:
    """What to say of a run without a result."""
    if _exists(folder / ERROR):
        return f"failed: {_last_line(folder / ERROR)}"
    done = len(_whole_lines(folder / ROUNDS))
    return f"not finished, {done} round{'' if done == 1 else 's'} done; go on with: fedetf resume {folder}"


def _last_line(path: Path) -> str:
    lines = redacted(read_text(path)).strip().splitlines()
    said = lines[-1].removeprefix("fedetf.errors.").removeprefix("UserError: ") if lines else "no reason is on record"
    return printable(said)


def _there(path: Path) -> Path:
    if not _exists(path):
        raise UnfitFile(f"{path} is missing")
    return path


def _exists(path: Path) -> bool:
    """Whether something has that name, be it a link."""
    return path.exists() or path.is_symlink()


# --- many folders -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A run that is not shown, and why."""

    folder: Path
    reason: str


def gather(folders: Sequence[Path], read: Callable[[Path], Run] = read_run) -> tuple[list[Run], list[Problem]]:
    """All runs in some folders, at any depth, each once; and those that are unfinished or damaged."""
    runs, problems = [], []
    found_in = {given: list(run_folders(given)) for given in folders}
    for folder in dict.fromkeys(path for paths in found_in.values() for path in paths):
        try:
            run = read(folder)
            _ = run.holdings  # read now, where what is wrong with it can be said
            runs.append(run)
        except UserError as error:
            problems.append(Problem(folder, str(error).replace(f"{folder}/", "")))  # it is named anyway
        except OSError as error:
            problems.append(Problem(folder, f"cannot be read: {error.strerror}"))
    if not runs and not problems:
        raise UserError(f"no run in {', '.join(map(str, folders))}; give folders that fedetf run or compare wrote")
    empty = [Problem(given, "holds no run") for given, paths in found_in.items() if not paths]
    return runs, [*problems, *empty]


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders in a folder, at any depth, or itself if it is one."""
    if not folder.is_dir():
        raise UserError(f"no folder {str(folder)!r}; give the --out of a run or a comparison")
    waiting = [folder]  # no recursion: a stranger's folders may be deeper than Python's stack
    while waiting:
        path = waiting.pop()
        if any(_exists(path / name) for name in (CONFIG, RESULT, ERROR)):
            yield path
        else:
            inner = (each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
            waiting += sorted(inner, reverse=True)


def in_words(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Each reason once, after the folders that it holds for."""
    folders_by_reason = by_reason({str(problem.folder): problem.reason for problem in problems})
    return [(_named(folders), reason) for reason, folders in folders_by_reason.items()]


def _named(folders: Sequence[str]) -> str:
    more = len(folders) - MOST_NAMED
    return ", ".join(folders[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Each reason once, with the names that it was given for.

    >>> by_reason({"a": "no data", "b": "no memory", "c": "no data"})
    {'no data': ['a', 'c'], 'no memory': ['b']}
    """
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name)
    return names
