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
class Measured:
    """What is measured of a global model."""

    general: float | None = None  # accuracy on the test set
    validation: float | None = None  # balanced over classes, on what all clients hold out to validate
    measures: Values = field(default_factory=dict)  # what the chosen metrics give besides


@dataclass
class Validation:
    """What the samples that clients hold out of their training splits say of the models."""

    general: float | None  # of the final global model, balanced over classes
    general_last5: float | None  # its mean over the last five rounds
    personal_per_client: list[float | None]  # of the personal models; None where a client holds nothing out
    classes_left_out: int | None  # of the general values: classes with too few samples to count

    @property
    def personal(self) -> float | None:
        """The plain mean over clients that hold something out."""
        return mean([a for a in self.personal_per_client if a is not None])

    def to_json(self) -> dict[str, Any]:
        """What result.json says of it."""
        return {**vars(self), "personal": self.personal}


@dataclass
class Round:
    """What came of one round; one line of rounds.jsonl."""

    round: int
    participants: list[int]
    loss: float | None = None
    general: float | None = None
    validation: float | None = None  # general accuracy on what clients hold out to validate, balanced over classes
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    images: int = 0
    trained: int = 0  # participants whose local training is over
    samples: int = 0  # that those hold whose updates were folded in
    refused: dict[int, str] = field(default_factory=dict)  # client -> why its update was left out
    missing: dict[int, str] = field(default_factory=dict)  # client -> why there was none, on real sites
    measures: Values = field(default_factory=dict)  # what the chosen metrics give besides the accuracy, where measured
    completed: Measured | None = None  # of the model as it would be, had the run ended here; see Method.finishes

    @property
    def reported(self) -> Measured:
        """What tables report of the global model: of the completed one, where a method completes it."""
        return self.completed or Measured(self.general, self.validation, self.measures)


@dataclass
class Outcome:
    """What came of a whole run."""

    rounds: list[Round]
    general: float | None  # accuracy of the final global model on the test set
    general_last5: float | None  # the mean over the last five rounds; of completed models, if the method completes them
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
    validation: Validation | None = None  # None if nothing was held out to validate

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
        "validation": None if outcome.validation is None else outcome.validation.to_json(),
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
