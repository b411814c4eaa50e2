"""What tuning chose and what it cost: a table, all trials as JSON, and a picture of accuracy over each setting."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedetf.comparison.caption import conditions
from fedetf.files import write_whole
from fedetf.ranges import Range
from fedetf.report.figures import save_figure
from fedetf.runs.records import TUNING
from fedetf.settings import LAST
from fedetf.tuning.run import Tuned, Tuning
from fedetf.tuning.trials import Trial

HEADER = ("method", "chosen", "validation (%)", "defaults (%)", "trials", "stopped early", "failed", "image passes")


def write_tuning(tuning: Tuning) -> list[Path]:
    """Write the table, the trials and the picture, and return where they are; the settings are there already."""
    folder = tuning.folder
    contents = {"tuning.md": f"{to_markdown(tuning)}\n{caption(tuning)}\n", TUNING: to_json(tuning)}
    for name, text in contents.items():
        write_whole(folder / name, text.encode())
    picture = save_figure(settings_figure(tuning.methods), folder / "settings.png")
    return [*(folder / name for name in contents), picture]


def to_markdown(tuning: Tuning) -> str:
    """What was chosen for each method, beside what its defaults reach in a trial of the same length."""
    rows = [HEADER, ["---"] * len(HEADER), *map(_row, tuning.methods)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def caption(tuning: Tuning) -> str:
    """What the trials were."""
    share, on = tuning.trial.data.validation_fraction, conditions([tuning.trial], trained=False)
    return (
        f"Trials: {on}, {tuning.trial.train.describe()}, "
        f"seed {tuning.trial.seed}. Validation is the accuracy, balanced over classes, on {share:g} of each client's "
        f"training split, which is held out, {_averaged(tuning.trial.train.rounds)}; of a method without a global "
        "model, the mean of the clients' own. Nothing was chosen on test data."
    )


def _averaged(rounds: int) -> str:
    last = min(LAST, rounds)
    return f"the mean of the last {last} rounds" if last > 1 else "after the only round"


def _row(tuned: Tuned) -> list[str]:
    trials, first = tuned.trials, tuned.trials[0]
    chosen = ", ".join(f"{_short(key)} = {_shown(value)}" for key, value in tuned.best.values.items())
    states = [sum(trial.state == state for trial in trials) for state in ("pruned", "failed")]
    defaults = _percent(first.validation if first.state == "complete" else None)
    return [
        tuned.method,
        chosen,
        _percent(tuned.best.validation),
        defaults,
        str(len(trials)),
        *map(str, states),
        f"{tuned.images:,}",
    ]


def to_json(tuning: Tuning) -> str:
    """Everything that was tried."""
    methods = [
        {
            "method": each.method,
            "name": each.name,
            "chosen": each.best.values,
            "validation": each.best.validation,
            "image_passes": each.images,
            "space": {key: repr(values) for key, values in each.space.items()},
            "trials": [vars(trial) for trial in each.trials],
        }
        for each in tuning.methods
    ]
    settings = tuning.trial
    shared = {"rounds": settings.train.rounds, "validation_fraction": settings.data.validation_fraction}
    return json.dumps({**shared, "seed": settings.seed, "methods": methods}, indent=2) + "\n"


def settings_figure(methods: Sequence[Tuned]) -> Figure:
    """Validation accuracy over each setting: a row for each method, a panel for each setting of it."""
    columns = max(len(each.space) for each in methods)
    size = (3.2 * columns + 0.6, 2.4 * len(methods) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(methods), columns, squeeze=False, sharey="row")
    for each, row in zip(methods, panels, strict=True):
        for panel in row[len(each.space) :]:
            panel.set_axis_off()
        for (key, values), panel in zip(each.space.items(), row, strict=False):
            _draw(panel, key, each.trials, each.best)
            panel.set_xlabel(_short(key))
            if isinstance(values, Range):
                _scale(panel, values)
        row[0].set_ylabel(f"{each.method}\nvalidation (%)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _scale(panel: Axes, values: Range) -> None:
    """The whole range that was tried, with its ends and its middle named."""
    middle = math.sqrt(values.low * values.high) if values.log else (values.low + values.high) / 2
    ticks = [values.low, middle, values.high]
    if values.log:
        panel.set_xscale("log")
    panel.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    panel.xaxis.set_minor_locator(NullLocator())


def _draw(panel: Axes, key: str, trials: Sequence[Trial], best: Trial) -> None:
    styles: Mapping[str, dict[str, Any]] = {
        "carried out": {"marker": "o", "color": "C0"},
        "stopped early": {"marker": "o", "facecolors": "none", "edgecolors": "C0"},
        "chosen": {"marker": "*", "s": 160, "color": "C1", "zorder": 3},
    }
    groups = {
        "carried out": [trial for trial in trials if trial.state == "complete"],
        "stopped early": [trial for trial in trials if trial.state == "pruned"],
        "chosen": [best],
    }
    for name, members in groups.items():
        points = [(t.values[key], 100 * t.validation) for t in members if key in t.values and t.validation is not None]
        panel.scatter([x for x, _ in points], [y for _, y in points], label=name, **styles[name])
    panel.grid(alpha=0.2)


def _short(key: str) -> str:
    return key.removeprefix("method.").removeprefix("train.")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
