"""What came of a round and of a whole run, and the summary of it that result.json holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedetf import __version__
from fedetf.core.state import State
from fedetf.data.partition import Partition
from fedetf.engines.job import Job
from fedetf.metrics import Values
from fedetf.provenance import commit


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
    samples: int = 0  # that those hold whose updates were folded in
    refused: dict[int, str] = field(default_factory=dict)  # client -> why its update was left out
    missing: dict[int, str] = field(default_factory=dict)  # client -> why there was none, on real sites
    measures: Values = field(default_factory=dict)  # what the chosen metrics give besides the accuracy, where measured


@dataclass
class Outcome:
    """What came of a whole run."""

    rounds: list[Round]
    general: float | None  # accuracy of the final global model on the test set
    general_last5: float | None  # the mean over the last five rounds; of a model that was finished afterwards, its own
    bytes_up: int
    bytes_down: int
    model: State  # the final global model, fixed tensors included
    personal: list[float | None]  # accuracy per client; None where the test split is empty; empty if not run
    personal_curve: list[float]  # mean over clients, where the method notes it during the stage
    personal_epochs: float  # local epochs of the personal stage, mean over clients
    train_seconds: float
    epsilon: float | None  # what the noised means reveal of one client, with update.delta; None without noise
    metrics: dict[str, Values] = field(default_factory=dict)  # "general": of the final model; "personal": their mean
    recall_per_class: list[float | None] | None = None  # of the final global model; None if there is none to test

    @property
    def personal_mean(self) -> float | None:
        """The plain mean over clients that have a test split."""
        return mean([a for a in self.personal if a is not None])


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
        "metrics": outcome.metrics,
        "recall_per_class": outcome.recall_per_class,
        "epochs_train": epochs_trained(partition, outcome.rounds),
        "epochs_personal": outcome.personal_epochs,
        "clients_without_test": None if partition.elsewhere else sum(len(part) == 0 for part in partition.test),
        "clients_with_one_class": None if partition.elsewhere else partition.single_class,
        "refused_updates": sum(len(r.refused) for r in outcome.rounds),
        "missing_updates": sum(len(r.missing) for r in outcome.rounds),
        "epsilon": outcome.epsilon,
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "images_per_second": images / outcome.train_seconds if outcome.train_seconds else None,
        "version": __version__,
        "commit": commit(),
    }


def epochs_trained(partition: Partition, rounds: Sequence[Round]) -> float:
    """Local epochs per client, mean by data size; of data elsewhere, by what is known of those who took part."""
    if not partition.elsewhere:
        return sum(r.images for r in rounds) / sum(map(len, partition.train))
    took_part = [(r, len(r.participants) - len(r.refused) - len(r.missing)) for r in rounds if r.samples]
    return sum(r.images / r.samples * count for r, count in took_part) / len(partition)
