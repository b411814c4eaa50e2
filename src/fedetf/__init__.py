"""fedetf: federated learning on data that differs from client to client, built around FedETF (ICCV 2023).

The names below are loaded when they are first used, so that ``fedetf --help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedetf.api import Result, resume, run
    from fedetf.comparison.run import Comparison, compare
    from fedetf.data.partition import dirichlet_partition, iid_partition, shard_partition
    from fedetf.errors import RunError, UserError
    from fedetf.estimator import FederatedClassifier
    from fedetf.etf import simplex_etf
    from fedetf.heads import ETFHead
    from fedetf.losses import balanced_cross_entropy
    from fedetf.methods.base import Method
    from fedetf.state import WeightedMean
    from fedetf.use import load

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "ETFHead",
    "FederatedClassifier",
    "Method",
    "Result",
    "RunError",
    "UserError",
    "WeightedMean",
    "balanced_cross_entropy",
    "compare",
    "dirichlet_partition",
    "iid_partition",
    "load",
    "resume",
    "run",
    "shard_partition",
    "simplex_etf",
]

_HOMES = {
    "Comparison": "comparison.run",
    "compare": "comparison.run",
    "ETFHead": "heads",
    "FederatedClassifier": "estimator",
    "Method": "methods.base",
    "Result": "api",
    "RunError": "errors",
    "UserError": "errors",
    "WeightedMean": "state",
    "balanced_cross_entropy": "losses",
    "dirichlet_partition": "data.partition",
    "iid_partition": "data.partition",
    "load": "use",
    "resume": "api",
    "run": "api",
    "shard_partition": "data.partition",
    "simplex_etf": "etf",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedetf' has no attribute {name!r}")
    return getattr(import_module(f"fedetf.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
