"""The limit to be measured against: a bare PyTorch loop over the same batches, as people write it.

A program of its own, in a process like any user's: for each line on its standard input it trains on all clients'
batches once, and prints the seconds.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from fedetf.bench.workload import training_job
from fedetf.engines.job import Job
from fedetf.nn.encoders import build_encoder


def passes(job: Job, channels_last: bool) -> None:
    """Train once for each line that comes."""
    torch.set_num_threads(1)
    encoder = build_encoder(job.settings.model.name, job.dataset.shape)
    net: nn.Module = nn.Sequential(encoder, nn.Linear(encoder.features, len(job.dataset.classes))).train()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stubs lack it
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = ((job.dataset.train.x.float() / 255 - 0.5) / 0.5).contiguous(memory_format=layout)
    labels = job.dataset.train.y
    parts = [torch.from_numpy(part) for part in job.partition.train]
    for _ in sys.stdin:
        began = time.perf_counter()
        for part in parts:
            for batch in part[torch.randperm(len(part))].split(job.settings.train.batch_size):
                optimiser.zero_grad()
                F.cross_entropy(net(images[batch]), labels[batch]).backward()
                optimiser.step()
        sys.stdout.write(f"{time.perf_counter() - began}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    passes(training_job(float(sys.argv[2])), channels_last=sys.argv[1] == "channels_last")
