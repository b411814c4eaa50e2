"""Log loss: how much probability the model gives to the true class."""

from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy

from fedetf.metrics.base import Metric, Tested, Values
from fedetf.state import State, widest


class LogLoss(Metric):
    """The mean of −log p(y), p being the softmax of the logits; natural logarithm."""

    name: ClassVar = "log_loss"
    title: ClassVar = "Log loss"
    better: ClassVar = "lower"
    about: ClassVar = "Minus the logarithm of the probability that the model gives to the true class."

    def part(self, tested: Tested) -> State:
        """The sum over samples, and their number."""
        logits = tested.logits.to(widest(tested.logits.device))
        return {"sum": cross_entropy(logits, tested.y, reduction="sum"), "count": torch.tensor(len(tested.y))}

    def value(self, sums: State) -> Values:
        """The mean."""
        count = int(sums["count"])
        return {self.name: float(sums["sum"]) / count if count else None}
