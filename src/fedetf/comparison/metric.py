"""What tables are judged by: accuracy, or any other metric by its name."""

from collections.abc import Mapping
from typing import Any

from fedetf.config import resolve
from fedetf.errors import UserError
from fedetf.metrics import METRICS, Accuracy, Quantity, find_metric

ACCURACY = Accuracy.quantities()[0]


def find_quantity(name: str) -> tuple[str, Quantity]:
    """The metric that gives a number of this name, and the number.

    >>> find_quantity("nc2")[0], find_quantity("macro_f1")[1].better
    ('collapse', 'higher')
    """
    known = ((metric.name, quantity) for metric in METRICS.values() for quantity in metric.quantities())
    match = next(((metric, quantity) for metric, quantity in known if quantity.name == name), None)
    metric, quantity = match or (name, find_metric(name).quantities()[0])
    if quantity.better is None:
        raise UserError(f"{name} is neither better higher nor better lower, so nothing can be ranked by it")
    return metric, quantity


def with_metric(metric: str, preset: str | None, overrides: Mapping[str, Any], trust_code: bool) -> dict[str, Any]:
    """The settings of runs that record ``metric`` as well."""
    if metric == ACCURACY.name:
        return dict(overrides)
    chosen = {key: value for key, value in overrides.items() if key in ("measure.metrics", "measure.collapse")}
    recorded = resolve(preset, chosen, trust_code, unused=["method.name", "model.name"]).measure
    if metric in recorded.chosen:
        return dict(overrides)
    return {**overrides, "measure.metrics": ",".join([*recorded.metrics, metric])}
