"""The runs of a comparison: methods × seeds, and one axis more for each setting with several values."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedetf.config import resolve
from fedetf.errors import UserError
from fedetf.methods import find_method, method_of
from fedetf.runs.folder import file_name
from fedetf.runs.read import is_done
from fedetf.settings import Settings


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, or of an experiment of the paper."""

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


def plan(
    methods: Sequence[str],
    seeds: Sequence[int],
    preset: str | None,
    overrides: Mapping[str, Any],
    equal_budget: bool,
    out: Path | None,
    trust_code: bool = False,
) -> tuple[Path, list[PlannedRun]]:
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
    each = ((row, {**chosen, "seed": seed}) for row, chosen in rows.items() for seed in seeds)
    planned = [(row, resolve(preset, chosen, trust_code)) for row, chosen in each]
    if equal_budget:
        planned = _with_equal_budget(planned)
    for _, settings in planned:
        method_of(settings)
    folder = out or _default_folder([settings for _, settings in planned])
    runs = [PlannedRun(row, settings, folder / _run_name(row, settings.seed)) for row, settings in planned]
    if len({run.folder for run in runs}) < len(runs):
        raise UserError("two runs would have the same folder; their names differ in signs only")
    return folder, runs


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
        method = method_of(settings)
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


def _run_name(row: Sequence[tuple[str, str]], seed: int) -> str:
    (_, method), *others = row
    parts = [method, *(f"{key.split('.')[-1]}={value}" for key, value in others), f"s{seed}"]
    return file_name("-".join(parts).replace("/", "-"))


def _default_folder(planned: list[Settings]) -> Path:
    text = "\n".join(settings.to_toml() for settings in planned)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return Path("runs") / f"compare-{file_name(planned[0].data.name)}-{digest}"
