"""Settings from their layers: defaults < the dataset's own < a preset or file < flags and ``--set``.

A file may have tables for single methods, ``[methods.fedavg.train]``, which count above the rest of it. What comes out
is complete, and can be written as TOML and read again. The sections themselves are in ``settings.py``.
"""

import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from fedetf.errors import UserError, unknown
from fedetf.files import packaged, read_toml
from fedetf.own_code import CODE, Origin
from fedetf.redact import HIDDEN
from fedetf.settings import DataSettings, MethodSettings, Settings, Tree, flat

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, before it moved here
    import tomli as tomllib

PRESETS = ("presets",)  # folders of the package: what a user may name instead of a file,
KNOWN = ("data", "known")  # and what the runs on a dataset have by default

OWN_SECTIONS = (
    "train",
    "method",
    "personal",
    "server",
    "update",
)  # what one method of a comparison may have for itself

# How the authors' code trains, where it departs from the paper's text; what it does to methods is methods/authors.py.
AUTHORS: Tree = {"train": {"lr_decay": 1.0, "keep_momentum": True}}

# The short names that flags and keyword arguments have for the commonest settings.
SHORT = {
    "method": "method.name",
    "dataset": "data.name",
    "model": "model.name",
    "clients": "data.clients",
    "alpha": "data.alpha",
    "site_column": "data.site_column",
    "participation": "train.participation",
    "rounds": "train.rounds",
    "epochs": "train.epochs",
    "seed": "seed",
    "engine": "engine.name",
    "workers": "engine.workers",
    "device": "engine.device",
    "compile": "engine.compile",
}


def resolve(
    source: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    trust_code: bool = False,
    unused: Collection[str] = (),
) -> Settings:
    """Put the layers together and check them.

    ``source`` is a preset's name or a TOML file; ``overrides`` maps dotted keys (``"train.lr"``) to values, which the
    user gave. Code that the file asks for is refused without ``trust_code``, but for the keys that are ``unused``.
    """
    given = _nest(overrides or {})
    tree = _read_source(source) if source else {}
    tables = _method_tables(tree)
    name = _find(given, "method", "name") or _find(tree, "method", "name") or MethodSettings().name
    chosen = _merge(_merge(tree, tables.get(str(name), {})), given)
    dataset = _find(chosen, "data", "name") or DataSettings().name
    below = _dataset_defaults(dataset)
    if chosen.get("fidelity") == "authors":
        below = _merge(below, AUTHORS)
    return stored_settings(_merge(below, chosen), source or "the settings", trust_code, {*unused, *(overrides or {})})


def method_tables(source: str | None) -> dict[str, Tree]:
    """What ``[methods.NAME.SECTION]`` in a preset or file says for the runs of one method, by name and dotted key."""
    tables = _method_tables(_read_source(source)) if source else {}
    return {name: flat(tree) for name, tree in tables.items()}


def check_own(method: str, keys: Collection[str]) -> None:
    """Refuse settings for one method of what all methods of a comparison share."""
    for key in keys:
        if key.partition(".")[0] not in OWN_SECTIONS or key == "method.name":
            sections = ", ".join(f"{section}.*" for section in OWN_SECTIONS)
            raise UserError(f"{method}: {key} is the same for all methods; a method may have its own {sections}")


def _method_tables(tree: Tree) -> dict[str, Tree]:
    """Take the tables of single methods out of a file's settings."""
    tables = tree.pop("methods", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UserError("methods takes a table for each method, such as [methods.fedavg.train]")
    for name, table in tables.items():
        check_own(name, flat(table))
    return tables


def stored_settings(tree: Tree, where: str, trust_code: bool, unused: Collection[str]) -> Settings:
    """Settings that a file holds, checked; the last two as for :func:`resolve`."""
    return validated(Settings, tree, context=Origin(where, CODE if trust_code else unused))


def complete(address: str, key: str) -> str:
    """An address of the settings, to connect to; a file holds it without its password."""
    if HIDDEN in address:
        raise UserError(
            f"{address} is on file without its password; give it again: --set {key}=..., see docs/engines.md"
        )
    return address


Model = type[BaseModel]
M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], tree: Mapping[str, Any], where: str = "", context: Any = None) -> M:
    """``model(**tree)``, with what is wrong said in one line."""
    try:
        return model.model_validate(dict(tree), context=context)
    except ValidationError as error:
        raise UserError("; ".join(_explain(model, dict(e), where) for e in error.errors())) from None


def from_short(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys for short names; what is None was not given."""
    for name in flags:
        if name not in SHORT:
            raise UserError(f"unknown setting {name!r}; choose from {', '.join(SHORT)}, or use settings={{...}}")
    given = {name: value for name, value in flags.items() if value is not None}
    for name in ("clients", "alpha"):
        if "site_column" in given and name in given:
            raise UserError(f"every site of the column {given['site_column']!r} is a client; leave out {name}")
    return {SHORT[name]: value for name, value in given.items()}


def parse_assignment(text: str) -> tuple[str, Any]:
    """Split ``key.path=value``; the value is read as TOML where it can be, as a string elsewhere."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set takes key.path=value, not {text!r}; for example --set train.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        raise UserError(f"--set {key.strip()}: the value is not a setting; see: fedetf list settings") from None


def to_toml(value: Any) -> str:
    """A value as :func:`parse_assignment` reads it; TOML has no word for None, and a string will do.

    >>> to_toml("fedavg"), to_toml([0.1, 0.5]), to_toml(True)
    ('"fedavg"', '[0.1, 0.5]', 'true')
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    try:
        return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
    except TypeError:
        return str(value)


def preset_names() -> list[str]:
    """What can be named instead of a file: the presets that ship with the package, and the known datasets."""
    return sorted([*_packaged_names(*PRESETS), *known_datasets()])


def known_datasets() -> list[str]:
    """The datasets whose runs have defaults of their own."""
    return _packaged_names(*KNOWN)


def preset_description(name: str) -> str:
    """The first line of a preset, a comment that says what it is."""
    return _preset_text(name).splitlines()[0].lstrip("# ")


def _preset_text(name: str) -> str:
    return packaged(*(KNOWN if name in known_datasets() else PRESETS), f"{name}.toml")


def _read_preset(name: str) -> Tree:
    """Its settings; those of a known dataset are its defaults, and its name."""
    tree = tomllib.loads(_preset_text(name))
    return _merge(tree, {"data": {"name": name}}) if name in known_datasets() else tree


def _packaged_names(*folders: str) -> list[str]:
    """The names of the TOML files in a folder of the package."""
    files = resources.files("fedetf").joinpath(*folders).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _read_source(source: str) -> Tree:
    if source in preset_names():
        return _read_preset(source)
    path = Path(source)
    if not path.exists():
        if path.suffix == ".toml":
            raise UserError(f"no settings file {source!r}; check the path, or see: fedetf list presets")
        raise unknown("preset", source, preset_names())
    return read_toml(path, links=True)  # what a user names, or the settings of a run


def _dataset_defaults(dataset: Any) -> Tree:
    """Those of the known dataset of that name, or of the part before a dash: tiny-imagenet-subset -> tiny-imagenet."""
    if not isinstance(dataset, str):
        return {}  # said later, by the check of all settings
    fits = [name for name in known_datasets() if dataset == name or dataset.startswith(f"{name}-")]
    return tomllib.loads(_preset_text(max(fits, key=len))) if fits else {}


def _nest(flat: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for key, value in flat.items():
        if isinstance(value, Mapping):
            raise UserError(f"{key!r} is a section; give its settings by dotted keys, such as {key}.NAME")
        *path, last = key.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise UserError(f"{key!r} sets something inside {part!r}, which is a value")
        branch[last] = value
    return tree


def _merge(below: Tree, above: Mapping[str, Any]) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _find(tree: Any, *path: str) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _explain(model: Model, error: Mapping[str, Any], where: str) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join([where, *path] if where else path)
    if not path or error["type"] in ("consent", "unwritable"):  # of several settings together; the text names them
        return str(error["msg"])
    if error["type"] == "extra_forbidden":
        return f"unknown setting {key!r}; {_known_keys(model, path, where)}"
    return f"{key}: {error['msg'][0].lower()}{error['msg'][1:]} (got {error['input']!r})"


def _known_keys(model: Model, path: Sequence[str], where: str) -> str:
    *parents, last = path
    for part in parents:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return "see: fedetf list settings"
        model = annotation
    names = sorted(model.model_fields)
    close = difflib.get_close_matches(last, names, n=1)
    section = ".".join([where, *parents] if where else parents)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}{f'{section} has' if section else 'there are'}: {', '.join(names) or 'no settings of its own'}"


def describe_settings(model: Model = Settings, prefix: str = "") -> list[tuple[str, str, str]]:
    """Every setting as (dotted key, default, what it is)."""
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            rows += describe_settings(type(default), f"{prefix}{name}.")
        else:
            rows.append((prefix + name, "" if default is None else to_toml(default), field.description or ""))
    return rows
