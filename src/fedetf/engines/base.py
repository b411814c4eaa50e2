"""What all engines share: a run's kinds of work as steps, and their results in a fixed order."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fedetf.core.client import EVALUATION_BATCH
from fedetf.core.server import Noise, NoiseSource, RoundNoise
from fedetf.core.state import State
from fedetf.engines.job import Job
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Missing, Personal, Result, Step, Trained

Tick = Callable[[], Any]  # called when a step is done, whatever its place in the order


class Engine(ABC):
    """Runs the steps of a job."""

    fewest = 1  # a round with fewer sound updates, if some were left out, ends the run
    measures = True  # whether there is a test set for the global model

    def __init__(self, job: Job, private: PrivateStates):
        self.job = job
        self.private = private
        self.noise: NoiseSource = RoundNoise(Noise(b"fedetf/%d" % job.settings.seed))

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tensors of uploads are."""

    @abstractmethod
    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """Do the steps, all from the same received model; the results come in the order of the steps."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the engine holds."""

    def train(
        self, clients: Sequence[int], round: int, received: State, tick: Tick = bool
    ) -> Iterator[Trained | Missing]:
        """Local training of the round's participants, in their order; some may be missing."""
        epochs, sizes = self.job.settings.train.epochs, self.job.partition.train
        steps = [Step("train", cost=epochs * len(sizes[client]), client=client, round=round) for client in clients]
        return self.results(steps, received, tick)  # type: ignore[return-value]  # the results of such steps

    def keep(self, trained: Trained, round: int) -> None:
        """Make what a client kept its state for the next round. Without it, its training leaves no trace."""
        self.private.keep(trained.upload.client, round, trained.private)

    def summarise(self, clients: Sequence[int], received: State) -> Iterator[State]:
        """What each client sends after the last round, in their order."""
        steps = self._steps("summarise", clients)
        return self.results(steps, received, bool)  # type: ignore[return-value]  # the results of such steps

    def personalise(self, clients: Sequence[int], received: State) -> Iterator[Personal]:
        """The personal stage of each client, in their order."""
        steps = self._steps("personalise", clients)
        return self.results(steps, received, bool)  # type: ignore[return-value]  # the results of such steps

    def evaluate(self, received: State) -> State:
        """The global model on the whole test set: what the metrics sum up over its parts, merged in their order."""
        total = len(self.job.dataset.test)
        starts = range(0, total, EVALUATION_BATCH)
        ends = [min(start + EVALUATION_BATCH, total) for start in starts]
        steps = [Step("evaluate", b - a, start=a, stop=b) for a, b in zip(starts, ends, strict=True)]
        sums: State = {}
        for part in self.results(steps, received, bool):
            assert isinstance(part, dict)
            sums = self.job.metrics.merge(sums, part)
        return sums

    def validate(self, clients: Sequence[int], received: State) -> dict[int, State]:
        """The global model on what each client holds out to validate: counts of right ones by client that answers."""
        steps = [Step("validate", cost=len(self.job.partition.held_out(client)), client=client) for client in clients]
        results = zip(steps, self.results(steps, received, bool), strict=True)
        return {step.client: result for step, result in results if isinstance(result, dict)}

    def _steps(self, kind: Any, clients: Sequence[int]) -> list[Step]:
        return [Step(kind, cost=len(self.job.partition.train[client]), client=client) for client in clients]
