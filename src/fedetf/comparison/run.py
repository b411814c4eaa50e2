"""Runs a comparison: what is done is kept, what was cut short goes on, and one run that fails costs no other."""

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedetf.api import execute, from_short, go_on, prepare
from fedetf.comparison.caption import caption
from fedetf.comparison.plan import PlannedRun, plan
from fedetf.comparison.table import Line, table_lines
from fedetf.config import resolve
from fedetf.data import Dataset, load_dataset
from fedetf.errors import RunError, UserError
from fedetf.federation import Listener
from fedetf.files import is_file, make_folder, write_whole
from fedetf.own_code import CODE, is_own, source_file
from fedetf.redact import redacted
from fedetf.runs.commands import command, note
from fedetf.runs.folder import LOCK
from fedetf.runs.identity import identity
from fedetf.runs.records import CONFIG, ERROR
from fedetf.settings import Settings


@dataclass
class Comparison:
    """What :func:`compare` returns."""

    folder: Path
    lines: list[Line]
    caption: str
    failed: dict[str, str] = field(default_factory=dict)  # run -> why


def compare(
    methods: Sequence[str],
    seeds: Sequence[int],
    preset: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    equal_budget: bool = False,
    out: str | Path | None = None,
    progress: "RunsProgress | None" = None,
    trust_code: bool = False,
    **short: Any,
) -> Comparison:
    """Run every method with every seed on the same partitions, sampling lists and initial encoders.

    A list as a setting's value is one more axis. Runs that are in ``out`` already are not run again, and
    one that fails does not stop the others. Without ``out`` the folder's name is made from the settings, so that the
    same call finds its runs again.

    Parameters
    ----------
    methods:
        By name, or ``path/to/file.py:Name``.
    seeds:
        Every method runs with each of them.
    preset:
        As for :func:`fedetf.run`.
    settings:
        As for :func:`fedetf.run`; a list is one more axis.
    equal_budget:
        Give every method the same number of local epochs in the personal stage, enough for the one that takes the most.
    out:
        A folder for the runs, new or of the same comparison.
    progress:
        Is told when a run begins and ends.
    trust_code:
        As for :func:`fedetf.run`.
    short:
        As for :func:`fedetf.run`; a list is one more axis.

    Examples
    --------
    >>> comparison = compare(["fedavg"], [7], clients=3, rounds=1, epochs=1, out=getfixture("tmp_path") / "compared")
    >>> comparison.lines[0].row
    {'method': 'fedavg'}
    """
    overrides = {**from_short(short), **(settings or {})}
    place = None if out is None else Path(out)
    folder, runs = plan(methods, seeds, preset, overrides, equal_budget, place, trust_code)
    loaded = first_data(runs)
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            note(folder, command(methods, seeds, preset, overrides, equal_budget, trust_code))
            failed = run_planned(runs, loaded, progress or RunsProgress())
    except Timeout:
        raise UserError(f"another comparison is running in {folder}; wait for it, or give another --out") from None
    lines = table_lines([run for run in runs if run.done])
    return Comparison(folder, lines, caption(runs), failed)


class RunsProgress:
    """Is told how far some runs are; every default does nothing."""

    def run_started(self, run: PlannedRun, number: int, total: int) -> Sequence[Listener]:
        """Before each run; returns what shall listen to it."""
        return ()

    def run_ended(self, run: PlannedRun, number: int, total: int, outcome: str) -> None:
        """After each run: a word on how it went."""


def run_planned(runs: Sequence[PlannedRun], loaded: dict[Path, Dataset], progress: RunsProgress) -> dict[str, str]:
    """Run what is not there yet; return what failed and why. ``loaded`` is what :func:`first_data` gave."""
    failed = {}
    for number, run in enumerate(runs, start=1):
        if run.done:
            progress.run_ended(run, number, len(runs), "was done before")
            continue
        listeners = progress.run_started(run, number, len(runs))
        try:
            job = prepare(run.settings, dataset=loaded.pop(run.folder, None))
            if is_file(run.folder / CONFIG):
                go_on(job, run.folder, listeners)  # a run of this comparison that was cut short, see _check_same
            else:
                execute(job, run.folder, listeners)
            progress.run_ended(run, number, len(runs), "done")
        except Exception as error:  # one bad run must not cost the others
            known = isinstance(error, (UserError, RunError))
            reason = redacted(str(error) if known else f"{type(error).__name__}: {error}")
            failed[run.name] = reason.split("\n")[0]
            _keep_error(run.folder, redacted(traceback.format_exc()))
            progress.run_ended(run, number, len(runs), f"failed: {failed[run.name]}")
    return failed


def _keep_error(folder: Path, text: str) -> None:
    """Leave the traceback in the run's folder, under a name that says that the run is not whole."""
    with contextlib.suppress(OSError, UserError):  # the disk may be what failed
        make_folder(folder)
        write_whole(folder / ERROR, text.encode(), private=True)


def first_data(runs: Sequence[PlannedRun]) -> dict[Path, Dataset]:
    """The data of the first run that has any, by its folder; none if some runs are done.

    If no run has data, or a folder holds another run than its own, the error comes before anything is written.
    """
    for run in runs:
        _check_same(run)
    if any(run.done for run in runs):
        return {}
    errors: dict[str, UserError] = {}
    for run in runs:
        key = repr(run.settings.data)
        if key in errors:
            continue
        try:
            return {run.folder: load_dataset(run.settings.data, run.settings.seed)}
        except UserError as error:
            errors[key] = error
    if errors:
        raise next(iter(errors.values()))
    return {}  # there is nothing to run


def _check_same(run: PlannedRun) -> None:
    """Refuse a folder that holds another run than the one that shall go there."""
    if not run.folder.exists():
        return
    if not run.folder.is_dir() or run.folder.is_symlink():
        raise UserError(f"{run.folder} is not a folder of this comparison; give another --out")
    config = run.folder / CONFIG
    if not is_file(config):
        if any(path.suffix != ".part" and path.name != LOCK for path in run.folder.iterdir()):
            raise UserError(f"{run.folder} exists and is not a run of this comparison; give another --out")
    elif not _is_of(config, run.settings):
        raise UserError(f"{run.folder} holds a run with other settings; give another --out")
    for name in (run.settings.method.name, run.settings.model.name):
        if is_file(config) and _changed_since(name, config):
            raise UserError(f"{name} has changed since {run.folder} was made; give another --out")


def _is_of(config: Path, settings: Settings) -> bool:
    """Whether a run folder's settings are these, in what decides; of code it runs only what these name."""
    there = resolve(str(config), unused=CODE)
    names = [(each.method.name, each.model.name) for each in (there, settings)]
    return names[0] == names[1] and identity(there) == identity(settings)


def _changed_since(name: str, config: Path) -> bool:
    """Whether the file of a user's own method or encoder is newer than a run of it."""
    source = source_file(name) if is_own(name) else None
    return source is not None and source.stat().st_mtime > config.stat().st_mtime
