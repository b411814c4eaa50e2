"""A frozen encoder runs once: its features of all samples stand in for the samples, in every round and on every client.

What is left to federate is the head. The encoder then travels nowhere and is in no file of the run: whoever uses the
model takes it from where it came from, see :func:`with_encoder`.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedetf.core.state import State
from fedetf.core.threads import cpu_threads
from fedetf.data.samples import Dataset, Samples
from fedetf.engines.forkserver import cores
from fedetf.engines.job import Job, placed, preparation
from fedetf.engines.placement import find_devices
from fedetf.nn.heads import Net
from fedetf.settings import Settings

BATCH = 64  # small enough for the images of a large network; the same everywhere, so that all runs get the same bits

Tick = Callable[[int, int], None]  # samples done, samples in all


def silent(done: int, total: int) -> None:
    """Tell nobody."""


def with_features(job: Job, tick: Tick) -> Job:
    """The job with the features ``[N, D]`` of its encoder for data, if that is frozen; else the job as it is."""
    if job.encoder is None or not runs_once(job.encoder, job.settings):
        return job
    engine, data = job.settings.engine, job.dataset
    device = find_devices(engine.device)[0]
    encoder = placed(copy.deepcopy(job.encoder), data.shape, device).eval()
    prepare = preparation(job.settings, encoder, data.shape, device, data.note)
    workers = (engine.workers or cores()) if device.type == "cpu" else 1
    total, done = len(data.train) + len(data.test), 0

    @torch.no_grad()
    def encode(x: Tensor) -> Tensor:
        features: Tensor = encoder(prepare(x.to(device, copy=True)))  # it may work in place
        return features.cpu()

    def encoded(samples: Samples, parts: Sequence[Tensor]) -> Samples:
        nonlocal done
        batches = [rows for part in parts for rows in part.split(BATCH) if len(rows)]
        found = []
        for part in pool.map(lambda rows: encode(samples.x[rows]), batches):
            found.append(part)
            done += len(part)
            tick(done, total)
        features = torch.cat(found)
        return Samples(torch.empty_like(features).index_copy_(0, torch.cat(batches), features), samples.y)

    # Batches go side by side, each on as many threads as a worker has: however many there are, the bits are the same.
    with (
        cpu_threads(engine.threads),
        ThreadPoolExecutor(workers, "features", torch.set_num_threads, (engine.threads,)) as pool,
    ):
        train, test = encoded(data.train, _shares(job)), encoded(data.test, [torch.arange(len(data.test))])
        features = Dataset(train, test, data.classes, share=data.share)
    return replace(job, dataset=features, encoder=nn.Identity())


def _shares(job: Job) -> list[Tensor]:
    """The samples of each client, and of nobody: a batch is of one client, as at a real site, to the same bits."""
    shares = [np.sort(job.partition.everything(k)) for k in range(len(job.partition))]
    rest = np.setdiff1d(np.arange(len(job.dataset.train)), np.concatenate(shares))
    return [torch.from_numpy(share) for share in (*shares, rest)]


def runs_once(encoder: nn.Module, settings: Settings) -> bool:
    """Whether an encoder's features can be computed beforehand.

    The authors' code runs frozen encoders in train mode, where BatchNorm makes features depend on the batch; so there
    they cannot.
    """
    return is_frozen(encoder) and settings.fidelity != "authors"


def is_frozen(encoder: nn.Module) -> bool:
    """Whether an encoder has parameters, but whoever made it froze them all."""
    parameters = list(encoder.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def with_encoder(net: Net, state: Mapping[str, Tensor]) -> State:
    """A state for the whole ``net``: a run over features has none of the encoder, which is as its maker made it."""
    own = {name: tensor for name, tensor in net.state_dict().items() if name.startswith("encoder.")}
    return {**own, **state} if not any(name.startswith("encoder.") for name in state) else dict(state)
