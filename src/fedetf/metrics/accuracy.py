"""Accuracy: the share of samples whose largest logit is at their label; and recall, the same for each class."""

from typing import ClassVar

import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.metrics.base import Metric, Predictions, Values

LEAST = 5  # samples of a class, without which its share of right ones says too little to count


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """Which samples are classified right ``[n]``, from logits ``[n, C]`` and labels ``[n]``. Of ties, the first."""
    return logits.argmax(dim=1) == y


class Accuracy(Metric):
    """The share of samples that are classified right."""

    name: ClassVar = "accuracy"
    title: ClassVar = "Accuracy"
    about: ClassVar = "The share of samples that are classified right."

    def part(self, seen: Predictions) -> State:
        """The confusion matrix: how many samples of each class (rows) were called which (columns), ``[C, C]``."""
        C = len(seen.totals)
        pairs = seen.y * C + seen.logits.argmax(dim=1)
        return {"confusion": torch.bincount(pairs, minlength=C * C).view(C, C)}

    def value(self, sums: State) -> Values:
        """Over all samples, whatever their class."""
        count = int(sums["confusion"].sum())
        return {self.name: int(sums["confusion"].diagonal().sum()) / count if count else None}


def recall_per_class(sums: State) -> list[float | None]:
    """The share of each class that is classified right, from the sums of :class:`Accuracy`; None of an absent class."""
    confusion = sums["confusion"]
    return ratios(confusion.diagonal(), confusion.sum(dim=1))


def ratios(parts: Tensor, wholes: Tensor) -> list[float | None]:
    """Of each class, one count by another; None where the other is 0."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]


def balanced(counts: State) -> tuple[float | None, int]:
    """The mean over classes of the share that is right, and how many classes have too few samples to count in it.

    It is what validation goes by: what clients hold out together is not balanced, and the test set is. ``count`` and
    ``correct`` are ``[C]``: how many samples of each class there are, and how many are classified right.

    >>> balanced({"correct": torch.tensor([9, 2, 0]), "count": torch.tensor([10, 5, 4])})
    (0.65, 1)
    """
    many = counts["count"] >= LEAST
    shares = [share for share in ratios(counts["correct"][many], counts["count"][many]) if share is not None]
    return sum(shares) / len(shares) if shares else None, int((~many).sum())
