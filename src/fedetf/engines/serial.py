"""The serial engine: one step after the other, in this process."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedetf.core.state import State, clone
from fedetf.engines.base import Engine, Tick
from fedetf.engines.job import Job
from fedetf.engines.placement import Placement
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Result, Step
from fedetf.engines.worker import Worker


class SerialEngine(Engine):
    """Runs every step where it is called. Results come one by one, so a single one is in memory at a time."""

    def __init__(self, job: Job, private: PrivateStates, device: torch.device):
        super().__init__(job, private)
        self._worker = Worker(job, device)

    @property
    def device(self) -> torch.device:
        """Where the one worker is."""
        return self._worker.device

    @property
    def placement(self) -> dict[str, Any]:
        """One worker on one device."""
        return Placement("serial", (self.device,), 1).to_json([0])

    def close(self) -> None:
        """Nothing is held."""

    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """One after the other."""
        received = clone(received)  # a method may change the server's own while clients still train
        for step in steps:
            result = self._worker.perform(step, received, self.private.load(step.client))
            tick()
            yield result
