"""The methods, one file each."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from fedetf.config import validated
from fedetf.errors import UserError, unknown
from fedetf.forms import LikeParameters, Rows, Vector
from fedetf.methods.authors import AUTHORS
from fedetf.methods.base import Method, Scope, check_private
from fedetf.methods.ccvr import CCVR
from fedetf.methods.ditto import Ditto
from fedetf.methods.fedavg import FedAvg
from fedetf.methods.feddyn import FedDyn
from fedetf.methods.fedetf import FedETF
from fedetf.methods.fedfa import FedFA
from fedetf.methods.fedfm import FedFM
from fedetf.methods.fednh import FedNH
from fedetf.methods.fednova import FedNova
from fedetf.methods.fedproto import FedProto
from fedetf.methods.fedprox import FedProx
from fedetf.methods.fedpvr import FedPVR
from fedetf.methods.fedrep import FedRep
from fedetf.methods.fedrod import FedRoD
from fedetf.methods.moon import MOON
from fedetf.methods.scaffold import SCAFFOLD
from fedetf.own_code import is_own, load_own, loaded
from fedetf.server import Server, Upload

_ALL = (
    *(FedAvg, FedNova),
    *(FedProx,),
    *(FedDyn, SCAFFOLD, FedPVR),
    *(Ditto, FedRep),
    *(FedRoD, CCVR),
    *(FedProto, FedNH),
    *(MOON, FedFM, FedFA),
    *(FedETF,),
)
METHODS: dict[str, type[Method]] = {method.name: method for method in _ALL}

__all__ = [
    "METHODS",
    "LikeParameters",
    "Method",
    "Rows",
    "Scope",
    "Server",
    "Upload",
    "Vector",
    "check_private",
    "find_method",
    "is_method",
    "make_method",
]


def make_method(section: Mapping[str, Any], fidelity: str = "paper", own: type[Method] | None = None) -> Method:
    """The method that a ``method.*`` section of the settings describes; ``own`` is its class if it is at hand."""
    numbers = dict(section)
    name = numbers.pop("name")
    found = own or find_method(name)
    if fidelity == "authors" and found is METHODS.get(name):
        found = AUTHORS.get(name, found)
    return validated(found, numbers, "method")


def find_method(name: str) -> type[Method]:
    """A method's class: one of the ten, one of an installed package, or ``path/to/file.py:Name`` of your own."""
    if name in METHODS:
        return METHODS[name]
    if is_own(name):
        return _checked(load_own(name, "method"), name)
    for entry in entry_points(group="fedetf.methods"):
        if entry.name == name:
            return _checked(loaded(entry.load, name), name)
    raise unknown("method", name, METHODS, "FILE.py:NAME of your own")


def is_method(name: str) -> bool:
    """Whether :func:`find_method` knows where to look for a name."""
    return name in METHODS or is_own(name) or any(entry.name == name for entry in entry_points(group="fedetf.methods"))


def _checked(found: Any, name: str) -> type[Method]:
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{name} is not a subclass of fedetf.Method")
    return found
