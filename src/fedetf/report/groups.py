"""Sorts runs into methods × settings, with the seeds of each pair together, and names what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedetf.comparison.ranking import Spread
from fedetf.methods import METHODS
from fedetf.redact import bare, redacted
from fedetf.runs.identity import decides_numbers, is_methods_own
from fedetf.runs.read import Problem, Run, by_seed
from fedetf.settings import PersonalSettings


@dataclass(frozen=True)
class Group:
    """One method in one setting: a run for each seed."""

    variant: str
    setting: str
    runs: list[Run]

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return [run.seed for run in self.runs]

    def scores(self, metric: str) -> dict[int, float]:
        """General or personal accuracy by seed, where there is one."""
        return by_seed(self.runs, metric)

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation over its seeds."""
        return Spread.of(self.scores(metric).values())


@dataclass(frozen=True)
class Arrangement:
    """The runs of a page: groups by variant of a method and by setting."""

    variants: list[str]
    settings: list[str]  # one empty name if there is only one
    groups: list[Group]
    axes: list[str]  # the dotted keys that tell settings apart
    common: dict[str, Any]  # what all runs share
    doubles: list[Problem] = field(default_factory=list)

    def get(self, variant: str, setting: str) -> Group | None:
        """The group of a pair, if there are runs of it."""
        return next((g for g in self.groups if (g.variant, g.setting) == (variant, setting)), None)


def arrange(runs: Sequence[Run]) -> Arrangement:
    """Methods × settings; a run that is there twice is taken once."""
    runs, doubles = _without_doubles(runs)
    differing = _differing([run.settings for run in runs])
    own = [key for key in differing if is_methods_own(key)]
    runs = sorted(runs, key=lambda run: (_rank(run), [_own_place(run, key) for key in own], run.seed))
    axes = [key for key in differing if key not in own]
    settings = _names_of_settings(runs, axes)
    variants = _names_of_variants(runs, settings)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run, variant, setting in zip(runs, variants, settings, strict=True):
        groups.setdefault((variant, setting), []).append(run)
    ordered = sorted(zip(runs, settings, strict=True), key=lambda pair: [_sortable(pair[0].settings, k) for k in axes])
    common = {k: v for k, v in runs[0].settings.items() if all(_same(r.settings, k, v) for r in runs)}
    return Arrangement(
        variants=list(dict.fromkeys(variants)),
        settings=list(dict.fromkeys(name for _, name in ordered)),
        groups=[Group(*names, members) for names, members in groups.items()],
        axes=axes,
        common=common,
        doubles=doubles,
    )


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
        kept = first.setdefault(repr([run.seed, *sorted(decisive.items())]), run)
        if kept is not run:
            doubles.append(Problem(run.folder, f"has the settings and seed of {kept.folder}, which is shown"))
    return list(first.values()), doubles


def _tells_apart(key: str) -> bool:
    """Whether runs that differ in it do not belong together; runs of other seeds do."""
    return decides_numbers(key) and key != "seed"


def _rank(run: Run) -> int:
    """The order of the paper's tables; a user's own methods come last."""
    name = run.settings["method.name"]
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


def _names_of_variants(runs: Sequence[Run], settings: Sequence[str]) -> list[str]:
    """The method, and those of its own numbers that differ between its runs in one setting and from the default."""
    methods = [run.settings["method.name"] for run in runs]
    told_apart: dict[str, list[str]] = {}
    for method, setting in dict.fromkeys(zip(methods, settings, strict=True)):
        rivals = [r for r, m, s in zip(runs, methods, settings, strict=True) if (m, s) == (method, setting)]
        keys = [key for key in _differing([r.settings for r in rivals]) if is_methods_own(key)]
        told_apart[method] = list(dict.fromkeys([*told_apart.get(method, []), *keys]))
    short = {method: method_name(method) for method in methods}
    names = []
    for run, method in zip(runs, methods, strict=True):
        name = short[method] if list(short.values()).count(short[method]) == 1 else show(method)
        chosen = [key for key in told_apart[method] if not _same(run.settings, key, _default(method, key))]
        own = ", ".join(f"{k.removeprefix('method.')} = {show(run.settings.get(k))}" for k in chosen)
        names.append(f"{name} ({own})" if own else name)
    return names


def _default(method: str, key: str) -> Any:
    """Of a number of the method's own or of its personal stage; None if it is not known here."""
    section, _, name = key.partition(".")
    model = PersonalSettings if section == "personal" else METHODS.get(method)
    known = model.model_fields.get(name) if model else None
    return known.default if known else None
