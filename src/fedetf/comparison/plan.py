"""The runs of a comparison: methods × seeds, and one axis more for each setting with several values."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedetf.config import check_own, method_tables, resolve
from fedetf.errors import UserError, unknown
from fedetf.methods import METHODS, Method, find_method, is_method, method_of
from fedetf.own_code import CODE
from fedetf.runs.folder import file_name
from fedetf.runs.read import is_done
from fedetf.settings import Settings, flat

Row = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, or of an experiment of the paper."""

    row: Row  # what tells the rows of the table apart: the method, and every other axis
    settings: Settings
    folder: Path
    method: type[Method] | None = None  # its class, if that cannot be found by name
    own: frozenset[str] = frozenset()  # those of the row's keys that were set for single methods

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
    methods: Sequence[str | type[Method]],
    seeds: Sequence[int],
    preset: str | None,
    overrides: Mapping[str, Any],
    equal_budget: bool,
    out: Path | None,
    trust_code: bool = False,
) -> tuple[Path, list[PlannedRun]]:
    """All runs of a comparison, checked; nothing is written. ``NAME:key`` in ``overrides`` is for one method only."""
    for name, values in (("--methods", methods), ("--seeds", seeds)):
        if not values or len(set(values)) != len(values):
            raise UserError(f"{name} takes one or more different values, separated by commas")
    for key, flag in (("seed", "--seeds"), ("method.name", "--methods")):
        if key in overrides:
            raise UserError(f"{key} is an axis of its own in a comparison; use {flag}")
    compared = candidates(methods)
    common = {key: value for key, value in overrides.items() if ":" not in key}
    own = own_settings(compared, preset, overrides)
    columns = Columns(
        axes=[key for key, value in common.items() if isinstance(value, list)],
        own=list(dict.fromkeys(key for values in own.values() for key in values if key != "method.name")),
    )
    rows: dict[Row, tuple[Candidate, dict[str, Any]]] = {}
    for point in _points(common):
        for each in compared:
            shared = {key: value for key, value in point.items() if concerns(key, each, compared)}
            for chosen in _points({**shared, **own[each.label], "method.name": each.name}):
                settings = resolve(preset, {**chosen, "seed": seeds[0]}, trust_code)
                rows.setdefault(columns.row(each, chosen, settings), (each, chosen))
    planned = [
        (row, each, resolve(preset, {**chosen, "seed": seed}, trust_code))
        for row, (each, chosen) in rows.items()
        for seed in seeds
    ]
    if equal_budget:
        planned = _with_equal_budget(planned)
    for _, each, settings in planned:
        method_of(settings, each.at_hand)
    folder = out or _default_folder([settings for _, _, settings in planned])
    runs = [
        PlannedRun(row, settings, folder / _run_name(row, settings.seed), each.at_hand, frozenset(columns.own))
        for row, each, settings in planned
    ]
    if len({run.folder for run in runs}) < len(runs):
        raise UserError("two runs would share a folder: their names differ only in punctuation")
    return folder, runs


@dataclass(frozen=True)
class Candidate:
    """One of the methods that are compared."""

    name: str  # what its settings call it
    label: str  # what tables call it: no two are called the same
    kind: type[Method]
    at_hand: type[Method] | None = None  # its class, if that was given and no name by which it can be found


def written_out(methods: Sequence[str | type[Method]]) -> list[str | type[Method]]:
    """The methods, with all of fedetf's own in place of ``all``, each once."""
    if "all" not in methods:
        return list(methods)
    return list(dict.fromkeys(each for method in methods for each in (METHODS if method == "all" else [method])))


def candidates(methods: Sequence[str | type[Method]]) -> list[Candidate]:
    """The methods by name or class, each with a label of its own; names come first in the choice of labels."""
    labels: dict[int, str] = {}
    for place, method in sorted(enumerate(methods), key=lambda pair: not isinstance(pair[1], str)):
        name = (find_method(method) if isinstance(method, str) else method).name
        taken = sum(label.partition(" (")[0] == name for label in labels.values())
        labels[place] = f"{name} ({taken + 1})" if taken else name
    return [
        Candidate(method, labels[place], find_method(method))
        if isinstance(method, str)
        else Candidate(labels[place], labels[place], method, method)
        for place, method in enumerate(methods)
    ]


def own_settings(
    compared: Sequence[Candidate], preset: str | None, overrides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What each method has for itself, by its label: the tables of a file, and above them ``NAME:key``."""
    tables = method_tables(preset)
    names = {name: each.label for each in compared for name in (each.name, each.label)}
    for name in tables:
        if name not in names and not is_method(name):
            raise unknown("method", name, names)
    own: dict[str, dict[str, Any]] = {}
    for each in compared:  # what names code stays in the file, where it needs consent
        table = tables.get(each.name, {})
        own[each.label] = {key: value for key, value in table.items() if key not in CODE}
    for key, value in overrides.items():
        name, colon, setting = key.rpartition(":")
        if not colon:
            continue
        if name not in names:
            raise UserError(f"{key}: {name!r} is not among the methods; choose from {', '.join(names)}")
        check_own(name, [setting])
        own[names[name]][setting] = value
    return own


@dataclass(frozen=True)
class Columns:
    """What tells the rows of a table apart besides the method."""

    axes: list[str]  # settings with several values, for all methods
    own: list[str]  # settings that some methods have for themselves

    def row(self, each: Candidate, chosen: Mapping[str, Any], settings: Settings) -> Row:
        """The row of a method with some chosen values; a dash where a setting does not concern it."""
        values = flat(settings.model_dump())
        known = {key: str(chosen[key]) for key in chosen}
        for key in self.own:
            known.setdefault(key, str(values[key]) if values.get(key) is not None else "-")
        keys = dict.fromkeys([*self.axes, *self.own])
        return (("method", each.label), *((key, known.get(key, "-")) for key in keys))


def _points(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of settings of which some have several values, as lists."""
    axes = {key: value for key, value in values.items() if isinstance(value, list)}
    for key, several in axes.items():
        if not several or len(set(map(str, several))) != len(several):
            raise UserError(f"{key} takes one or more different values")
    chosen = (dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values()))
    return [{**values, **point} for point in chosen]


def concerns(key: str, method: Candidate, compared: Sequence[Candidate]) -> bool:
    """Whether a common setting is for ``method``: ``method.mu`` goes only to methods that have a ``mu``."""
    section, _, name = key.partition(".")
    if section != "method":
        return True
    return name in method.kind.model_fields or not any(name in each.kind.model_fields for each in compared)


Planned = tuple[Row, Candidate, Settings]


def _with_equal_budget(planned: list[Planned]) -> list[Planned]:
    """Raise ``personal.epochs`` so that phases × epochs is the same for all: the least number that fits every one."""
    phases, wanted = [], 0.0
    for _, each, settings in planned:
        method = method_of(settings, each.at_hand)
        phases.append(method.personal_phases(settings.personal))
        if settings.personal.epochs is None and settings.train.steps is not None:
            raise UserError("--equal-budget counts epochs, and train.steps has none; set personal.epochs too")
        epochs = settings.train.epochs if settings.personal.epochs is None else settings.personal.epochs
        wanted = max(wanted, phases[-1] * epochs)
    step = math.lcm(*phases)
    budget = math.ceil(wanted / step) * step
    result = []
    for (row, each, settings), count in zip(planned, phases, strict=True):
        personal = settings.personal.model_copy(update={"epochs": budget // count})
        result.append((row, each, settings.model_copy(update={"personal": personal})))
    return result


def _run_name(row: Sequence[tuple[str, str]], seed: int) -> str:
    (_, method), *others = row
    label = method.replace(" (", "-").rstrip(")")  # a second of that name is "fedavg (2)"
    parts = [label, *(f"{key.split('.')[-1]}={value}" for key, value in others), f"s{seed}"]
    return file_name("-".join(parts).replace("/", "-"))


def _default_folder(planned: list[Settings]) -> Path:
    text = "\n".join(settings.to_toml() for settings in planned)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return Path("runs") / f"compare-{file_name(planned[0].data.name)}-{digest}"
