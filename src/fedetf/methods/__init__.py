"""The methods, one file each."""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import cloudpickle

from fedetf.config import validated
from fedetf.errors import UserError, unknown
from fedetf.methods.authors import AUTHORS
from fedetf.methods.base import Method, Scope, Server, Upload
from fedetf.methods.ccvr import CCVR
from fedetf.methods.ditto import Ditto
from fedetf.methods.fedavg import FedAvg
from fedetf.methods.feddyn import FedDyn
from fedetf.methods.fedetf import FedETF
from fedetf.methods.fednh import FedNH
from fedetf.methods.fedproto import FedProto
from fedetf.methods.fedprox import FedProx
from fedetf.methods.fedrep import FedRep
from fedetf.methods.fedrod import FedRoD

_ALL = (FedAvg, FedProx, FedDyn, Ditto, FedRep, FedRoD, CCVR, FedProto, FedNH, FedETF)
METHODS: dict[str, type[Method]] = {method.name: method for method in _ALL}

__all__ = ["METHODS", "Method", "Scope", "Server", "Upload", "find_method", "is_method", "make_method"]


def make_method(section: Mapping[str, Any], fidelity: str = "paper", own: type[Method] | None = None) -> Method:
    """The method that a ``method.*`` section of the settings describes; ``own`` is its class if it is at hand."""
    numbers = dict(section)
    name = numbers.pop("name")
    found = own or find_method(name)
    if fidelity == "authors" and found is METHODS.get(name):
        found = AUTHORS.get(name, found)
    return validated(found, numbers, "method")


def find_method(name: str) -> type[Method]:
    """A method's class: one of the ten, one of an installed package, or ``path/to/file.py:Name``."""
    if name in METHODS:
        return METHODS[name]
    path, colon, attribute = name.rpartition(":")
    if colon:
        return _from_file(Path(path), attribute)
    for entry in entry_points(group="fedetf.methods"):
        if entry.name == name:
            return _checked(_loaded(entry.load, name), name)
    raise unknown("method", name, METHODS, "FILE.py:NAME of your own")


def is_method(name: str) -> bool:
    """Whether :func:`find_method` knows where to look for a name."""
    return name in METHODS or ":" in name or any(entry.name == name for entry in entry_points(group="fedetf.methods"))


@cache  # one version of the code for a whole comparison
def _from_file(path: Path, attribute: str) -> type[Method]:
    if not path.is_file():
        raise UserError(f"no file {str(path)!r} to take the method {attribute!r} from; check --method FILE.py:NAME")
    spec = spec_from_file_location(f"fedetf_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{str(path)!r} is not a Python file; give --method FILE.py:NAME")
    module = sys.modules[spec.name] = module_from_spec(spec)  # known by name, so that its classes can be pickled
    cloudpickle.register_pickle_by_value(module)  # a worker gets the code itself: it could not import the file
    loader = spec.loader
    _loaded(lambda: loader.exec_module(module), str(path))
    if not hasattr(module, attribute):
        raise UserError(f"there is no {attribute!r} in {path}; check --method FILE.py:NAME")
    return _checked(getattr(module, attribute), f"{path}:{attribute}")


def _loaded(load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # whatever a user's code can raise
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UserError(f"{what} cannot be imported: {reason}") from error


def _checked(found: Any, name: str) -> type[Method]:
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{name} is not a subclass of fedetf.Method")
    return found
