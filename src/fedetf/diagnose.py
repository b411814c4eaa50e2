"""Does FedETF help with these data? How skewed the sites are, how far classifiers drift, and a short measured trial."""

import enum
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor

from fedetf.api import execute, prepare
from fedetf.config import Settings, resolve
from fedetf.data import Partition, load_dataset
from fedetf.errors import UserError
from fedetf.federation import Listener, Round
from fedetf.methods import Server, Upload
from fedetf.methods.fedavg import FedAvg
from fedetf.metrics.cosines import Cosines
from fedetf.metrics.skew import Skew, label_skew

METHODS = ("fedavg", "fedetf")
TRIAL = {"train.rounds": 10, "train.epochs": 2}  # short, unless the user says otherwise
LEAST_GAIN = 0.01  # a difference in accuracy that is worth a change of method
UNLIKELY = 0.25  # a chance below this is not worth a change either


@dataclass(frozen=True)
class Drift:
    """How far FedAvg's classifiers drift apart in the local training of a round: mean cosines over pairs of sites.

    1 means that all sites agree. FedETF's classifier is fixed, so that there both would be 1.
    """

    weights: float  # of the same class's weight vector, mean over classes
    updates: float  # of how each site changed the whole weight matrix in the round; 0 is unrelated, negative opposed


class Verdict(enum.Enum):
    """What a trial can say."""

    HELPS = "FedETF helps"
    MAY_HELP = "FedETF may help"
    NOT_NEEDED = "FedETF is not needed"
    WORSE = "FedETF is not needed, FedAvg is better"
    UNCLEAR = "not clear yet"


@dataclass(frozen=True)
class Advice:
    """What follows from the trial. Differences are FedETF − FedAvg, in fractions."""

    verdict: Verdict
    difference: float
    low: float  # the 95% interval of the difference over seeds; NaN with a single seed
    high: float
    chance: float  # that the true difference is LEAST_GAIN or more, as far as the seeds tell; NaN with a single seed


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` finds. Accuracies are fractions."""

    settings: Settings
    partition: Partition  # of the first seed
    skew: Skew
    drift: Drift  # in the last round of the trial, mean over seeds
    seeds: list[int]
    general: dict[str, list[float]]  # method -> for each seed, mean of the last five rounds
    curves: dict[str, list[list[float]]]  # method -> for each seed, the general accuracy of every round
    test_samples: int
    advice: Advice


def diagnose(
    seeds: Sequence[int],
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    listeners: Mapping[tuple[str, int], Sequence[Listener]] | None = None,
    trust_code: bool = False,
) -> Diagnosis:
    """Measure a dataset and its partition, and compare FedAvg with FedETF on it in a short trial.

    Parameters
    ----------
    seeds:
        One trial for each; two or more, for an interval. Each draws its partition (unless the data has sites), its
        initial model and its batches.
    preset, settings:
        As for :func:`fedetf.run`. Unless ``settings`` say otherwise, a trial has ten rounds of two local epochs: those
        of a preset are for a whole run. There is no personal stage.
    listeners:
        What listens to the run of a (method, seed).
    trust_code:
        As for :func:`fedetf.run`.

    Examples
    --------
    >>> found = diagnose([7, 8], settings={"data.clients": 3, "train.rounds": 1, "train.epochs": 1})
    >>> found.skew.clients[0].effective_classes >= 1, sorted(found.general)
    (True, ['fedavg', 'fedetf'])
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise UserError("--seeds takes one or more different values, separated by commas")
    given = {**TRIAL, **(settings or {}), "personal.enabled": False}
    first = resolve(preset, {**given, "seed": seeds[0]}, trust_code)
    dataset = load_dataset(first.data, first.seed)
    general: dict[str, list[float]] = {method: [] for method in METHODS}
    curves: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    drifts: list[Drift] = []
    partition: Partition | None = None
    for seed in seeds:
        for method in METHODS:
            chosen = resolve(preset, {**given, "seed": seed, "method.name": method}, trust_code)
            heard = list((listeners or {}).get((method, seed), ()))
            watch = [_LastDrift()] if method == "fedavg" else []
            job = prepare(chosen, own=Watched if watch else None, dataset=dataset)
            result = execute(job, None, [*heard, *watch])
            assert result.general_last5 is not None
            general[method].append(result.general_last5)
            curves[method].append([r.general for r in result.rounds if r.general is not None])
            drifts += [listener.drift for listener in watch]
            partition = partition or job.partition
    assert partition is not None
    drift = Drift(statistics.mean(d.weights for d in drifts), statistics.mean(d.updates for d in drifts))
    return Diagnosis(
        settings=first,
        partition=partition,
        skew=label_skew(partition.counts),
        drift=drift,
        seeds=list(seeds),
        general=general,
        curves=curves,
        test_samples=len(dataset.test),
        advice=advise([b - a for a, b in zip(general["fedavg"], general["fedetf"], strict=True)]),
    )


# --- advice -----------------------------------------------------------------------------------------------------------


def advise(differences: Sequence[float]) -> Advice:
    """What the differences FedETF − FedAvg of the seeds say, taken as draws from a normal distribution."""
    difference, n = statistics.mean(differences), len(differences)
    if n == 1:
        return Advice(Verdict.UNCLEAR, difference, math.nan, math.nan, math.nan)
    error = max(statistics.stdev(differences) / math.sqrt(n), 1e-9)
    students = stats.t(n - 1, loc=difference, scale=error)
    low, high = students.interval(0.95)
    chance = float(students.sf(LEAST_GAIN))
    return Advice(_verdict(difference, low, high, chance), difference, float(low), float(high), chance)


def _verdict(difference: float, low: float, high: float, chance: float) -> Verdict:
    if low > 0 and difference >= LEAST_GAIN:
        return Verdict.HELPS
    if high < 0 and difference <= -LEAST_GAIN:
        return Verdict.WORSE
    if chance < UNLIKELY:
        return Verdict.NOT_NEEDED
    return Verdict.MAY_HELP if chance > 1 - UNLIKELY else Verdict.UNCLEAR


# --- drift ------------------------------------------------------------------------------------------------------------


class Watched(FedAvg):
    """FedAvg that notes with the server how far apart the classifiers are that come back."""

    name: ClassVar = "fedavg"

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """Eq. 2, as ever."""
        received, heads = server.state["head.weight"].clone(), []

        def noted() -> Iterator[Upload]:
            for upload in uploads:
                heads.append(upload.state["head.weight"].clone())
                yield upload

        super().aggregate(server, noted())
        drift = _drift(received, heads)
        server.own["drift"] = torch.tensor([drift.weights, drift.updates])


class _LastDrift(Listener):
    """Keeps the drift of the last round."""

    drift = Drift(math.nan, math.nan)

    def round_done(self, record: Round, server: Server) -> None:
        """Read what :class:`Watched` noted."""
        self.drift = Drift(*server.own["drift"].tolist())


def _drift(received: Tensor, heads: Sequence[Tensor]) -> Drift:
    """From the classifier ``[C, D]`` that all sites received, and what each made of it."""
    classifiers, changes = Cosines(len(received)), Cosines(rows=1)
    for W in heads:
        classifiers.add(W)
        changes.add((W - received).reshape(1, -1))
    return Drift(classifiers.mean(), changes.mean())
