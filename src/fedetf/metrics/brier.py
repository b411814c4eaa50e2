"""Brier score: how far the probabilities are from the truth, in squares."""

from typing import ClassVar

import torch
from torch.nn.functional import one_hot

from fedetf.core.state import State
from fedetf.metrics.base import Metric, Predictions, Values
from fedetf.metrics.scores import probabilities


class Brier(Metric):
    """The mean of Σ_c (p_c − 1[y = c])², from 0 to 2; with two classes half of it, (p_1 − y)², from 0 to 1."""

    name: ClassVar = "brier"
    title: ClassVar = "Brier score"
    better: ClassVar = "lower"
    about: ClassVar = "The squared distance of the predicted probabilities from the truth."

    def part(self, seen: Predictions) -> State:
        """The sum over samples, and their number."""
        p = probabilities(seen)
        apart = (p - one_hot(seen.y, p.shape[1])).square().sum()
        return {"sum": apart / 2 if p.shape[1] == 2 else apart, "count": torch.tensor(len(seen.y))}

    def value(self, sums: State) -> Values:
        """The mean."""
        count = int(sums["count"])
        return {self.name: float(sums["sum"]) / count if count else None}
