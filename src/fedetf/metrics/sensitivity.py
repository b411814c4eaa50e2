"""Sensitivity and specificity: of those who have it, how many are found; of those who have not, how many are spared.

With two classes the second is the one that is looked for, as in scikit-learn. With more, each class is set against the
rest, and the mean is taken over the classes that occur.
"""

from typing import ClassVar

from torch import Tensor

from fedetf.core.state import State
from fedetf.metrics.accuracy import Accuracy, ratios, recall_per_class
from fedetf.metrics.balanced_accuracy import mean_of_known
from fedetf.metrics.base import Values

Shares = list[float | None]


class Sensitivity(Accuracy):
    """The share of a class's samples that are found; with two classes, of the second one's."""

    name: ClassVar = "sensitivity"
    title: ClassVar = "Sensitivity"
    about: ClassVar = "The share of a class that is found: of the second of two classes, of more the mean."

    def value(self, sums: State) -> Values:
        """TP / (TP + FN)."""
        return {self.name: _summarised(recall_per_class(sums), sums["confusion"])}


class Specificity(Accuracy):
    """The share of the other classes' samples that are not taken for a class; with two classes, for the second one."""

    name: ClassVar = "specificity"
    title: ClassVar = "Specificity"
    about: ClassVar = "The share of the others that is not taken for a class: the second of two, of more the mean."

    def value(self, sums: State) -> Values:
        """TN / (TN + FP)."""
        confusion = sums["confusion"]
        others = confusion.sum() - confusion.sum(dim=1)
        mistaken = confusion.sum(dim=0) - confusion.diagonal()
        return {self.name: _summarised(ratios(others - mistaken, others), confusion)}


def _summarised(shares: Shares, confusion: Tensor) -> float | None:
    if len(shares) == 2:
        return shares[1]
    occur = confusion.sum(dim=1).tolist()
    return mean_of_known(share for share, count in zip(shares, occur, strict=True) if count)
