"""What is tuned, and over which values: the defaults of every method, or a file of the user's own."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from fedetf.errors import UserError
from fedetf.files import read_toml
from fedetf.methods import Method
from fedetf.ranges import Choice, Range
from fedetf.runs.identity import is_choice

Space = dict[str, Range | Choice]  # by dotted key

SPAN = 10  # without a range of its own, a setting is tried from its default divided by this to its default times this
LARGEST = 1e300  # of the ends of a range; a file may name whole numbers that are no floats
RANGE_KEYS = frozenset({"low", "high", "log"})


def default_space(method: type[Method], lr: float) -> Space:
    """The learning rate around ``lr`` × the method's ``suggested_rate``, and every number of the method's own.

    A field that declares no :class:`fedetf.ranges.Range` is tried around its default, within its bounds. One whose
    default is left to be derived from other things (FedETF's ``dim``) is not tuned.

    >>> from fedetf.methods import METHODS
    >>> default_space(METHODS["fedprox"], 0.04)
    {'train.lr': 0.004 to 0.4, logarithmic, 'method.mu': 0.0001 to 1, logarithmic}
    """
    if not lr:
        raise UserError("train.lr = 0 has no range around it; give another, or --space FILE.toml")
    ranges = {f"method.{name}": range_of(field) for name, field in method.model_fields.items()}
    own = {key: interval for key, interval in ranges.items() if interval is not None}
    return {"train.lr": _around(lr * method.suggested_rate), **own}


def range_of(field: FieldInfo) -> Range | None:
    """The range of a method's field; None if it is no number, or has no number as its default."""
    declared = [each for each in field.metadata if isinstance(each, Range)]
    default = field.default
    if declared or isinstance(default, bool) or not isinstance(default, int | float):
        return declared[0] if declared else None
    low = max([getattr(each, name) for each in field.metadata for name in ("ge", "gt") if hasattr(each, name)] or [0])
    high = min(
        [getattr(each, name) for each in field.metadata for name in ("le", "lt") if hasattr(each, name)] or [math.inf]
    )
    if high <= 1:  # a share of something, of which the ends are often not allowed, or another method
        return Range(min(0.05, default), max(0.95, default), log=False)
    if default <= 0:
        return None
    around = _around(default)
    if isinstance(default, int):
        return Range(max(1, low, math.ceil(around.low)), min(high, default * SPAN))
    return Range(max(low, around.low), min(high, around.high))


def _around(value: float) -> Range:
    return Range(float(f"{value / SPAN:.6g}"), float(f"{value * SPAN:.6g}"))


def read_space(path: Path) -> dict[str | None, Space]:
    """A file of ranges: tables for all methods under None, and ``[methods.NAME.SECTION]`` for single ones.

    A value is ``{low = 0.001, high = 0.1}`` or a list of values to choose from.
    """
    if not path.is_file():
        raise UserError(f"no file {str(path)!r} of ranges; check --space")
    tree = read_toml(path, links=True)
    tables = tree.pop("methods", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UserError(f"{path}: methods takes a table for each method, such as [methods.fedprox.method]")
    spaces: dict[str | None, Space] = {None: _space(tree, str(path))}
    return spaces | {name: _space(table, str(path)) for name, table in tables.items()}


def _space(tree: Mapping[str, Any], where: str) -> Space:
    space: Space = {}
    for section, table in tree.items():
        if not isinstance(table, Mapping):
            raise UserError(
                f"{where}: {section} is not a section; write for example [train] and lr = [0.01, 0.1] below it"
            )
        for name, value in table.items():
            key = f"{section}.{name}"
            if not is_choice(key) or section == "personal":
                raise UserError(
                    f"{where}: {key} is the same in all trials; tune method.*, server.*, or train.* but for its budget"
                )
            space[key] = _values(value, f"{where}: {key}")
    return space


def _values(value: Any, where: str) -> Range | Choice:
    if isinstance(value, list) and value and all(isinstance(each, int | float | str) for each in value):
        return Choice(tuple(value))
    if isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= RANGE_KEYS:
        low, high, log = value["low"], value["high"], value.get("log", True)
        numbers = all(isinstance(each, int | float) and abs(each) < LARGEST for each in (low, high))
        if numbers and low < high and isinstance(log, bool) and (low > 0 or not log):
            return Range(low, high, log)
    raise UserError(f"{where} takes a list of values, or {{low = …, high = …}} with 0 < low < high (or log = false)")
