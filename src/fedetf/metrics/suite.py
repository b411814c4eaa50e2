"""The chosen metrics together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedetf.core.state import State
from fedetf.errors import RunError, UserError
from fedetf.metrics.accuracy import Accuracy
from fedetf.metrics.base import Metric, Participant, Predictions, Values


@dataclass(frozen=True)
class Suite:
    """The metrics of a run, measured together. What they sum up is one flat state, which travels like any other."""

    metrics: tuple[Metric, ...] = (Accuracy(),)

    def __post_init__(self) -> None:
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise UserError(f"two metrics give {twice[0]!r}; choose one of them in measure.metrics")

    @property
    def names(self) -> list[str]:
        """Those of all values."""
        return [quantity.name for metric in self.metrics for quantity in metric.quantities()]

    @property
    def watches_clients(self) -> bool:
        """Whether one of them wants to see the participants of a round."""
        return any(metric.watches_clients for metric in self.metrics)

    @property
    def personal(self) -> "Suite":
        """Those that say something of a client's own model."""
        return Suite(tuple(metric for metric in self.metrics if metric.personal))

    def part(self, seen: Predictions) -> State:
        """The sums over some samples of a test set."""
        return self._together(lambda metric: metric.part(seen))

    def client_part(self, client: Participant) -> State:
        """What one participant of a round adds."""
        return self._together(lambda metric: metric.client_part(client))

    def model_part(self, heads: Sequence[Tensor]) -> State:
        """What the global model adds."""
        return self._together(lambda metric: metric.model_part(heads))

    def merge(self, sums: State, part: State) -> State:
        """The sums with one more part."""
        return self._together(lambda metric: metric.merge(sums_of(metric, sums), sums_of(metric, part)))

    def values(self, sums: State) -> Values:
        """All values, finite or None; nothing of a metric that summed up nothing."""
        values: Values = {}
        for metric in self.metrics:
            own = sums_of(metric, sums)
            try:
                values |= metric.value(own) if own else {}
            except Exception as error:  # whatever a metric of the user's own can raise
                raise RunError(f"metric {metric.name!r}: {type(error).__name__}: {error}") from error
        unknown = values.keys() - set(self.names)
        if unknown:
            raise RunError(f"a metric gives {min(unknown)!r}, which its quantities() do not name")
        return {name: _finite(value) for name, value in values.items()}

    def _together(self, part_of: Callable[[Metric], State]) -> State:
        """The sums of all; those that several share once."""
        summing = {metric.basis: metric for metric in self.metrics}.values()
        return {f"{m.basis}.{name}": tensor for m in summing for name, tensor in part_of(m).items()}


def sums_of(metric: type[Metric] | Metric, sums: State) -> State:
    """A metric's own sums among those of all."""
    prefix = f"{metric.basis}."
    return {name.removeprefix(prefix): tensor for name, tensor in sums.items() if name.startswith(prefix)}


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
