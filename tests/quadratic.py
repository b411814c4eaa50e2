"""Federations whose loss is (w − c_k)²/2 in a single number w, so that every step can be worked out by hand."""

import numpy as np
import torch
from torch import nn

from fedetf.config import resolve
from fedetf.data import Dataset, Samples
from fedetf.data.partition import split_parts
from fedetf.engines.job import Job
from fedetf.federation import Federation
from fedetf.methods import Method
from fedetf.nn.heads import Net


class Number(nn.Linear):
    """A head of one weight, which is the w of the loss."""

    def __init__(self, start: float):
        super().__init__(1, 1, bias=False)
        nn.init.constant_(self.weight, start)


def quadratic(
    method: type[Method],
    centres: list[float],
    schedule: list[list[int]],
    lr: float,
    epochs: int = 1,
    start: float = 0.0,
    settings: dict | None = None,
    momentum: float = 0.0,
    **numbers: float,
) -> Federation:
    """A federation of ``method`` in which client k pulls w towards centres[k]; each epoch is one full-batch step."""

    class OnNumbers(method):
        def build(self, encoder, features, classes, seed):
            return Net(encoder, Number(start))

    x, y = torch.zeros(2 * len(centres), 1), torch.tensor([0, 1] * len(centres))
    parts = np.arange(len(y)).reshape(-1, 2)
    resolved = resolve(
        None,
        {
            "train.lr": lr,
            "train.epochs": epochs,
            "train.rounds": len(schedule),
            "train.lr_decay": 1.0,
            "train.momentum": momentum,
            "train.weight_decay": 0.0,
            **(settings or {}),
        },
    )
    dataset = Dataset(Samples(x, y), Samples(x, y), ["a", "b"])
    partition = split_parts(list(parts), y.numpy(), dataset.classes, 0.0, 0)
    return Federation(Job(resolved, OnNumbers(**numbers), dataset, partition, nn.Identity()), schedule)


def quadratic_loss(centres: list[float]):
    """A replacement for the cross entropy of :class:`Method`."""

    def loss(_, client, batch):
        return (client.net.head.weight - centres[client.id]).square().sum() / 2

    return loss


def weight(federation: Federation) -> float:
    return federation.server.state["head.weight"].item()
