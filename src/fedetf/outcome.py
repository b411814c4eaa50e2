"""What came of a round and of a whole run, and the summary of it that result.json holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedetf import __version__
from fedetf.core.state import State
from fedetf.data.partition import Partition
from fedetf.engines.job import Job
from fedetf.metrics import Values, recall_per_class
from fedetf.provenance import commit
from fedetf.statistics import describe_clients

PerClient = dict[
    str, list[float | None]
]  # by metric: its value on each client's own test split, None where there is none


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
class Unseen:
    """What the clients that never trained have of the final model; one entry for each, None without a test split."""

    clients: list[int]
    general_per_client: list[float | None]  # of the global model as it is; None too where a method has none
    personal_per_client: list[float | None]  # after a personal stage like everybody's

    @property
    def personal(self) -> float | None:
        """The plain mean over those that have a test split."""
        return mean([a for a in self.personal_per_client if a is not None])

    def to_json(self, personal: float | None) -> dict[str, Any]:
        """What result.json says of them; ``personal`` is what the clients reach that did train."""
        gap = None if personal is None or self.personal is None else personal - self.personal
        general = mean([a for a in self.general_per_client if a is not None])
        return {**vars(self), "general": general, "personal": self.personal, "gap": gap}


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


def has_stalled(rounds: Sequence[Round], patience: int) -> bool:
    """Whether the best validation accuracy is ``patience`` rounds old; 0 is patience without end.

    >>> rising = [Round(t, [], validation=v) for t, v in ((1, 0.2), (2, 0.5), (3, 0.4), (4, 0.5))]
    >>> has_stalled(rising, 2), has_stalled(rising, 3), has_stalled(rising, 0)
    (True, False, False)
    """
    values = [seen.validation for record in rounds if (seen := record.reported).validation is not None]
    return patience > 0 and len(values) - 1 - values.index(max(values)) >= patience if values else False


@dataclass
class Outcome:
    """What came of a whole run."""

    rounds: list[Round]
    general: float | None  # accuracy of the final global model on the test set
    general_last5: float | None  # the mean over the last five rounds; of completed models, if the method completes them
    bytes_up: int
    bytes_down: int
    model: State  # the final global model, fixed tensors included
    personal: list[float | None]  # accuracy per client; None of an empty test split, of an unseen client; [] if not run
    personal_curve: list[float]  # mean over clients, where the method notes it during the stage
    personal_epochs: float  # local epochs of the personal stage, mean over clients
    train_seconds: float
    epsilon: float | None  # what the noised means reveal of one client, with update.delta; None without noise
    metrics: dict[str, Values] = field(default_factory=dict)  # "general": of the final model; "personal": their mean
    confusion: Tensor | None = None  # of the final global model: how often class i is taken for class j [C, C]
    per_client: dict[str, PerClient] = field(default_factory=dict)  # "general": of the global model; "personal"
    validation: Validation | None = None  # None if nothing was held out to validate
    unseen: Unseen | None = None  # None if every client could train
    placement: dict[str, Any] | None = None  # how many workers were on which devices; None of real sites

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
    measured = [accuracy for accuracy in outcome.personal if accuracy is not None]
    clients = describe_clients(measured) if measured else None
    majority = majority_per_client(job)
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
        "personal_worst_decile": clients and clients.worst_decile,
        "personal_quartiles": clients and list(clients.quartiles),
        "personal_majority": mean([share for share in majority if share is not None]),
        "majority_per_client": majority,
        "personal_curve": outcome.personal_curve,
        "validation": None if outcome.validation is None else outcome.validation.to_json(),
        "unseen": None if outcome.unseen is None else outcome.unseen.to_json(outcome.personal_mean),
        "metrics": outcome.metrics,
        "per_client": outcome.per_client,
        "recall_per_class": None if outcome.confusion is None else recall_per_class({"confusion": outcome.confusion}),
        "confusion": None if outcome.confusion is None else outcome.confusion.tolist(),
        "epochs_train": epochs_trained(partition, outcome.rounds),
        "epochs_personal": outcome.personal_epochs,
        "clients_without_test": None
        if partition.elsewhere
        else sum(len(partition.test[client]) == 0 for client in partition.seen),
        "clients_with_one_class": None if partition.elsewhere else partition.single_class,
        "refused_updates": sum(len(r.refused) for r in outcome.rounds),
        "missing_updates": sum(len(r.missing) for r in outcome.rounds),
        "epsilon": outcome.epsilon,
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "image_passes": images,
        "images_per_second": images / outcome.train_seconds if outcome.train_seconds else None,
        "placement": outcome.placement,
        "version": __version__,
        "commit": commit(),
    }


def majority_per_client(job: Job) -> list[float | None]:
    """What a constant answer reaches: the share of each client's most frequent training class in its test split.

    None of an empty test split and of an unseen client, as of personal accuracy, which it is to be read beside; of data
    elsewhere nobody here knows, so that the list is empty.
    """
    partition = job.partition
    if partition.elsewhere:
        return []
    seen = set(partition.seen)
    return [own_majority(job, client) if client in seen else None for client in range(len(partition))]


def own_majority(job: Job, client: int) -> float | None:
    """The same of one client whose data is here."""
    part, most = job.partition.test[client], job.partition.counts[client].argmax()
    return float((job.dataset.train.y.numpy()[part] == most).mean()) if len(part) else None


def epochs_trained(partition: Partition, rounds: Sequence[Round]) -> float:
    """Local epochs per client, mean by data size; of data elsewhere, by what is known of those who took part."""
    if not partition.elsewhere:
        return sum(r.images for r in rounds) / sum(len(partition.train[client]) for client in partition.seen)
    took_part = [(r, len(r.participants) - len(r.refused) - len(r.missing)) for r in rounds if r.samples]
    return sum(r.images / r.samples * count for r, count in took_part) / len(partition.seen)
