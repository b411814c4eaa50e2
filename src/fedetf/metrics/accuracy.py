"""Accuracy: the share of samples whose largest logit is at their label; and recall, the same for each class."""

from typing import ClassVar

import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.metrics.base import Metric, Predictions, Values


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """Which samples are classified right ``[n]``, from logits ``[n, C]`` and labels ``[n]``. Of ties, the first."""
    return logits.argmax(dim=1) == y


class Accuracy(Metric):
    """The share of samples that are classified right."""

    name: ClassVar = "accuracy"
    title: ClassVar = "Accuracy"
    about: ClassVar = "The share of samples that are classified right."

    def part(self, seen: Predictions) -> State:
        """For each class, how many samples there are and how many of them are classified right: ``[C]``."""
        none = torch.zeros(len(seen.totals), dtype=torch.int64, device=seen.y.device)
        right = is_correct(seen.logits, seen.y)
        return {
            "count": none.index_add(0, seen.y, torch.ones_like(seen.y)),
            "correct": none.index_add(0, seen.y, right.to(torch.int64)),
        }

    def value(self, sums: State) -> Values:
        """Over all samples, whatever their class."""
        count = int(sums["count"].sum())
        return {self.name: int(sums["correct"].sum()) / count if count else None}


def recall_per_class(sums: State) -> list[float | None]:
    """The share of each class that is classified right, from the sums of :class:`Accuracy`; None of an absent class."""
    pairs = zip(sums["correct"].tolist(), sums["count"].tolist(), strict=True)
    return [correct / count if count else None for correct, count in pairs]
