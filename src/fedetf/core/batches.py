"""How a client's samples are cut into batches, and how many of them a phase of training takes."""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def batch_sizes(samples: int, batch_size: int) -> list[int]:
    """The sizes of an epoch's batches; the last may be smaller.

    A single sample that is left over joins the batch before: a step on one sample, with whatever statistics in
    BatchNorm, made training diverge (docs/architecture.md).

    >>> batch_sizes(10, 4), batch_sizes(9, 4), batch_sizes(1, 4)
    ([4, 4, 2], [4, 5], [1])
    """
    whole, rest = divmod(samples, batch_size)
    sizes = [batch_size] * whole
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def batches_in(epochs: float, in_one: int) -> int:
    """The number of batches in some epochs, of which one has ``in_one``; a part of an epoch has whole batches.

    >>> batches_in(3, 5), batches_in(0.5, 5), batches_in(0.01, 5), batches_in(0, 5)
    (15, 2, 1, 0)
    """
    return max(1, round(epochs * in_one)) if epochs else 0


def images_in(batches: int, sizes: Sequence[int]) -> int:
    """How many samples the first batches have, of epochs with batches of these sizes.

    >>> images_in(2, [4, 4, 2]), images_in(4, [4, 4, 2]), images_in(3, [])
    (8, 14, 0)
    """
    return sum(itertools.islice(itertools.cycle(sizes), batches))


def shuffled(samples: int, sizes: list[int], number: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The first ``number`` batches of positions among ``samples``, reshuffled each epoch.

    ``sizes`` are those of an epoch's batches, which may be less than all samples; it is drawn when it begins.
    """
    seen = sum(sizes)
    epochs = (torch.randperm(samples, generator=generator)[:seen].split(sizes) for _ in itertools.count())
    return itertools.islice(itertools.chain.from_iterable(epochs), number)
