"""Metrics of the ranking that probabilities give: AUROC and average precision, each class against the rest.

The mean is taken over the classes that occur; with two classes the second is the one that is looked for.

A rank depends on all samples, so no sum of a fixed length is exact: what is joined are the probabilities themselves,
``[n, C]`` in double precision. Memory is that of the test set's probabilities (10,000 samples of 100 classes: 8 MB).
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedetf.core.state import State, widest
from fedetf.metrics.balanced_accuracy import mean_of_known
from fedetf.metrics.base import Metric, Predictions, Values

Floats = NDArray[np.float64]


def probabilities(seen: Predictions) -> Tensor:
    """What the model takes for the probabilities of the classes ``[n, C]``."""
    return seen.logits.to(widest(seen.logits.device)).softmax(dim=1)


class AUROC(Metric):
    """The area under the ROC curve, each class against the rest."""

    name: ClassVar = "auroc"
    title: ClassVar = "AUROC"
    about: ClassVar = "How often a sample of a class is ranked above one of another class; 0.5 is chance."
    concatenated: ClassVar = frozenset({"p", "y"})

    def part(self, seen: Predictions) -> State:
        """The probabilities ``[n, C]`` and labels ``[n]``."""
        return {"p": probabilities(seen), "y": seen.y}

    def value(self, sums: State) -> Values:
        """The mean over classes; None where only one occurs."""
        return {self.name: mean_of_known(_auroc(scores, is_class) for scores, is_class in _each_against_rest(sums))}


class AveragePrecision(AUROC):
    """The area under the steps of the precision-recall curve, each class against the rest."""

    name: ClassVar = "average_precision"
    title: ClassVar = "Average precision"
    about: ClassVar = "Precision over the ranking of a class's samples, averaged; the share of the class is chance."

    def value(self, sums: State) -> Values:
        """The mean over the classes that occur."""
        ranked = _each_against_rest(sums)
        return {self.name: mean_of_known(_average_precision(scores, is_class) for scores, is_class in ranked)}


def _each_against_rest(sums: State) -> Iterator[tuple[Floats, NDArray[np.bool_]]]:
    """For each class that occurs, the scores ``[n]`` of all samples and which are of the class; of two, the second."""
    p, y = sums["p"].cpu().double().numpy(), sums["y"].cpu().numpy()
    for c in np.unique(y):
        if c == 1 or p.shape[1] > 2:
            yield p[:, c], y == c


def _auroc(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """Mann and Whitney's U: the share of pairs (positive, negative) in order, ties counting a half."""
    positives, others = scores[positive], np.sort(scores[~positive])
    if not len(others):
        return None
    below, up_to = (np.searchsorted(others, positives, side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(others)))


def _average_precision(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """The mean over positives of the precision among the samples that score as high or higher."""
    positives = scores[positive]
    right, answered = (len(s) - np.searchsorted(np.sort(s), positives, "left") for s in (positives, scores))
    return float((right / answered).mean())
