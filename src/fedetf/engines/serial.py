"""The serial engine: one client after the other, in this process."""

from collections.abc import Iterator, Sequence

import torch

from fedetf.engines.worker import Job, Personal, Trained, Worker
from fedetf.errors import UserError
from fedetf.state import State


class SerialEngine:
    """Runs every step where it is called. Uploads come one by one, so a single one is in memory at a time."""

    def __init__(self, job: Job):
        self._worker = Worker(job, find_device(job.settings.engine.device))
        self._private: dict[int, State] = {}  # what each client keeps, from its first round on

    @property
    def device(self) -> torch.device:
        """Where the tensors of this engine live."""
        return self._worker.device

    def train(self, clients: Sequence[int], round: int, received: State) -> Iterator[Trained]:
        """Local training of the round's participants, in their order."""
        for client in clients:
            yield self._worker.train(client, round, received, self._private.get(client, {}))

    def keep(self, trained: Trained) -> None:
        """Make what a client kept its state for the next round. Without it, its training leaves no trace."""
        self._private[trained.upload.client] = trained.private

    def summarise(self, clients: Sequence[int], received: State) -> Iterator[State]:
        """What each client sends after the last round, in their order."""
        for client in clients:
            yield self._worker.summarise(client, received, self._private.get(client, {}))

    def personalise(self, clients: Sequence[int], received: State) -> Iterator[Personal]:
        """The personal stage of each client, in their order."""
        for client in clients:
            yield self._worker.personalise(client, received, self._private.get(client, {}))

    def evaluate(self, received: State) -> float:
        """General accuracy of the global model."""
        return self._worker.evaluate(received)


def find_device(name: str) -> torch.device:
    """The device that ``engine.device`` names; ``auto`` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):
        raise UserError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device
