"""The serial engine: one client after the other, in this process."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedetf.engines.worker import Job, Personal, Worker
from fedetf.errors import UserError
from fedetf.methods import Upload


class SerialEngine:
    """Runs every step where it is called. Uploads come one by one, so a single one is in memory at a time."""

    def __init__(self, job: Job):
        self._worker = Worker(job, find_device(job.settings.engine.device))

    @property
    def device(self) -> torch.device:
        """Where the tensors of this engine live."""
        return self._worker.device

    def train(self, clients: Sequence[int], round: int, shared: Mapping[str, Tensor]) -> Iterator[Upload]:
        """Local training of the round's participants, in their order."""
        for client in clients:
            yield self._worker.train(client, round, shared)

    def personalise(self, clients: Sequence[int], shared: Mapping[str, Tensor]) -> Iterator[Personal]:
        """The personal stage of each client, in their order."""
        for client in clients:
            yield self._worker.personalise(client, shared)

    def evaluate(self, shared: Mapping[str, Tensor]) -> float:
        """General accuracy of the global model."""
        return self._worker.evaluate(shared)


def find_device(name: str) -> torch.device:
    """The device that ``engine.device`` names; ``auto`` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device
