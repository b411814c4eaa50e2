"""What is measured: metrics, one file each, and the label skew of a partition."""

from collections.abc import Iterable
from typing import Any

from fedetf.errors import UserError
from fedetf.metrics.accuracy import Accuracy, balanced, is_correct, recall_per_class
from fedetf.metrics.balanced_accuracy import BalancedAccuracy
from fedetf.metrics.base import Metric, Participant, Predictions, Quantity, Values
from fedetf.metrics.brier import Brier
from fedetf.metrics.calibration import ECE
from fedetf.metrics.collapse import Collapse, class_statistics, collapse
from fedetf.metrics.consistency import Consistency
from fedetf.metrics.cosines import Cosines
from fedetf.metrics.log_loss import LogLoss
from fedetf.metrics.macro_f1 import MacroF1
from fedetf.metrics.scores import AUROC, AveragePrecision
from fedetf.metrics.sensitivity import Sensitivity, Specificity
from fedetf.metrics.skew import label_skew
from fedetf.metrics.suite import Suite, sums_of
from fedetf.plugins import Registry

_ALL = (
    Accuracy,
    BalancedAccuracy,
    MacroF1,
    Sensitivity,
    Specificity,
    AUROC,
    AveragePrecision,
    LogLoss,
    Brier,
    ECE,
    Collapse,
    Consistency,
)
METRICS: dict[str, type[Metric]] = {metric.name: metric for metric in _ALL}
QUANTITIES: list[Quantity] = [quantity for metric in _ALL for quantity in metric.quantities()]  # all that they give

__all__ = [
    "METRICS",
    "QUANTITIES",
    "Accuracy",
    "Consistency",
    "Cosines",
    "Metric",
    "Participant",
    "Predictions",
    "Quantity",
    "Suite",
    "Values",
    "balanced",
    "class_statistics",
    "collapse",
    "find_metric",
    "is_correct",
    "label_skew",
    "make_suite",
    "recall_per_class",
    "registry",
    "sums_of",
]


def make_suite(names: Iterable[str]) -> Suite:
    """The metrics of these names. Accuracy is always one of them."""
    chosen: list[type[Metric]] = [Accuracy, *map(find_metric, names)]
    return Suite(tuple(metric() for metric in dict.fromkeys(chosen)))


def find_metric(name: str) -> type[Metric]:
    """A metric's class: one of :data:`METRICS`, of an installed package, or ``path/to/file.py:Name`` of your own."""
    return registry.find(name)


def _checked(plugin: Any, name: str) -> type[Metric]:
    if not (isinstance(plugin, type) and issubclass(plugin, Metric)):
        raise UserError(f"{name} is not a subclass of fedetf.metrics.Metric")
    return plugin


registry: Registry[type[Metric]] = Registry("metric", "fedetf.metrics", "--set measure.metrics", METRICS, _checked)
