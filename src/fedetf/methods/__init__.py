"""The methods, one file each."""

from collections.abc import Mapping
from typing import Any

from fedetf.config import validated
from fedetf.errors import unknown
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

__all__ = ["METHODS", "Method", "Scope", "Server", "Upload", "make_method"]


def make_method(section: Mapping[str, Any]) -> Method:
    """The method that a ``method.*`` section of the settings describes."""
    numbers = dict(section)
    name = numbers.pop("name")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return validated(METHODS[name], numbers, "method")
