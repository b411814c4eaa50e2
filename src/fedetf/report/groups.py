"""Sorts runs into methods × settings, with the seeds of each pair together, and names what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedetf.comparison.judged import Judged
from fedetf.comparison.metric import ACCURACY, find_quantity
from fedetf.comparison.references import is_reference
from fedetf.errors import UserError
from fedetf.methods import METHODS
from fedetf.redact import bare, redacted
from fedetf.runs.identity import decides_numbers, is_choice, is_methods_own
from fedetf.runs.read import SCORES, Problem, Run, scores_by_seed
from fedetf.settings import PersonalSettings


@dataclass(frozen=True)
class Group:
    """One method in one setting: a run for each seed."""

    variant: str
    setting: str
    runs: list[Run]
    metric: str = ACCURACY.name

    @property
    def done(self) -> bool:
        """Whether its runs are; one that goes on is a group by itself."""
        return all(run.done for run in self.runs)

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return [run.seed for run in self.runs]

    @property
    def name(self) -> str:
        """What it is called among its rivals."""
        return self.variant

    @property
    def method(self) -> str:
        """The method, whatever its numbers are."""
        return method_name(str(self.runs[0].settings["method.name"]))

    @property
    def names(self) -> list[str]:
        """What it can be called by."""
        return [self.variant, str(self.runs[0].settings["method.name"]), self.method]

    def on_seeds(self, seeds: Sequence[int]) -> "Group":
        """The same, over the runs of some seeds; all of them if it has none of these."""
        kept = [run for run in self.runs if run.seed in seeds]
        return replace(self, runs=kept) if kept else self

    @property
    def reference(self) -> bool:
        """Whether it is there to compare with, and no rival."""
        return is_reference(str(self.runs[0].settings["method.name"]))

    @cached_property
    def scores(self) -> dict[str, dict[int, float]]:
        """Its values by seed, in each column."""
        return {which: scores_by_seed(self.runs, which, self.metric) for which in SCORES}


@dataclass(frozen=True)
class Judging:
    """What a page's tables are judged by."""

    metric: str = ACCURACY.name
    against: str | None = None  # the method that others are compared with; None: FedETF, or the first

    def of(self, groups: list[Group]) -> Judged[Group]:
        """The groups, judged."""
        quantity = find_quantity(self.metric)[1]
        if groups and not any(by_seed for group in groups for by_seed in group.scores.values()):
            raise UserError(
                f"no run here has recorded {self.metric}; repeat them with --set measure.metrics={self.metric}"
            )
        names = {name.lower() for group in groups if not group.reference for name in group.names}
        if groups and self.against is not None and self.against.lower() not in names:
            choice = ", ".join(dict.fromkeys(group.name for group in groups if not group.reference))
            raise UserError(f"--against {self.against} is not one of the methods here; choose from {choice}")
        return Judged(groups, quantity, self.against)


BY_ACCURACY = Judging()


@dataclass(frozen=True)
class Arrangement:
    """The runs of a page: groups by variant of a method and by setting."""

    variants: list[str]
    settings: list[str]  # one empty name if there is only one
    groups: list[Group]
    axes: list[str]  # the dotted keys that tell settings apart
    common: dict[str, Any]  # what all runs share
    doubles: list[Problem] = field(default_factory=list)
    judging: Judging = BY_ACCURACY

    @cached_property
    def judged(self) -> Judged[Group]:
        """How the groups stand; all of them are done."""
        return self.judging.of(self.groups)

    @property
    def finished(self) -> "Arrangement":
        """What is done: the numbers that can be compared."""
        groups = [group for group in self.groups if group.done]
        variants = [name for name in self.variants if any(group.variant == name for group in groups)]
        settings = [name for name in self.settings if any(group.setting == name for group in groups)]
        return replace(self, variants=variants, settings=settings, groups=groups)

    def get(self, variant: str, setting: str) -> Group | None:
        """The group of a pair, if there are runs of it."""
        return next((g for g in self.groups if (g.variant, g.setting) == (variant, setting)), None)


def arrange(runs: Sequence[Run], judging: Judging = BY_ACCURACY) -> Arrangement:
    """Methods × settings; a run that is there twice is taken once."""
    runs, doubles = _without_doubles(runs)
    differing = _differing([run.settings for run in runs])
    own = [key for key in differing if is_methods_own(key) or _is_single(runs, key)]
    runs = sorted(runs, key=lambda run: (_rank(run), [_own_place(run, key) for key in own], not run.done, run.seed))
    axes = [key for key in differing if key not in own]
    settings = _names_of_settings(runs, axes)
    variants = _names_of_variants(runs, settings, own)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run, variant, setting in zip(runs, variants, settings, strict=True):
        groups.setdefault((variant, setting), []).append(run)
    ordered = sorted(zip(runs, settings, strict=True), key=lambda pair: [_sortable(pair[0].settings, k) for k in axes])
    common = {k: v for k, v in runs[0].settings.items() if all(_same(r.settings, k, v) for r in runs)}
    made = [Group(*names, members, judging.metric) for names, members in groups.items()]
    return Arrangement(
        variants=list(dict.fromkeys(variants)),
        settings=list(dict.fromkeys(name for _, name in ordered)),
        groups=made,
        axes=axes,
        common=common,
        doubles=doubles,
        judging=judging,
    )


def stage(run: Run) -> str:
    """What the name of a run that is not done ends with."""
    return f" (seed {run.seed}, running)"


def show(value: Any) -> str:
    """A setting's value as text, fit to be passed on; a dash where it is left out."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else bare(redacted(str(value)))


def method_name(name: str) -> str:
    """How a method is written: FedETF for fedetf, and Name for path/to/file.py:Name."""
    return METHODS[name].__name__ if name in METHODS else name.rpartition(":")[2] or name


def _without_doubles(runs: Sequence[Run]) -> tuple[list[Run], list[Problem]]:
    """Of runs with the same numbers, that which has measured most, or the first."""
    first: dict[str, Run] = {}
    doubles = []
    for run in sorted(runs, key=lambda run: -sum(len(line.measures) for line in run.rounds)):
        decisive = {key: value for key, value in run.settings.items() if _tells_apart(key)}
        where = None if run.done else run.folder  # one that goes on is shown beside those that are done
        kept = first.setdefault(repr([where, run.seed, *sorted(decisive.items())]), run)
        if kept is not run:
            doubles.append(Problem(run.folder, f"has the settings and seed of {kept.folder}, which is shown"))
    return list(first.values()), doubles


def _tells_apart(key: str) -> bool:
    """Whether runs that differ in it do not belong together; runs of other seeds do."""
    return decides_numbers(key) and key != "seed"


def _rank(run: Run) -> int:
    """The order of the paper's tables; then a user's own methods, and the references last."""
    name = run.settings["method.name"]
    if is_reference(name):
        return len(METHODS) + 1
    return list(METHODS).index(name) if name in METHODS else len(METHODS)


def _differing(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys, in the order of the files, whose values differ and matter."""
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    first = all_settings[0]
    return [key for key in keys if _tells_apart(key) and not all(_same(s, key, first.get(key)) for s in all_settings)]


def _same(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    return repr(settings.get(key)) == repr(value)


def _sortable(settings: Mapping[str, Any], key: str) -> tuple[bool, float, str]:
    value = settings.get(key)
    number = isinstance(value, (int, float))
    return (not number, float(value) if isinstance(value, (int, float)) else 0.0, str(value))


def _own_place(run: Run, key: str) -> tuple[bool, tuple[bool, float, str]]:
    """The default comes first, then numbers in their order."""
    default = _default(run.settings["method.name"], key)
    return not _same(run.settings, key, default), _sortable(run.settings, key)


def _names_of_settings(runs: Sequence[Run], axes: Sequence[str]) -> list[str]:
    return [", ".join(_part(key, run.settings.get(key)) for key in axes) for run in runs]


def _part(key: str, value: Any) -> str:
    """One value in a name; names of datasets and models speak for themselves."""
    return show(value) if key in ("data.name", "model.name") else f"{key.rpartition('.')[2]} = {show(value)}"


def _is_single(runs: Sequence[Run], key: str) -> bool:
    """Whether a setting that can be chosen for a method was: methods differ in the values that they have of it."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(run.settings["method.name"], set()).add(repr(run.settings.get(key)))
    return is_choice(key) and any(each != next(iter(values.values())) for each in values.values())


def _names_of_variants(runs: Sequence[Run], settings: Sequence[str], own: Sequence[str]) -> list[str]:
    """The method, and those of its own numbers that differ between its runs in one setting and from the default.

    A number that was chosen for single methods is always told.
    """
    methods = [run.settings["method.name"] for run in runs]
    told_apart: dict[str, list[str]] = {}
    for method, setting in dict.fromkeys(zip(methods, settings, strict=True)):
        rivals = [r for r, m, s in zip(runs, methods, settings, strict=True) if (m, s) == (method, setting)]
        keys = [key for key in _differing([r.settings for r in rivals]) if key in own]
        keys += [key for key in own if not is_methods_own(key)]
        told_apart[method] = list(dict.fromkeys([*told_apart.get(method, []), *keys]))
    short = {method: method_name(method) for method in methods}
    names = []
    for run, method in zip(runs, methods, strict=True):
        name = short[method] if list(short.values()).count(short[method]) == 1 else show(method)
        chosen = [key for key in told_apart[method] if not _same(run.settings, key, _default(method, key))]
        shown = ", ".join(f"{_short(key)} = {show(run.settings.get(key))}" for key in chosen)
        names.append((f"{name} ({shown})" if shown else name) + ("" if run.done else stage(run)))
    return names


def _short(key: str) -> str:
    return key.removeprefix("method.").removeprefix("train.")


def _default(method: str, key: str) -> Any:
    """Of a number of the method's own or of its personal stage; None if it is not known here."""
    section, _, name = key.partition(".")
    model = PersonalSettings if section == "personal" else METHODS.get(method)
    known = model.model_fields.get(name) if model else None
    return known.default if known else None
