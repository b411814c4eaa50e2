"""Log loss: how much probability the model gives to the true class."""

from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy

from fedetf.core.state import State, widest
from fedetf.metrics.base import Metric, Predictions, Values


class LogLoss(Metric):
    """The mean of −log p(y), p being the softmax of the logits; natural logarithm."""

    name: ClassVar = "log_loss"
    title: ClassVar = "Log loss"
    better: ClassVar = "lower"
    about: ClassVar = "Minus the logarithm of the probability that the model gives to the true class."

    def part(self, seen: Predictions) -> State:
        """The sum over samples, and their number."""
        logits = seen.logits.to(widest(seen.logits.device))
        return {"sum": cross_entropy(logits, seen.y, reduction="sum"), "count": torch.tensor(len(seen.y))}

    def value(self, sums: State) -> Values:
        """The mean."""
        count = int(sums["count"])
        return {self.name: float(sums["sum"]) / count if count else None}
