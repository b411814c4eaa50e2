"""What all engines share: a run's kinds of work as steps, and their results in a fixed order."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from fedetf.core.client import EVALUATION_BATCH
from fedetf.core.server import Noise, NoiseSource, RoundNoise
from fedetf.core.state import State
from fedetf.engines.job import Job
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import NOBODY, Missing, Personal, Result, Scored, Step, Trained
from fedetf.metrics import Values

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

    @property
    def placement(self) -> dict[str, Any] | None:
        """How many workers there are on which devices, for result.json; None if they are elsewhere."""
        return None

    @abstractmethod
    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """Do the steps, all from the same received model; the results come in the order of the steps."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the engine holds."""

    def train(
        self, clients: Sequence[int], round: int, received: State, tick: Tick = bool
    ) -> Iterator[Trained | Missing]:
        """Local training of the round's participants, in their order; some may be missing.

        Of a method that pools, one client trains in their place, on as many samples as they would together.
        """
        sizes = {client: len(self.job.partition.train[client]) for client in clients}
        costs = {client: self.job.settings.train.images(size) for client, size in sizes.items()}
        steps = [Step("train", cost=cost, client=client, round=round) for client, cost in costs.items()]
        if self.job.method.pools:
            passes, seen = sum(self.job.images_of(client, round) for client in clients), sum(sizes.values())
            steps = [Step("train", cost=passes, client=0, round=round, pooled=seen, passes=passes)]
        return self.results(steps, received, tick)  # type: ignore[return-value]  # the results of such steps

    def keep(self, trained: Trained, round: int) -> None:
        """Make what a client kept its state for the next round. Without it, its training leaves no trace."""
        self.private.keep(trained.upload.client, round, trained.private)

    def summarise(self, clients: Sequence[int], received: State, last: int = 0) -> Iterator[State]:
        """What each client sends after the ``last`` round, in their order."""
        steps = self._steps("summarise", clients, last)
        return self.results(steps, received, bool)  # type: ignore[return-value]  # the results of such steps

    def personalise(self, clients: Sequence[int], received: State, last: int = 0) -> Iterator[Personal]:
        """The personal stage of each client after the ``last`` round, in their order."""
        steps = self._steps("personalise", clients, last)
        return self.results(steps, received, bool)  # type: ignore[return-value]  # the results of such steps

    def evaluate(self, received: State) -> State:
        """The global model on the whole test set: what the metrics sum up over its parts, merged in their order."""
        (sums,) = self.evaluate_clients([NOBODY], received)
        return sums

    def evaluate_clients(self, clients: Sequence[int], received: State) -> Iterator[State]:
        """The same of each client's own model, in their order."""
        total = len(self.job.dataset.test)
        parts = [(start, min(start + EVALUATION_BATCH, total)) for start in range(0, total, EVALUATION_BATCH)]
        steps = [Step("evaluate", b - a, client=client, start=a, stop=b) for client in clients for a, b in parts]
        results = self.results(steps, received, bool)
        for _ in clients:
            sums: State = {}
            for part in islice(results, len(parts)):
                assert isinstance(part, dict)
                sums = self.job.metrics.merge(sums, part)
            yield sums

    def validate(self, clients: Sequence[int], received: State) -> dict[int, State]:
        """The global model on what each client holds out to validate: counts of right ones by client that answers."""
        steps = [Step("validate", cost=len(self.job.partition.held_out(client)), client=client) for client in clients]
        results = zip(steps, self.results(steps, received, bool), strict=True)
        return {step.client: result for step, result in results if isinstance(result, dict)}

    def test(self, clients: Sequence[int], received: State) -> dict[int, Values]:
        """The global model on the test split of each client that answers."""
        steps = [Step("test", cost=len(self.job.partition.test[client]), client=client) for client in clients]
        results = self.results(steps, received, bool)
        return {result.client: result.values for result in results if isinstance(result, Scored)}

    def _steps(self, kind: Any, clients: Sequence[int], last: int) -> list[Step]:
        parts = self.job.partition.train
        return [Step(kind, cost=len(parts[client]), client=client, round=last) for client in clients]
