"""Expected calibration error: is a model that is sure to 80 % right in 80 of 100 cases?"""

from typing import ClassVar

import torch

from fedetf.core.state import State
from fedetf.metrics.accuracy import is_correct
from fedetf.metrics.base import Metric, Predictions, Values
from fedetf.metrics.scores import probabilities

BINS = 15  # of equal width, as Guo et al. (ICML 2017) have them: the b-th holds confidences in ((b−1)/15, b/15]


class ECE(Metric):
    """The mean gap between confidence and accuracy, over 15 bins of confidence weighted by their samples."""

    name: ClassVar = "ece"
    title: ClassVar = "Expected calibration error"
    better: ClassVar = "lower"
    about: ClassVar = "How far the model's confidence is from its accuracy, in the mean over bins of confidence."

    def part(self, seen: Predictions) -> State:
        """Of each bin: how many are classified right, and the sum of their confidences, ``[15]``."""
        confidence = probabilities(seen).amax(dim=1)
        edges = torch.linspace(0, 1, BINS + 1, dtype=confidence.dtype, device=confidence.device)
        bins = torch.bucketize(confidence, edges[1:-1])
        none = torch.zeros(BINS, dtype=confidence.dtype, device=confidence.device)
        return {
            "right": none.index_add(0, bins, is_correct(seen.logits, seen.y).to(confidence.dtype)),
            "confidence": none.index_add(0, bins, confidence),
            "count": torch.tensor(len(seen.y)),
        }

    def value(self, sums: State) -> Values:
        """Σ_b (n_b/n) |accuracy_b − confidence_b|."""
        count = int(sums["count"])
        return {self.name: float((sums["right"] - sums["confidence"]).abs().sum()) / count if count else None}
