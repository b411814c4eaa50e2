"""What is measured on: images of noise, which take as long as any other, and who holds them."""

import warnings

import numpy as np
import torch

from fedetf.config import resolve
from fedetf.data.partition import Partition, dirichlet_partition, split_parts
from fedetf.data.samples import Dataset, Samples
from fedetf.engines.job import Job

CLASSES = 10


def dataset(images: int, size: int) -> Dataset:
    """Noise in colour, equally many of each class; channels_last, as loaded images are."""
    stream = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, size, size, 3), generator=stream, dtype=torch.uint8).permute(0, 3, 1, 2)
    samples = Samples(pixels, torch.arange(images) % CLASSES)
    few = torch.arange(min(images, 1000))
    return Dataset(samples, samples.take(few), [str(c) for c in range(CLASSES)])


def job(data: Dataset, partition: Partition, **settings: object) -> Job:
    """A job on such images; ``settings`` are dotted keys with __ for the dot."""
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    resolved = resolve(None, {"data.name": "noise", "data.partition": "given", **keys})
    return Job.make(resolved, data, partition)


def training_job(scale: float, clients: int = 4, images: int = 1024, alpha: float = 0.0, **settings: object) -> Job:
    """ResNet-20, 32×32 pixels, batch 128; even clients with whole batches, or skewed ones if ``alpha`` is given."""
    count = max(int(images * scale), 16 * clients)
    data = dataset(count, 32)
    labels = data.train.y.numpy()
    if alpha:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few images may need a repair, which does not matter here
            parts = dirichlet_partition(labels, clients, alpha, seed=7)
    else:
        parts = [np.sort(part) for part in np.array_split(np.random.default_rng(0).permutation(count), clients)]
    partition = split_parts(parts, labels, data.classes, test_fraction=0.0, seed=7)
    common = {"method__name": "fedavg", "model__name": "resnet20", "train__batch_size": 128, "train__epochs": 1}
    return job(data, partition, **{**common, **settings})


def skewed_job(scale: float) -> Job:
    """The same with 20 skewed clients: what a worker gets in a message differs, and so when it is done."""
    return training_job(scale, clients=20, images=2048, alpha=0.1)
