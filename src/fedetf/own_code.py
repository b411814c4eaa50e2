"""The user's own code, named in the settings: ``FILE.py:NAME``, or ``package.module:NAME`` of what can be imported.

What the user types is consent to run it. What a file names is not: settings that come from a file are refused with
the question of :class:`Origin`, see ``settings.Settings``.
"""

import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle

from fedetf.errors import UserError
from fedetf.redact import HIDDEN, redacted

R = TypeVar("R")


def is_own(name: str) -> bool:
    """Whether a name says where code of the user's own is."""
    return ":" in name


def is_own_dataset(name: str) -> bool:
    """The same of a dataset, whose name may also be a path with a colon in it: a folder that exists is data, not code.

    >>> is_own_dataset("mine.py:load"), is_own_dataset("package.module:load"), is_own_dataset("/data/12:30/images")
    (True, True, False)
    """
    place, _, attribute = name.rpartition(":")
    is_code = attribute.isidentifier() and (place.endswith(".py") or _is_module(place))
    return is_code and not Path(name).is_dir()


# The settings that can bring code, and when the value of one does; a list may hold several names.
_BRINGS_CODE: dict[str, Callable[[str], bool]] = {
    "method.name": is_own,
    "model.name": is_own,
    "data.name": is_own_dataset,
    "data.partition": is_own,
    "measure.metrics": is_own,
    "update.transform": is_own,
}
CODE = frozenset({*_BRINGS_CODE, "engine.address"})


def asks_for_code(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings by dotted key, those that bring code: names of it, and a Ray cluster, which sends pickles.

    >>> asks_for_code({"method.name": "mine.py:Mine", "model.name": "cnn"})
    {'method.name': 'mine.py:Mine'}
    """
    asked = {key: values[key] for key, is_code in _BRINGS_CODE.items() if any(map(is_code, _names(values.get(key))))}
    address = values.get("engine.address")
    local = address in (None, "auto", "local") or HIDDEN in str(address)  # without its password it is not connected to
    return asked if local or values.get("engine.name") != "ray" else {**asked, "engine.address": address}


def _names(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else [str(value)]


@dataclass(frozen=True)
class Origin:
    """Where settings come from, and which of them may bring code."""

    where: str = "the settings"
    trusted: Collection[str] = ()

    def question(self, asked: Mapping[str, Any]) -> str:
        """What would have run, and how to agree to it."""
        names = redacted(", ".join(f"{key} = {name!r}" for key, name in asked.items()))
        how = "--trust-code, in Python by trust_code=True, on Flower by trust-code=true"
        return f"{self.where} would run code that is not part of fedetf: {names}; if you trust it, say so by {how}"


@cache  # one version of the code for a whole comparison
def load_own(name: str, kind: str, setting: str) -> Any:
    """What ``FILE.py:NAME`` or ``package.module:NAME`` names, a ``kind`` that is chosen by ``setting``."""
    place, _, attribute = name.rpartition(":")
    module = _from_file(Path(place), attribute, kind, setting) if place.endswith(".py") else _imported(place, setting)
    if not hasattr(module, attribute):
        raise UserError(f"there is no {attribute!r} in {place}; check {setting} {name}")
    return getattr(module, attribute)


def source_file(name: str) -> Path | None:
    """The file that holds the code, if it is one."""
    place, _, _ = name.rpartition(":")
    if place.endswith(".py"):
        return Path(place)
    _import_from_here()
    try:
        spec = find_spec(place)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def guarded(call: Callable[[], R], failure: str) -> R:
    """``call()``; whatever the user's code raises comes out as one line that begins with ``failure``."""
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UserError(f"{failure}: {reason}") from error


def place_in_own_code(error: BaseException) -> str:
    """`` (FILE.py, line N)``, the last place that an error went through outside of installed packages; else nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = str(Path(__file__).parent), "<frozen", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(inside)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _from_file(path: Path, attribute: str, kind: str, setting: str) -> ModuleType:
    if not path.is_file():
        raise UserError(f"no file {str(path)!r} to take the {kind} {attribute!r} from; check {setting} FILE.py:NAME")
    spec = spec_from_file_location(f"fedetf_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{str(path)!r} is not a Python file; give {setting} FILE.py:NAME")
    module = sys.modules[spec.name] = module_from_spec(spec)  # known by name, so that its classes can be pickled
    cloudpickle.register_pickle_by_value(module)  # a worker gets the code itself: it could not import the file
    loader = spec.loader
    guarded(lambda: loader.exec_module(module), f"{path} cannot be imported")
    return module


def _imported(place: str, setting: str) -> ModuleType:
    if not _is_module(place):
        raise UserError(f"{place!r} is neither a file FILE.py nor a module; check {setting} package.module:NAME")
    _import_from_here()
    return guarded(lambda: import_module(place), f"{place} cannot be imported")


def _is_module(place: str) -> bool:
    return all(part.isidentifier() for part in place.split("."))


def _import_from_here() -> None:
    """Let modules of the current folder be found, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
