"""Accuracy: the share of samples whose largest logit is at their label."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def count_correct(logits_of: Callable[[Tensor], Tensor], y: Tensor, batches: Iterable[Tensor]) -> int:
    """How many samples are classified right; ``batches`` are index tensors into ``y`` and what ``logits_of`` knows.

    Ties go to the lowest class. Counted on the device: the result is read once.
    """
    correct = torch.zeros((), dtype=torch.int64, device=y.device)
    with torch.no_grad():
        for batch in batches:
            correct += (logits_of(batch).argmax(dim=1) == y[batch]).sum()
    return int(correct.item())
