"""Run an experiment of the paper."""

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedetf.comparison.run import RunsProgress, first_data, run_planned
from fedetf.config import resolve
from fedetf.data import Partition, deal_out, load_dataset
from fedetf.errors import UserError
from fedetf.paper.experiment import Experiment, Part, Scale, ScaleName, Trial, load_experiment, load_scale, plan
from fedetf.paper.verdicts import Results, collect
from fedetf.runs.folder import file_name, locked
from fedetf.runs.identity import decides_folder
from fedetf.settings import Settings

LONGEST = 100  # letters of a file's name


@dataclass
class Reproduction:
    """What :func:`reproduce` returns."""

    name: str  # of the experiment
    experiment: Experiment
    scale_name: ScaleName
    scale: Scale
    folder: Path  # for its table or figure
    stem: str  # of the files in it
    settings: dict[str, list[Settings]]  # of the runs of each column, in the experiment's order
    trials: list[Trial]
    results: Results
    partitions: dict[str, Partition]  # by column, for an experiment that looks at data only
    failed: dict[str, str]  # run -> why
    command: str  # that gives it again

    @property
    def columns(self) -> list[str]:
        """Those that were planned, in the experiment's order."""
        return list(self.settings)

    def heading(self, column: str) -> str:
        """A column's name in the paper, with the data that stand in for its own at this scale."""
        return f"{column} ({self.scale.instead} instead)" if self.scale.instead else column

    def rows(self, column: str) -> list[str]:
        """Those of a column, likewise."""
        return list(dict.fromkeys(trial.row for trial in self.trials if trial.column == column))


def reproduce(
    name: str,
    scale: ScaleName = "smoke",
    part: Part | None = None,
    overrides: Mapping[str, Any] | None = None,
    out: Path | None = None,
    progress: RunsProgress | None = None,
) -> Reproduction:
    """Run what is missing of an experiment, and collect what is there.

    Parameters
    ----------
    name:
        ``table1`` to ``table5``, ``fig1`` or ``fig4`` to ``fig7``.
    scale:
        ``smoke``, ``small``, ``medium`` or ``paper``.
    part:
        What of it shall run; left out: all.
    overrides:
        Settings by dotted key that win over the experiment's.
    out:
        Where runs and results go. Experiments share their runs there, and a run that is there is not run again.
    """
    part, overrides = part or Part(), dict(overrides or {})
    experiment, size = load_experiment(name), load_scale(scale)
    elsewhere = [] if out is None else ["--out", str(out)]
    out = out or Path("runs") / f"reproduce-{scale}"
    trials = plan(experiment, scale, part, overrides, out)
    runs = list({trial.run.folder: trial.run for trial in trials}.values())
    loaded = first_data(runs)
    with locked(out):
        failed = run_planned(runs, loaded, progress or RunsProgress())
    decisive = {key: value for key, value in overrides.items() if decides_folder(key)}
    given = [*([part.name] if part.name else []), *(f"{key}={value}" for key, value in decisive.items())]
    settings: dict[str, list[Settings]] = {}
    for trial in trials:
        settings.setdefault(trial.column, []).append(trial.run.settings)
    if not experiment.row:
        settings = _looked_at(experiment, scale, size, part, overrides)
    return Reproduction(
        name,
        experiment,
        scale,
        size,
        folder=out / name,
        stem=_stem("-".join([name, *given])),
        settings=settings,
        trials=trials,
        results=collect(trials),
        partitions={} if experiment.row else {column: _partition(of) for column, (of,) in settings.items()},
        failed=failed,
        command=shlex.join(["fedetf", "reproduce", name, "--scale", scale, *_flags(part, decisive), *elsewhere]),
    )


def _looked_at(
    experiment: Experiment, scale_name: ScaleName, scale: Scale, part: Part, overrides: Mapping[str, Any]
) -> dict[str, list[Settings]]:
    """The settings of each column of an experiment that trains nothing."""
    if part.columns or part.datasets or part.methods or len(part.seeds) > 1:
        raise UserError(
            "this experiment only shows who holds what; of the flags for a part it takes --seeds, with one seed"
        )
    seed = (*part.seeds, *scale.seeds)[0]
    points = ((column.name, column.settings(scale_name)) for column in experiment.column)
    return {
        name: [resolve(None, {**scale.settings, **point, **overrides, "seed": seed})]
        for name, point in points
        if point is not None
    }


def _partition(settings: Settings) -> Partition:
    return deal_out(load_dataset(settings.data, settings.seed), settings.data, settings.seed)


def _stem(name: str) -> str:
    """A name for files; a long one is cut, and told from others by a hash."""
    short = file_name(name.replace("/", "-"))
    return short if len(short) <= LONGEST else f"{short[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _flags(part: Part, overrides: Mapping[str, Any]) -> list[str]:
    flags = part.flags.items()
    given = [word for flag, values in flags if values for word in (flag, ",".join(map(str, values)))]
    settings = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in overrides.items())
    return [*given, *(word for setting in settings for word in ("--set", setting))]
