"""Runs a comparison: what is done is kept, what was cut short goes on, and one run that fails costs no other."""

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from fedetf.api import execute, go_on, prepare
from fedetf.comparison.best import at_their_best
from fedetf.comparison.caption import caption
from fedetf.comparison.metric import ACCURACY, find_quantity, with_metric
from fedetf.comparison.plan import PlannedRun, plan, written_out
from fedetf.comparison.references import is_possible, is_reference, with_references
from fedetf.comparison.table import Line, Table, table_lines
from fedetf.comparison.target import by_name, check_target, cost_to_target
from fedetf.config import from_short, resolve
from fedetf.data import Dataset, load_dataset
from fedetf.errors import RunError, UserError
from fedetf.federation import Listener
from fedetf.files import is_file, make_folder, write_whole
from fedetf.methods import Method
from fedetf.own_code import CODE, is_own, source_file
from fedetf.redact import redacted
from fedetf.runs.commands import command, note
from fedetf.runs.folder import LOCK
from fedetf.runs.identity import as_asked, identity, is_choice
from fedetf.runs.records import CONFIG, ERROR

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Comparison:
    """What :func:`compare` returns."""

    folder: Path
    table: Table
    caption: str
    failed: dict[str, str] = field(default_factory=dict)  # run -> why
    target: float | None = None  # a general accuracy, to say what it costs to reach it

    @property
    def lines(self) -> list[Line]:
        """The lines of its table: a method in one setting each."""
        return self.table.lines

    @property
    def best(self) -> tuple[Table, str]:
        """Each method at its best, where several settings of one were run, and a word on how that was chosen."""
        chosen = at_their_best([run for line in self.lines for run in line.runs])
        folders = {run.folder for run in chosen.runs}
        own = [key for line in self.lines for key in line.row if is_choice(key)]
        lines = [
            replace(line, own=line.own | set(own))
            for line in self.lines
            if folders.issuperset(run.folder for run in line.runs)
        ]
        return replace(self.table, lines=lines), chosen.note

    @property
    def per_seed(self) -> list[dict[str, Any]]:
        """Every run by itself: the axes of the comparison, the seed, what it reached and its folder."""
        return [
            {
                **line.row,
                "seed": run.seed,
                **{which: by_seed.get(run.seed) for which, by_seed in line.scores.items()},
                "personal_majority": run.result.personal_majority,
                "personal_worst_decile": run.result.personal_worst_decile,
                "unseen": run.result.unseen and run.result.unseen.personal,
                "epochs": run.result.epochs_train + run.result.epochs_personal,
                "bytes_up": run.result.bytes_up,
                "bytes_down": run.result.bytes_down,
                "image_passes": run.result.image_passes,
                **({} if self.target is None else by_name(cost_to_target(run, self.target))),
                "reference": line.reference,
                "run": run.folder.name,
            }
            for line in self.lines
            for run in line.runs
        ]

    def to_frame(self) -> "pd.DataFrame":
        """The same as a data frame of pandas, a row for each run; values are fractions."""
        if find_spec("pandas") is None:
            raise UserError("a data frame needs pandas; install it with: pip install pandas")
        import pandas as pd

        return pd.DataFrame(self.per_seed)


def compare(
    methods: Sequence[str | type[Method]],
    seeds: Sequence[int],
    preset: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    equal_budget: bool = False,
    references: bool = True,
    metric: str = ACCURACY.name,
    against: str | None = None,
    target: float | None = None,
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
        By name, ``path/to/file.py:Name``, or your own subclasses of :class:`fedetf.Method`. Two of the same name are
        told apart by a number.
    seeds:
        Every method runs with each of them.
    preset:
        As for :func:`fedetf.run`.
    settings:
        As for :func:`fedetf.run`; a list is one more axis. ``"fedavg:train.lr"`` is for the runs of one method only.
    equal_budget:
        Give every method the same number of local epochs in the personal stage, enough for the one that takes the most.
    references:
        Also run ``local`` (each client alone) and ``pooled`` (all data in one place): the floor and the ceiling, which
        are not ranked.
    metric:
        What the table shows and is judged by; it is measured as well, if it is not already.
    against:
        The method that all others are compared with, seed by seed. By default FedETF, or the first if it is not there.
    target:
        A general accuracy: the tables also say what each method needs to reach it.
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
    >>> comparison = compare(
    ...     ["fedavg"], [7], references=False, clients=3, rounds=1, epochs=1, out=getfixture("tmp_path") / "compared"
    ... )
    >>> comparison.lines[0].row
    {'method': 'fedavg'}
    """
    overrides = {**from_short(short), **(settings or {})}
    place = None if out is None else Path(out)
    source, quantity = find_quantity(metric)
    measured = with_metric(source, preset, overrides, trust_code)
    folder, runs = plan_all(methods, seeds, preset, measured, equal_budget, place, trust_code, references)
    if against is not None:
        against = _known_rival(against, runs)
    if target is not None:
        check_target(target)
    loaded = first_data(runs)
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            flags = {
                "--no-references": not references,
                "--metric": None if quantity is ACCURACY else metric,
                "--against": against,
                "--target": None if target is None else f"{target:g}",
            }
            names = [method for method in methods if isinstance(method, str)]
            if len(names) == len(methods):  # a class has no name that a command could take
                note(folder, command(names, seeds, preset, overrides, equal_budget, trust_code, flags))
            failed = run_planned(runs, loaded, progress or RunsProgress())
    except Timeout:
        raise UserError(f"another comparison is running in {folder}; wait for it, or give another --out") from None
    lines = table_lines([run for run in runs if run.done], quantity.name)
    return Comparison(folder, Table(lines, quantity, against), caption(runs), failed, target)


def plan_all(
    methods: Sequence[str | type[Method]],
    seeds: Sequence[int],
    preset: str | None,
    overrides: Mapping[str, Any],
    equal_budget: bool,
    out: Path | None,
    trust_code: bool = False,
    references: bool = True,
) -> tuple[Path, list[PlannedRun]]:
    """All runs of a comparison, those of the references included where they are possible; nothing is written."""
    everybody = with_references(written_out(methods)) if references else written_out(methods)
    folder, runs = plan(everybody, seeds, preset, overrides, equal_budget, out, trust_code)
    return folder, [run for run in runs if not is_reference(dict(run.row)["method"]) or is_possible(run.settings)]


def _known_rival(name: str, runs: Sequence[PlannedRun]) -> str:
    """The name in the table of a method that was asked for by any of its names."""
    for run in runs:
        called = dict(run.row)["method"]
        if name.lower() in (called.lower(), run.settings.method.name.lower()) and not is_reference(called):
            return called
    methods = dict.fromkeys(dict(run.row)["method"] for run in runs)
    choice = ", ".join(method for method in methods if not is_reference(method))
    raise UserError(f"--against {name} is not one of the compared methods; choose from {choice}")


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
            job = prepare(run.settings, own=run.method, dataset=loaded.pop(run.folder, None))
            if is_file(run.folder / CONFIG):
                go_on(job, run.folder, listeners)  # a run of this comparison that was cut short, see check_same
            else:
                execute(job, run.folder, listeners)
            progress.run_ended(run, number, len(runs), "done")
        except Exception as error:  # one bad run must not cost the others
            failed[run.name] = reason_of(error)
            _keep_error(run.folder, redacted(traceback.format_exc()))
            progress.run_ended(run, number, len(runs), f"failed: {failed[run.name]}")
    return failed


def reason_of(error: Exception) -> str:
    """Why a run failed, in one line."""
    known = isinstance(error, (UserError, RunError))
    return redacted(str(error) if known else f"{type(error).__name__}: {error}").split("\n")[0]


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
        check_same(run)
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


def check_same(run: PlannedRun) -> None:
    """Refuse a folder that holds another run than the one that shall go there."""
    if not run.folder.exists():
        return
    if not run.folder.is_dir() or run.folder.is_symlink():
        raise UserError(f"{run.folder} is not a folder of this comparison; give another --out")
    config = run.folder / CONFIG
    if not is_file(config):
        if any(path.suffix != ".part" and path.name != LOCK for path in run.folder.iterdir()):
            raise UserError(f"{run.folder} exists and is not a run of this comparison; give another --out")
    elif not _is_of(config, run):
        raise UserError(f"{run.folder} holds a run with other settings; give another --out")
    for name in (run.settings.method.name, run.settings.model.name):
        if is_file(config) and _changed_since(name, config):
            raise UserError(f"{name} has changed since {run.folder} was made; give another --out")


def _is_of(config: Path, run: PlannedRun) -> bool:
    """Whether a run folder's settings are those of the run, in what decides; of code it runs only what these name."""
    there, here = as_asked(resolve(str(config), unused=CODE), run.settings), run.settings
    names = [(each.method.name, each.model.name) for each in (there, here)]
    return names[0] == names[1] and identity(there, run.method) == identity(here, run.method)


def _changed_since(name: str, config: Path) -> bool:
    """Whether the file of a user's own method or encoder is newer than a run of it."""
    source = source_file(name) if is_own(name) else None
    return source is not None and source.stat().st_mtime > config.stat().st_mtime
