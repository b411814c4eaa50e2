"""Does FedETF help with these data? How skewed the sites are, how far classifiers drift, and a short measured trial."""

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats

from fedetf.api import execute, prepare
from fedetf.config import resolve
from fedetf.data import Partition, load_dataset
from fedetf.engines.job import Job
from fedetf.errors import UserError
from fedetf.federation import Listener
from fedetf.heterogeneity import Heterogeneity, heterogeneity
from fedetf.metrics.skew import Skew, label_skew
from fedetf.outcome import Round
from fedetf.settings import Settings
from fedetf.statistics import above_chance

METHODS = ("fedavg", "fedetf")
TRIAL = {"train.rounds": 10, "train.epochs": 2}  # short, unless the user says otherwise
LEAST_GAIN = 0.01  # a difference in accuracy that is worth a change of method
UNLIKELY = 0.25  # a chance below this is not worth a change either


@dataclass(frozen=True)
class Drift:
    """How far FedAvg's sites drift apart in the local training of a round: mean cosines over pairs of sites.

    1 means that all sites agree. These are the measures of docs/measures.md; NaN where there is nothing to compare.
    """

    classifiers: float  # classifier_consistency: of the same class's weight vector, mean over classes
    updates: float  # update_consistency: of what training changed in the encoder; 0 is unrelated, negative opposed


class Verdict(enum.Enum):
    """What a trial can say."""

    HELPS = "FedETF helps"
    MAY_HELP = "FedETF may help"
    NOT_NEEDED = "FedETF is not needed"
    WORSE = "FedETF is not needed, FedAvg is better"
    UNCLEAR = "not clear yet"
    DID_NOT_LEARN = "the trial did not learn"


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
    heterogeneity: Heterogeneity  # of the first seed's partition
    drift: Drift  # in the last round of the trial, mean over seeds
    seeds: list[int]
    general: dict[str, list[float]]  # method -> for each seed, mean of the last five rounds
    curves: dict[str, list[list[float]]]  # method -> for each seed, the general accuracy of every round
    test_samples: int
    chance: float  # what the most frequent class of the test set alone gives
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
    last_rounds: list[Round] = []  # of FedAvg
    first_job: Job | None = None
    for seed in seeds:
        for method in METHODS:
            measured = {"measure.collapse": True} if method == "fedavg" else {}
            chosen = resolve(preset, {**given, **measured, "seed": seed, "method.name": method}, trust_code)
            job = prepare(chosen, dataset=dataset)
            result = execute(job, None, (listeners or {}).get((method, seed), ()))
            assert result.general_last5 is not None
            general[method].append(result.general_last5)
            curves[method].append([r.general for r in result.rounds if r.general is not None])
            last_rounds += result.rounds[-1:] if method == "fedavg" else []
            first_job = first_job or job
    assert first_job is not None
    partition = first_job.partition
    skew = label_skew(partition.counts)
    samples = len(dataset.test)
    chance = int(torch.bincount(dataset.test.y).max()) / samples
    differences = [b - a for a, b in zip(general["fedavg"], general["fedetf"], strict=True)]
    return Diagnosis(
        settings=first,
        partition=partition,
        skew=skew,
        heterogeneity=heterogeneity(skew, partition, first_job.dataset, first.seed),
        drift=_drift(last_rounds),
        seeds=list(seeds),
        general=general,
        curves=curves,
        test_samples=samples,
        chance=chance,
        advice=advise(differences, any(learned(values, samples, chance) for values in general.values())),
    )


# --- advice -----------------------------------------------------------------------------------------------------------


def learned(accuracies: Sequence[float], samples: int, chance: float) -> bool:
    """Whether a method is above chance with most seeds, by a difference that matters; the test has so many samples."""
    above = [above_chance(accuracy, samples, chance + LEAST_GAIN) for accuracy in accuracies]
    return sum(above) > len(above) / 2


def advise(differences: Sequence[float], has_learned: bool = True) -> Advice:
    """What the differences FedETF − FedAvg of the seeds say, taken as draws from a normal distribution.

    Where neither has learned anything, they say nothing.
    """
    difference, n = statistics.mean(differences), len(differences)
    if n == 1:
        verdict = Verdict.UNCLEAR if has_learned else Verdict.DID_NOT_LEARN
        return Advice(verdict, difference, math.nan, math.nan, math.nan)
    error = max(statistics.stdev(differences) / math.sqrt(n), 1e-9)
    students = stats.t(n - 1, loc=difference, scale=error)
    low, high = students.interval(0.95)
    chance = float(students.sf(LEAST_GAIN))
    verdict = _verdict(difference, low, high, chance) if has_learned else Verdict.DID_NOT_LEARN
    return Advice(verdict, difference, float(low), float(high), chance)


def _verdict(difference: float, low: float, high: float, chance: float) -> Verdict:
    if low > 0 and difference >= LEAST_GAIN:
        return Verdict.HELPS
    if high < 0 and difference <= -LEAST_GAIN:
        return Verdict.WORSE
    if chance < UNLIKELY:
        return Verdict.NOT_NEEDED
    return Verdict.MAY_HELP if chance > 1 - UNLIKELY else Verdict.UNCLEAR


# --- drift ------------------------------------------------------------------------------------------------------------


def _drift(last_rounds: Sequence[Round]) -> Drift:
    """From what was measured in the last round of each seed."""

    def mean(name: str) -> float:
        values = [value for record in last_rounds if (value := record.measures[name]) is not None]
        return statistics.mean(values) if values else math.nan

    return Drift(mean("classifier_consistency"), mean("update_consistency"))
