"""An experiment of the paper, as ``paper/experiments/<name>.toml`` has it, and its runs at some scale."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedetf.comparison.plan import PlannedRun
from fedetf.config import resolve, validated
from fedetf.errors import UserError, unknown
from fedetf.files import packaged
from fedetf.runs.folder import file_name
from fedetf.runs.identity import digest
from fedetf.runs.read import ACCURACIES, FIRST_STEP
from fedetf.settings import Section, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, before it moved here
    import tomli as tomllib

ScaleName = Literal["smoke", "small", "medium", "paper"]
Flat = dict[str, Any]  # dotted keys -> values


class Scale(Section):
    """How large an experiment is."""

    about: str
    instead: str = Field("", description="the data in place of every dataset, if they are not the paper's")
    seeds: list[int]
    settings: Flat


class Column(Section):
    """A setting under which rows are compared; one that has no entry for a scale is left out there."""

    name: str
    paper: Flat | None = None
    medium: Flat | None = None
    small: Flat | None = None
    smoke: Flat | None = None
    rows: dict[ScaleName, list[str]] = Field({}, description="the only rows that it has at a scale, if not all")
    seeds: dict[ScaleName, list[int]] = Field({}, description="at a scale, if not those of its rows")

    def settings(self, scale: ScaleName) -> Flat | None:
        """What distinguishes it at a scale."""
        settings: Flat | None = getattr(self, scale)
        return settings


class Row(Section):
    """A method, or a variant of one."""

    name: str
    settings: Flat
    seeds: dict[ScaleName, list[int]] = Field({}, description="at a scale, if not the scale's own")
    values: list[str] = Field([], description="the paper's for each column: 'mean±std', general and then personal")


class Claim(Section):
    """That one row has more of something than others; in every column, unless it compares two of them."""

    text: str
    metric: str
    more: str
    less: list[str]
    more_column: str | None = None
    less_column: str | None = None


class Experiment(Section):
    """A table or a figure."""

    title: str
    column: list[Column]
    row: list[Row] = Field([])
    claim: list[Claim] = Field([])

    @property
    def is_measured(self) -> bool:
        """Whether it looks at more than accuracies."""
        return any(claim.metric not in (*ACCURACIES, FIRST_STEP) for claim in self.claim)


@dataclass(frozen=True)
class Trial:
    """One run, and its place in the table."""

    row: str
    column: str
    run: PlannedRun


def experiment_names() -> list[str]:
    """table1 to table5, fig1 and fig4 to fig7."""
    names = (path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))
    return sorted(name for name in names if name != "scales")


def load_experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in experiment_names():
        raise unknown("experiment", name, experiment_names())
    return validated(Experiment, _read(name))


def load_scale(name: str) -> Scale:
    """The scale of that name."""
    scales = _read("scales")
    if name not in scales:
        raise unknown("scale", name, list(scales))
    return validated(Scale, scales[name])


def _folder() -> Any:
    return resources.files("fedetf").joinpath("paper").joinpath("experiments")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(packaged("paper", "experiments", f"{name}.toml"))


@dataclass(frozen=True)
class Part:
    """What of an experiment shall run; left out: all of it."""

    datasets: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    columns: Sequence[str] = ()  # by the experiment's own names

    @property
    def flags(self) -> dict[str, Sequence[Any]]:
        """What the command line calls each of them."""
        return {
            "--columns": self.columns,
            "--dataset": self.datasets,
            "--methods": self.methods,
            "--seeds": self.seeds,
        }

    @property
    def name(self) -> str:
        """As part of a file's name."""
        chosen = (*self.columns, *self.datasets, *self.methods, *(f"s{seed}" for seed in self.seeds))
        return "-".join(map(str, chosen))


def column_names(experiment: Experiment, text: str) -> list[str]:
    """The columns that a list separated by commas names; a name may hold commas, and signs that are hard to type.

    >>> column_names(load_experiment("table1"), "cifar-10, alpha=0.1,CIFAR-10, α = 0.05")
    ['CIFAR-10, α = 0.1', 'CIFAR-10, α = 0.05']
    """
    known = {_typed(column.name): column.name for column in experiment.column}
    names, words = [], text.split(",")
    while words:
        lengths = (n for n in range(len(words), 0, -1) if _typed(",".join(words[:n])) in known)
        length = next(lengths, None)
        if length is None:
            raise unknown("column of this experiment", ",".join(words).strip(), known.values())
        names.append(known[_typed(",".join(words[:length]))])
        words = words[length:]
    return names


def _typed(name: str) -> str:
    """A column's name as one types it: without spaces and capitals, alpha for α."""
    return "".join(name.casefold().replace("α", "alpha").split())


def plan(
    experiment: Experiment, scale_name: ScaleName, part: Part, overrides: Mapping[str, Any], out: Path
) -> list[Trial]:
    """All runs of an experiment at a scale, checked; nothing is written.

    Runs with the same settings have the same folder, whatever experiment they are part of.
    """
    scale = load_scale(scale_name)
    _check(experiment, scale_name, part, overrides)
    trials = []
    for column, row in ((column, row) for column in experiment.column for row in experiment.row):
        point = column.settings(scale_name)
        if point is None or row.name not in column.rows.get(scale_name, [row.name]):
            continue
        if not _wanted(part.columns, column.name):
            continue
        chosen = {**scale.settings, **point, **row.settings, **overrides}
        if not _wanted(part.methods, chosen["method.name"]) or not _wanted(part.datasets, chosen["data.name"]):
            continue
        for seed in part.seeds or column.seeds.get(scale_name) or row.seeds.get(scale_name, scale.seeds):
            settings = resolve(None, {**chosen, "seed": seed})
            if experiment.is_measured and not settings.measure.collapse:
                raise UserError("this experiment shows what measure.collapse measures; leave it on")
            names = (("method", row.name), ("setting", column.name))
            trials.append(Trial(row.name, column.name, PlannedRun(names, settings, out / "runs" / run_name(settings))))
    if not any(column.settings(scale_name) for column in experiment.column):
        raise UserError(f"there is nothing of this experiment at scale {scale_name}; choose another --scale")
    if experiment.row and not trials:
        raise UserError(
            f"--columns, --dataset, --methods and --seeds leave nothing of this experiment at scale {scale_name}"
        )
    return trials


def _check(experiment: Experiment, scale: ScaleName, part: Part, overrides: Mapping[str, Any]) -> None:
    """Refuse what would leave the names of rows and columns standing over other runs."""
    own = {key for row in experiment.row for key in row.settings} | {"seed"}
    own |= {key for column in experiment.column for key in column.settings(scale) or {}}
    for key in overrides:
        if key in own:
            raise UserError(f"{key} is set by the experiment itself; choose a part of it with {', '.join(part.flags)}")
    if not experiment.row:
        return  # it has no runs to choose from
    known = {row.settings["method.name"] for row in experiment.row}
    for method in part.methods:
        if method not in known:
            raise unknown("method of this experiment", method, sorted(known))
    planned = [settings for column in experiment.column if (settings := column.settings(scale)) is not None]
    everywhere = load_scale(scale).settings
    datasets = {{**everywhere, **settings}["data.name"] for settings in planned}
    for dataset in part.datasets:
        if dataset not in datasets:
            raise unknown(f"dataset of this experiment at scale {scale}", dataset, sorted(datasets))
    for column in part.columns:
        if column not in (known_columns := [each.name for each in experiment.column]):
            raise unknown("column of this experiment", column, known_columns)
    for flag, values in part.flags.items():
        if len(set(values)) < len(values):
            raise UserError(f"{flag} takes different values")


def _wanted(chosen: Sequence[str], name: str) -> bool:
    return not chosen or name in chosen


def run_name(settings: Settings) -> str:
    """A folder's name for a run: the same for all settings that decide what comes out of it."""
    return file_name(f"{settings.data.name}-{settings.method.name}-{digest(settings)}-s{settings.seed}")
