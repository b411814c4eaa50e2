"""Balanced accuracy: every class counts the same, however many samples it has."""

import statistics
from collections.abc import Iterable
from typing import ClassVar

from fedetf.core.state import State
from fedetf.metrics.accuracy import Accuracy, recall_per_class
from fedetf.metrics.base import Values


class BalancedAccuracy(Accuracy):
    """The mean recall of the classes that occur, from the same sums as accuracy."""

    name: ClassVar = "balanced_accuracy"
    title: ClassVar = "Balanced accuracy"
    about: ClassVar = "The mean, over the classes that occur, of the share that is classified right."

    def value(self, sums: State) -> Values:
        """Over classes."""
        return {self.name: mean_of_known(recall_per_class(sums))}


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean over the classes that have a value; None if none has."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
