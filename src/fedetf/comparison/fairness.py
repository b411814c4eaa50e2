"""How a method treats its clients: how far they lie apart, who is worst off, and who would do better alone."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedetf.runs.read import Run
from fedetf.statistics import describe_clients

LOCAL = "local"  # the method in which each client trains alone


@dataclass(frozen=True)
class Worst:
    """The client with the lowest personal accuracy."""

    seed: int
    name: str
    accuracy: float
    held: list[tuple[str, int]]  # classes it trains on and how many samples of each, most first; empty if not known


@dataclass(frozen=True)
class Fairness:
    """Personal accuracy over clients, as fractions: means over the seeds of a method in one setting."""

    worst_decile: float  # the mean of the worst tenth
    quartiles: tuple[float, float, float]
    worst: Worst  # of all seeds
    worse_off: float | None  # how many clients are below what they reach alone; None if that was not run
    compared: float | None  # of so many


def by_name(fairness: Fairness | None) -> dict[str, float | None]:
    """The same as columns of a table; None where there is none."""
    names = ("personal_worst_decile", "personal_quartile1", "personal_median", "personal_quartile3")
    if fairness is None:
        return dict.fromkeys([*names, "worse_off_than_local"])
    values = (fairness.worst_decile, *fairness.quartiles)
    return {**dict(zip(names, values, strict=True)), "worse_off_than_local": fairness.worse_off}


def fairness(runs: Sequence[Run], alone: Sequence[Run] = ()) -> Fairness | None:
    """Of a method's runs, one for each seed; ``alone`` are those of ``local`` in the same setting.

    Clients are compared with themselves, on the seeds that both have: a seed decides who holds what. None without any
    personal accuracy.
    """
    measured = [run for run in runs if accuracies(run)]
    if not measured:
        return None
    spreads = [describe_clients(list(accuracies(run).values())) for run in measured]
    low, middle, high = (statistics.mean(spread.quartiles[place] for spread in spreads) for place in range(3))
    by_seed = {run.seed: run for run in alone}
    pairs = [_worse_off(run, by_seed[run.seed]) for run in measured if run.seed in by_seed]
    worse, compared = zip(*pairs, strict=True) if pairs else ((), ())
    return Fairness(
        worst_decile=statistics.mean(spread.worst_decile for spread in spreads),
        quartiles=(low, middle, high),
        worst=min((_worst(run) for run in measured), key=lambda worst: worst.accuracy),
        worse_off=statistics.mean(worse) if pairs else None,
        compared=statistics.mean(compared) if pairs else None,
    )


def accuracies(run: Run) -> dict[int, float]:
    """Personal accuracy by client, of those that took part and have a test split."""
    return {client: value for client, value in enumerate(run.result.personal_per_client) if value is not None}


def _worse_off(run: Run, alone: Run) -> tuple[int, int]:
    """How many clients are below what they reach alone, and how many could be compared."""
    here, there = accuracies(run), accuracies(alone)
    both = here.keys() & there.keys()
    return sum(here[client] < there[client] for client in both), len(both)


def _worst(run: Run) -> Worst:
    reached = accuracies(run)
    client = min(reached, key=lambda each: reached[each])  # of equals the first
    holdings = run.holdings
    counts = holdings.clients[client].counts if client < len(holdings.clients) else []
    most_first = sorted(zip(holdings.classes, counts, strict=False), key=lambda pair: -pair[1])
    name = holdings.sites[client] if client < len(holdings.sites) else f"client {client}"
    return Worst(run.seed, name, reached[client], [(name, number) for name, number in most_first if number])
