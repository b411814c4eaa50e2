"""A comparison: methods × seeds (× any setting with several values), each cell a run folder, and a table of them."""

import contextlib
import hashlib
import itertools
import math
import statistics
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedetf.api import execute, from_short, go_on, prepare
from fedetf.config import Settings, resolve
from fedetf.data import Dataset, load_dataset
from fedetf.errors import RunError, UserError
from fedetf.federation import Listener
from fedetf.files import is_file, make_folder, write_whole
from fedetf.methods import find_method, make_method
from fedetf.own_code import CODE, is_own, source_file
from fedetf.redact import bare, redacted
from fedetf.runs.commands import command, note
from fedetf.runs.folder import LOCK, file_name
from fedetf.runs.identity import identity
from fedetf.runs.read import by_reason, is_done, read_result
from fedetf.runs.records import CONFIG, ERROR


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    row: tuple[tuple[str, str], ...]  # what tells the rows of the table apart: the method, and every other axis
    settings: Settings
    folder: Path

    @property
    def done(self) -> bool:
        """Whether the run is there, from beginning to end."""
        return is_done(self.folder)

    @property
    def name(self) -> str:
        """The run in a few words."""
        parts = (f"{key.rpartition('.')[2]} = {value}" if "." in key else value for key, value in self.row)
        return ", ".join([*parts, f"seed {self.settings.seed}"])


@dataclass(frozen=True)
class Line:
    """One line of the table: a method in one setting, over its seeds. Accuracies are fractions."""

    row: dict[str, str]
    seeds: list[int]
    general: list[float]
    personal: list[float]
    epochs: float  # local epochs per client, the personal stage included
    bytes_up: float  # sent per client

    def spread(self, values: Sequence[float]) -> tuple[float, float] | None:
        """Mean and standard deviation (population, as the paper's authors compute it)."""
        return (statistics.mean(values), statistics.pstdev(values)) if values else None


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
    progress: "GridProgress | None" = None,
    trust_code: bool = False,
    **short: Any,
) -> Comparison:
    """Run every method with every seed on the same partitions, sampling lists and initial encoders.

    A list as a setting's value is one more axis of the grid. Runs that are in ``out`` already are not run again, and
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
    >>> comparison = compare(["fedavg"], [7], clients=3, rounds=1, epochs=1, out=getfixture("tmp_path") / "grid")
    >>> comparison.lines[0].row
    {'method': 'fedavg'}
    """
    overrides = {**from_short(short), **(settings or {})}
    place = None if out is None else Path(out)
    folder, cells = plan(methods, seeds, preset, overrides, equal_budget, place, trust_code)
    loaded = first_data(cells)
    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            note(folder, command(methods, seeds, preset, overrides, equal_budget, trust_code))
            failed = run_cells(cells, loaded, progress or GridProgress())
    except Timeout:
        raise UserError(f"another comparison is running in {folder}; wait for it, or give another --out") from None
    lines = collect([cell for cell in cells if cell.done])
    return Comparison(folder, lines, _caption(cells), failed)


# --- the grid ---------------------------------------------------------------------------------------------------------


def plan(
    methods: Sequence[str],
    seeds: Sequence[int],
    preset: str | None,
    overrides: Mapping[str, Any],
    equal_budget: bool,
    out: Path | None,
    trust_code: bool = False,
) -> tuple[Path, list[Cell]]:
    """All runs of a comparison, checked; nothing is written."""
    if not all(isinstance(method, str) for method in methods):
        raise UserError("a comparison takes methods by name; give your own as 'path/to/file.py:Name'")
    for name, values in (("--methods", methods), ("--seeds", seeds)):
        if not values or len(set(values)) != len(values):
            raise UserError(f"{name} takes one or more different values, separated by commas")
    for key, flag in (("seed", "--seeds"), ("method.name", "--methods")):
        if key in overrides:
            raise UserError(f"{key} is an axis of its own in a comparison; use {flag}")
    axes = {key: value for key, value in overrides.items() if isinstance(value, list)}
    common = {key: value for key, value in overrides.items() if key not in axes}
    for key, values in axes.items():
        if not values or len(set(map(str, values))) != len(values):
            raise UserError(f"{key} takes one or more different values")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for point, method in itertools.product(points, methods):
        chosen = {key: value for key, value in {**common, **point}.items() if _concerns(key, method, methods)}
        axis_values = ((key, str(point[key]) if key in chosen else "-") for key in axes)
        row = (("method", find_method(method).name), *axis_values)
        chosen["method.name"] = method
        if rows.setdefault(row, chosen) != chosen:
            raise UserError(f"two runs would both be called {', '.join(v for _, v in row)}; give one another name")
    grid = ((row, {**chosen, "seed": seed}) for row, chosen in rows.items() for seed in seeds)
    planned = [(row, resolve(preset, chosen, trust_code)) for row, chosen in grid]
    if equal_budget:
        planned = _with_equal_budget(planned)
    for _, settings in planned:
        make_method(settings.method.model_dump(), settings.fidelity)
    folder = out or _default_folder([settings for _, settings in planned])
    cells = [Cell(row, settings, folder / _cell_name(row, settings.seed)) for row, settings in planned]
    if len({cell.folder for cell in cells}) < len(cells):
        raise UserError("two runs would have the same folder; their names differ in signs only")
    return folder, cells


def _concerns(key: str, method: str, methods: Sequence[str]) -> bool:
    """Whether a common setting is for ``method``: ``method.mu`` goes only to methods that have a ``mu``."""
    section, _, name = key.partition(".")
    if section != "method":
        return True
    fields = {m: find_method(m).model_fields for m in methods}
    return name in fields[method] or not any(name in known for known in fields.values())


def _with_equal_budget(planned: list[tuple[Any, Settings]]) -> list[tuple[Any, Settings]]:
    """Raise ``personal.epochs`` so that phases × epochs is the same for all: the least number that fits every one."""
    phases, wanted = [], 0
    for _, settings in planned:
        method = make_method(settings.method.model_dump(), settings.fidelity)
        phases.append(method.personal_phases(settings.personal))
        epochs = settings.train.epochs if settings.personal.epochs is None else settings.personal.epochs
        wanted = max(wanted, phases[-1] * epochs)
    step = math.lcm(*phases)
    budget = -(-wanted // step) * step
    result = []
    for (row, settings), count in zip(planned, phases, strict=True):
        personal = settings.personal.model_copy(update={"epochs": budget // count})
        result.append((row, settings.model_copy(update={"personal": personal})))
    return result


def _cell_name(row: Sequence[tuple[str, str]], seed: int) -> str:
    (_, method), *others = row
    parts = [method, *(f"{key.split('.')[-1]}={value}" for key, value in others), f"s{seed}"]
    return file_name("-".join(parts).replace("/", "-"))


def _default_folder(planned: list[Settings]) -> Path:
    text = "\n".join(settings.to_toml() for settings in planned)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return Path("runs") / f"compare-{file_name(planned[0].data.name)}-{digest}"


def _caption(cells: Sequence[Cell]) -> str:
    """What was run; where that differs, "this or that"."""
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(cell.settings.seed for cell in cells))
    return f"{conditions([cell.settings for cell in cells])}; seeds {seeds}"


def conditions(all_settings: Sequence[Settings], trained: bool = True) -> str:
    """What some runs have in common, for a reader; where they differ, "this or that"."""
    parts = zip(*(_conditions(settings, trained) for settings in all_settings), strict=True)
    return ", ".join(" or ".join(dict.fromkeys(part)) for part in parts)


def _conditions(s: Settings, trained: bool) -> list[str]:
    many = "all" if s.data.limit is None else f"{s.data.limit:,}"
    samples = "samples" if s.data.size is None else f"images of {s.data.size}×{s.data.size}"
    clients = "clients" if s.data.site_column else f"{s.data.clients} clients"
    data = [bare(s.data.name), f"{many} {samples}", clients, s.data.describe()]
    training = [f"batch {s.train.batch_size}", f"lr {s.train.lr:g}", f"fidelity {s.fidelity}"]
    taking_part = f"participation {s.train.participation:g}"
    return [*data, bare(s.model.name), taking_part, s.train.describe(), *training] if trained else data


# --- running it -------------------------------------------------------------------------------------------------------


class GridProgress:
    """Is told how far the grid is; every default does nothing."""

    def run_started(self, cell: Cell, number: int, total: int) -> Sequence[Listener]:
        """Before each run; returns what shall listen to it."""
        return ()

    def run_ended(self, cell: Cell, number: int, total: int, outcome: str) -> None:
        """After each run: a word on how it went."""


def run_cells(cells: Sequence[Cell], loaded: dict[Path, Dataset], progress: GridProgress) -> dict[str, str]:
    """Run what is not there yet; return what failed and why. ``loaded`` is what :func:`first_data` gave."""
    failed = {}
    for number, cell in enumerate(cells, start=1):
        if cell.done:
            progress.run_ended(cell, number, len(cells), "was done before")
            continue
        listeners = progress.run_started(cell, number, len(cells))
        try:
            job = prepare(cell.settings, dataset=loaded.pop(cell.folder, None))
            if is_file(cell.folder / CONFIG):
                go_on(job, cell.folder, listeners)  # a run of this grid that was cut short, see _check_same
            else:
                execute(job, cell.folder, listeners)
            progress.run_ended(cell, number, len(cells), "done")
        except Exception as error:  # one bad run must not cost the others
            known = isinstance(error, (UserError, RunError))
            reason = redacted(str(error) if known else f"{type(error).__name__}: {error}")
            failed[cell.name] = reason.split("\n")[0]
            _keep_error(cell.folder, redacted(traceback.format_exc()))
            progress.run_ended(cell, number, len(cells), f"failed: {failed[cell.name]}")
    return failed


def _keep_error(folder: Path, text: str) -> None:
    """Leave the traceback in the run's folder, under a name that says that the run is not whole."""
    with contextlib.suppress(OSError, UserError):  # the disk may be what failed
        make_folder(folder)
        write_whole(folder / ERROR, text.encode(), private=True)


def first_data(cells: Sequence[Cell]) -> dict[Path, Dataset]:
    """The data of the first run that has any, by its folder; none if some runs are done.

    If no run has data, or a folder holds another run than its own, the error comes before anything is written.
    """
    for cell in cells:
        _check_same(cell)
    if any(cell.done for cell in cells):
        return {}
    errors: dict[str, UserError] = {}
    for cell in cells:
        key = repr(cell.settings.data)
        if key in errors:
            continue
        try:
            return {cell.folder: load_dataset(cell.settings.data, cell.settings.seed)}
        except UserError as error:
            errors[key] = error
    if errors:
        raise next(iter(errors.values()))
    return {}  # there is nothing to run


def failures(failed: Mapping[str, str]) -> list[str]:
    """What to say of the runs that failed: a line for each reason."""
    return [f"Failed: {'; '.join(runs)}: {why}\n" for why, runs in by_reason(failed).items()]


def _check_same(cell: Cell) -> None:
    """Refuse a folder that holds another run than the one that shall go there."""
    if not cell.folder.exists():
        return
    if not cell.folder.is_dir() or cell.folder.is_symlink():
        raise UserError(f"{cell.folder} is not a folder of this comparison; give another --out")
    config = cell.folder / CONFIG
    if not is_file(config):
        if any(path.suffix != ".part" and path.name != LOCK for path in cell.folder.iterdir()):
            raise UserError(f"{cell.folder} exists and is not a run of this comparison; give another --out")
    elif not _is_of(config, cell.settings):
        raise UserError(f"{cell.folder} holds a run with other settings; give another --out")
    for name in (cell.settings.method.name, cell.settings.model.name):
        if is_file(config) and _changed_since(name, config):
            raise UserError(f"{name} has changed since {cell.folder} was made; give another --out")


def _is_of(config: Path, settings: Settings) -> bool:
    """Whether a run folder's settings are these, in what decides; of code it runs only what these name."""
    there = resolve(str(config), unused=CODE)
    names = [(each.method.name, each.model.name) for each in (there, settings)]
    return names[0] == names[1] and identity(there) == identity(settings)


def _changed_since(name: str, config: Path) -> bool:
    """Whether the file of a user's own method or encoder is newer than a run of it."""
    source = source_file(name) if is_own(name) else None
    return source is not None and source.stat().st_mtime > config.stat().st_mtime


# --- the table --------------------------------------------------------------------------------------------------------


def collect(cells: Sequence[Cell]) -> list[Line]:
    """One line for each row of the grid, from the results of its seeds."""
    lines = []
    for row in dict.fromkeys(cell.row for cell in cells):
        group = [cell for cell in cells if cell.row == row]
        results = [read_result(cell.folder) for cell in group]
        lines.append(
            Line(
                row=dict(row),
                seeds=[r.seed for r in results],
                general=[r.general_last5 for r in results if r.general_last5 is not None],
                personal=[r.personal for r in results if r.personal is not None],
                epochs=statistics.mean(r.epochs_train + r.epochs_personal for r in results),
                bytes_up=statistics.mean(r.bytes_up / r.clients for r in results),
            )
        )
    return lines
