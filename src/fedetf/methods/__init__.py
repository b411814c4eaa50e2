"""The methods, one file each."""

from collections.abc import Mapping
from typing import Any

from fedetf.config import validated
from fedetf.core.forms import LikeParameters, Rows, Vector
from fedetf.core.server import Server, Upload
from fedetf.errors import UserError
from fedetf.methods.apfl import APFL
from fedetf.methods.authors import AUTHORS
from fedetf.methods.base import Method, Scope, check_federated, check_private
from fedetf.methods.ccvr import CCVR
from fedetf.methods.ditto import Ditto
from fedetf.methods.fedala import FedALA
from fedetf.methods.fedavg import FedAvg
from fedetf.methods.fedbabu import FedBABU
from fedetf.methods.fedbn import FedBN
from fedetf.methods.feddecorr import FedDecorr
from fedetf.methods.feddrplus import FedDrPlus
from fedetf.methods.feddyn import FedDyn
from fedetf.methods.fedetf import FedETF
from fedetf.methods.fedfa import FedFA
from fedetf.methods.fedfm import FedFM
from fedetf.methods.fedgela import FedGELA
from fedetf.methods.fedlc import FedLC
from fedetf.methods.fednh import FedNH
from fedetf.methods.fednova import FedNova
from fedetf.methods.fedntd import FedNTD
from fedetf.methods.fedper import FedPer
from fedetf.methods.fedproto import FedProto
from fedetf.methods.fedprox import FedProx
from fedetf.methods.fedpvr import FedPVR
from fedetf.methods.fedrep import FedRep
from fedetf.methods.fedrod import FedRoD
from fedetf.methods.fedrs import FedRS
from fedetf.methods.feduv import FedUV
from fedetf.methods.lgfedavg import LGFedAvg
from fedetf.methods.local import Local
from fedetf.methods.moon import MOON
from fedetf.methods.perfedavg import PerFedAvg
from fedetf.methods.pfedme import PFedMe
from fedetf.methods.pooled import Pooled
from fedetf.methods.scaffold import SCAFFOLD
from fedetf.methods.spherefed import SphereFed
from fedetf.plugins import Registry
from fedetf.settings import Settings

_PAPER = (FedAvg, FedProx, FedDyn, Ditto, FedRep, FedRoD, CCVR, FedProto, FedNH, FedETF)
_FIXED_CLASSIFIERS = (FedBABU, SphereFed, FedGELA, FedDrPlus)
_LOSSES = (FedLC, FedRS, FedDecorr, FedUV, FedNTD)
_FEATURES = (MOON, FedFM, FedFA)
_CLASSICS = (SCAFFOLD, FedNova, FedPVR)
_PERSONAL = (FedPer, FedBN, LGFedAvg, FedALA, APFL, PFedMe, PerFedAvg)
_REFERENCES = (Local, Pooled)
_ALL = (*_PAPER, *_FIXED_CLASSIFIERS, *_LOSSES, *_FEATURES, *_CLASSICS, *_PERSONAL, *_REFERENCES)
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
    "check_federated",
    "check_private",
    "find_method",
    "is_method",
    "make_method",
    "method_of",
    "registry",
]


def make_method(section: Mapping[str, Any], fidelity: str = "paper", own: type[Method] | None = None) -> Method:
    """The method that a ``method.*`` section of the settings describes; ``own`` is its class if it is at hand."""
    numbers = dict(section)
    name = numbers.pop("name")
    kind = own or find_method(name)
    if fidelity == "authors" and kind is METHODS.get(name):
        kind = AUTHORS.get(name, kind)
    return validated(kind, numbers, "method")


def method_of(settings: Settings, own: type[Method] | None = None) -> Method:
    """The method that settings describe."""
    return make_method(settings.method.model_dump(), settings.fidelity, own)


def find_method(name: str) -> type[Method]:
    """A method's class: one of the ten, one of an installed package, or ``path/to/file.py:Name`` of your own."""
    return registry.find(name)


def is_method(name: str) -> bool:
    """Whether :func:`find_method` knows where to look for a name."""
    return registry.is_known(name)


def _checked(plugin: Any, name: str) -> type[Method]:
    if not (isinstance(plugin, type) and issubclass(plugin, Method)):
        raise UserError(f"{name} is not a subclass of fedetf.Method")
    return plugin


registry = Registry("method", "fedetf.methods", "--method", METHODS, _checked)
