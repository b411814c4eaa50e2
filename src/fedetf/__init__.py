"""fedetf: federated learning on data that differs from client to client, built around FedETF (ICCV 2023).

The names below are loaded when they are first used, so that ``fedetf --help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedetf.api import Result
    from fedetf.comparison.run import Comparison
    from fedetf.core.forms import LikeParameters, Rows, Vector
    from fedetf.core.state import WeightedMean
    from fedetf.data.partition import dirichlet_partition, iid_partition, shard_partition
    from fedetf.errors import RunError, UserError
    from fedetf.estimator import FederatedClassifier
    from fedetf.methods.base import Method, Scope
    from fedetf.models.load import load
    from fedetf.nn.etf import simplex_etf
    from fedetf.nn.heads import ETFHead
    from fedetf.nn.losses import balanced_cross_entropy
    from fedetf.ranges import Range
    from fedetf.report.interactive import compare, resume, run, tune
    from fedetf.tuning.run import Tuning

__version__ = "0.2.0"

__all__ = [
    "Comparison",
    "ETFHead",
    "FederatedClassifier",
    "LikeParameters",
    "Method",
    "Range",
    "Result",
    "Rows",
    "RunError",
    "Scope",
    "Tuning",
    "UserError",
    "Vector",
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
    "tune",
]

_HOMES = {
    "Comparison": "comparison.run",
    "compare": "report.interactive",
    "Tuning": "tuning.run",
    "tune": "report.interactive",
    "ETFHead": "nn.heads",
    "FederatedClassifier": "estimator",
    "LikeParameters": "core.forms",
    "Method": "methods.base",
    "Range": "ranges",
    "Result": "api",
    "Rows": "core.forms",
    "RunError": "errors",
    "Scope": "methods.base",
    "UserError": "errors",
    "Vector": "core.forms",
    "WeightedMean": "core.state",
    "balanced_cross_entropy": "nn.losses",
    "dirichlet_partition": "data.partition",
    "iid_partition": "data.partition",
    "load": "models.load",
    "resume": "report.interactive",
    "run": "report.interactive",
    "shard_partition": "data.partition",
    "simplex_etf": "nn.etf",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedetf' has no attribute {name!r}")
    return getattr(import_module(f"fedetf.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
