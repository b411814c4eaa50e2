"""Balanced accuracy: every class counts the same, however many samples it has."""

import statistics
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
        recalls = [recall for recall in recall_per_class(sums) if recall is not None]
        return {self.name: statistics.mean(recalls) if recalls else None}
