"""Images once for each GPU: the process of the run holds them there, and its workers see the same memory (CUDA IPC)."""

import torch
from torch.multiprocessing.reductions import reduce_tensor

from fedetf.data.samples import Dataset, Samples
from fedetf.engines.memory import flatten, restore


class OnGPU:
    """A dataset on a GPU. It must live for as long as a worker looks at it."""

    def __init__(self, dataset: Dataset, device: torch.device):
        splits = (dataset.train, dataset.test)
        self._tensors = [tensor.to(device) for split in splits for tensor in (split.x, split.y)]

    def handles(self) -> bytes:
        """What one worker needs to see the images; each gets its own, since torch counts who looks."""
        (handles,) = flatten([reduce_tensor(tensor) for tensor in self._tensors])  # how to rebuild each, and from what
        return bytes(handles)


def seen(handles: bytes) -> tuple[Samples, Samples]:
    """The training and the test samples of :meth:`OnGPU.handles`, in another process; nothing is copied."""
    x, y, test_x, test_y = (rebuild(*arguments) for rebuild, arguments in restore([handles]))
    return Samples(x, y), Samples(test_x, test_y)
