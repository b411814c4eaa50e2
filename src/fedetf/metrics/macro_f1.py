"""Macro F1: for each class the harmonic mean of precision and recall, and their mean."""

from typing import ClassVar

from fedetf.core.state import State
from fedetf.metrics.accuracy import Accuracy, ratios
from fedetf.metrics.balanced_accuracy import mean_of_known
from fedetf.metrics.base import Values


class MacroF1(Accuracy):
    """The mean F1 over the classes that occur or are answered, from the same sums as accuracy."""

    name: ClassVar = "macro_f1"
    title: ClassVar = "Macro F1"
    about: ClassVar = "Of each class the harmonic mean of precision and recall; the mean over classes."

    def value(self, sums: State) -> Values:
        """F1 of class c: 2 TP / (samples of c + answers c). A class that neither occurs nor is answered has none."""
        confusion = sums["confusion"]
        return {self.name: mean_of_known(ratios(2 * confusion.diagonal(), confusion.sum(dim=1) + confusion.sum(dim=0)))}
