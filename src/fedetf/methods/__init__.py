"""The methods, one file each."""

from collections.abc import Mapping
from typing import Any

from fedetf.config import validated
from fedetf.errors import unknown
from fedetf.methods.base import Method, Scope, Server, Upload
from fedetf.methods.fedavg import FedAvg
from fedetf.methods.fedetf import FedETF

METHODS: dict[str, type[Method]] = {method.name: method for method in (FedAvg, FedETF)}

__all__ = ["METHODS", "FedAvg", "FedETF", "Method", "Scope", "Server", "Upload", "make_method"]


def make_method(section: Mapping[str, Any]) -> Method:
    """The method that a ``method.*`` section of the settings describes."""
    numbers = dict(section)
    name = numbers.pop("name")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return validated(METHODS[name], numbers, "method")
