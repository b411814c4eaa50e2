"""The round loop."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fedetf.engines import Job, Personal, SerialEngine, scoped
from fedetf.errors import RunError
from fedetf.methods import Scope, Server, Upload
from fedetf.state import State, clone, defect, nbytes

LAST = 5  # tables report the mean of so many last rounds, as the authors do


@dataclass
class Round:
    """What came of one round; one line of rounds.jsonl."""

    round: int
    participants: list[int]
    loss: float | None = None
    general: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    images: int = 0
    trained: int = 0  # participants whose local training is over
    refused: dict[int, str] = field(default_factory=dict)  # client -> why its update was left out


@dataclass
class Outcome:
    """What came of a whole run."""

    rounds: list[Round]
    model: State  # the final global model, fixed tensors included
    personal: list[float | None]  # accuracy per client; None where the test split is empty; empty if not run
    personal_curve: list[float]  # mean over clients, where the method notes it during the stage
    train_seconds: float

    @property
    def general(self) -> float | None:
        """Accuracy of the final global model on the test set."""
        return self.rounds[-1].general

    @property
    def general_last5(self) -> float | None:
        """The mean over the last five rounds."""
        return mean([r.general for r in self.rounds[-LAST:] if r.general is not None])

    @property
    def personal_mean(self) -> float | None:
        """The plain mean over clients that have a test split."""
        return mean([a for a in self.personal if a is not None])


class Listener:
    """Is told what happens; shows it, logs it, saves it. Every default does nothing."""

    def started(self, federation: "Federation") -> None:
        """Before the first round."""

    def client_done(self, record: Round) -> None:
        """After each client's local training; ``record.trained`` says how many of the round that were."""

    def round_done(self, record: Round, server: Server) -> None:
        """After each round."""

    def personal_done(self, personal: Personal) -> None:
        """After each client's personal stage."""

    def finished(self, outcome: Outcome) -> None:
        """After everything."""


class Federation:
    """A server and an engine that runs its clients."""

    def __init__(self, job: Job, schedule: list[list[int]], listeners: Sequence[Listener] = ()):
        self.job = job
        self.method = job.method
        self.schedule = schedule
        self.engine = SerialEngine(job)
        state = {name: tensor.to(self.engine.device) for name, tensor in job.build_net().state_dict().items()}
        self.fixed = scoped(state, job.method, Scope.FIXED)
        self.server = Server(clone(scoped(state, job.method, Scope.SHARED)))
        self.train_seconds = 0.0
        self.listeners = listeners

    def run(self) -> Outcome:
        """All rounds, then the personal stage of every client."""
        with cpu_threads(self.job.settings.engine.threads):
            return self._run()

    def _run(self) -> Outcome:
        for listener in self.listeners:
            listener.started(self)
        records = []
        for record in self.rounds():
            records.append(record)
            for listener in self.listeners:
                listener.round_done(record, self.server)
        accuracies, curves = [], []
        for personal in self.personals():
            accuracies.append(personal.accuracy)
            curves.append(personal.curve)
            for listener in self.listeners:
                listener.personal_done(personal)
        curve = [sum(step) / len(step) for step in zip(*filter(None, curves), strict=True)]
        outcome = Outcome(records, {**self.fixed, **self.server.shared}, accuracies, curve, self.train_seconds)
        for listener in self.listeners:
            listener.finished(outcome)
        return outcome

    def rounds(self) -> Iterator[Round]:
        """Algorithm 1, for any method."""
        for t, participants in enumerate(self.schedule, start=1):
            began = time.perf_counter()
            record = Round(t, participants)
            self.server.round = t
            uploads = self.engine.train(participants, t, self.server.shared)  # 1. the participants train
            self.method.aggregate(self.server, self._sound(uploads, record))  # 2. the server folds in what they send
            self.train_seconds += time.perf_counter() - began
            if self._is_measured(t):
                record.general = self.engine.evaluate(self.server.shared)  # 3. what came of it
            record.seconds = time.perf_counter() - began
            yield record

    def personals(self) -> Iterator[Personal]:
        """The personal stage: every client, whether it was ever sampled or not. Nothing goes back to the server."""
        if self.job.settings.personal.enabled:
            yield from self.engine.personalise(range(len(self.job.partition)), self.server.shared)

    def _is_measured(self, t: int) -> bool:
        return t % self.job.settings.measure.every == 0 or t > len(self.schedule) - LAST

    def _sound(self, uploads: Iterable[Upload], record: Round) -> Iterator[Upload]:
        """Pass on the uploads that can be averaged, and keep the books of the round."""
        losses = []
        for upload in uploads:
            record.trained += 1
            for listener in self.listeners:
                listener.client_done(record)
            record.bytes_down += nbytes(self.server.shared)
            record.bytes_up += nbytes(upload.state)
            record.images += upload.images
            problem = defect(upload.state, self.server.shared)
            if problem is not None:
                record.refused[upload.client] = problem
                continue
            if upload.samples:
                losses.append((upload.samples, upload.loss))
            yield upload
        if record.refused and not losses:
            client, problem = next(iter(record.refused.items()))
            raise RunError(
                f"round {record.round}: every update was refused (client {client}: {problem}); lower train.lr"
            )
        weight = sum(n for n, _ in losses)
        loss = sum(n * value for n, value in losses) / weight if weight else math.nan
        record.loss = loss if math.isfinite(loss) else None


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def summary(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The content of result.json; accuracies are fractions, None where there is none."""
    settings, partition = job.settings, job.partition
    images = sum(r.images for r in outcome.rounds)
    return {
        "method": settings.method.name,
        "dataset": settings.data.name,
        "model": settings.model.name,
        "seed": settings.seed,
        "clients": len(partition),
        "rounds": len(outcome.rounds),
        "general": outcome.general,
        "general_last5": outcome.general_last5,
        "personal": outcome.personal_mean,
        "personal_per_client": outcome.personal,
        "personal_curve": outcome.personal_curve,
        "clients_without_test": sum(len(part) == 0 for part in partition.test),
        "clients_with_one_class": partition.single_class,
        "refused_updates": sum(len(r.refused) for r in outcome.rounds),
        "bytes_up": sum(r.bytes_up for r in outcome.rounds),
        "bytes_down": sum(r.bytes_down for r in outcome.rounds),
        "images_per_second": images / outcome.train_seconds if outcome.train_seconds else None,
    }


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Run a block with so many CPU threads. How sums are split over threads changes their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
