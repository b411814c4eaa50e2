"""What a peer gets: the same images, clients and net as the engines, and a line on which its rounds are called."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedetf.bench.workload import skewed_job
from fedetf.nn.encoders import build_encoder

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4


@dataclass(frozen=True)
class Work:
    """A round of FedAvg, as the settings of :func:`skewed_job` have it; ``tuned`` lays everything out channels_last."""

    net: nn.Module
    parts: list[tuple[Tensor, Tensor]]  # each client's images [n, 3, H, W], ready for the net, and labels [n]
    lr: float
    batch_size: int
    scale: float
    tuned: bool

    @classmethod
    def make(cls, scale: float, tuned: bool) -> "Work":
        """The work at that scale."""
        job = skewed_job(scale)
        encoder = build_encoder(job.settings.model.name, job.dataset.shape)
        layout = torch.channels_last if tuned else torch.contiguous_format
        net: nn.Module = nn.Sequential(encoder, nn.Linear(encoder.features, len(job.dataset.classes)))
        net = net.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stubs lack it
        images = (job.dataset.train.x.float() / 255 - 0.5) / 0.5
        rows = [torch.from_numpy(part) for part in job.partition.train]
        parts = [(images[part].contiguous(memory_format=layout), job.dataset.train.y[part]) for part in rows]
        return cls(net, parts, job.settings.train.lr, job.settings.train.batch_size, scale, tuned)

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A client's batches of one epoch, shuffled, for peers that leave this to their users."""
        x, y = self.parts[client]
        for rows in torch.randperm(len(y)).split(self.batch_size):
            yield x[rows], y[rows]

    def optimiser(self, net: nn.Module) -> torch.optim.Optimizer:
        """The local one."""
        return torch.optim.SGD(net.parameters(), self.lr, MOMENTUM, weight_decay=WEIGHT_DECAY)


class Turns:
    """The peer's end of the line: a round begins when a line comes on standard input, and its seconds go back."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever the peer itself prints
        self._began = 0.0

    def wait(self) -> None:
        """Until the next round is called; the program ends if none will be."""
        if not sys.stdin.readline():
            sys.exit()
        self._began = time.perf_counter()

    def done(self) -> None:
        """The round is over."""
        self._answers.write(f"{time.perf_counter() - self._began}\n")
        self._answers.flush()
