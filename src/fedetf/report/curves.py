"""The curves of a page: what is drawn, what it means, and its values as mean and range over seeds."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedetf.comparison.fairness import accuracies
from fedetf.metrics import QUANTITIES, Accuracy
from fedetf.report.groups import Arrangement
from fedetf.runs.read import Run
from fedetf.runs.records import RoundLine

MOST_POINTS = 250  # of a curve; more cannot be told apart on a screen

Values = Mapping[int, float]  # round (or step) -> value, of one run


@dataclass(frozen=True)
class Chart:
    """A chart: what it is called, and what is better."""

    key: str
    title: str
    caption: str
    of: Callable[[Run], Values]
    x: str = "round"
    percent: bool = False
    along: Callable[[Run], Values] | None = None  # what a round had cost so far, where that is drawn instead of rounds


def _per_round(metric: str) -> Callable[[Run], Values]:
    """What tables report of a round: of the completed model, where a method completes it."""
    return lambda run: {r.round: v for r in run.rounds if (v := r.value(metric)) is not None}


def _loss(run: Run) -> Values:
    return {r.round: r.loss for r in run.rounds if r.loss is not None}


def _so_far(run: Run, cost: Callable[[RoundLine], float]) -> Values:
    """What the rounds up to each had cost together."""
    return dict(enumerate(itertools.accumulate(map(cost, run.rounds)), start=1))


def _finetuning(run: Run) -> Values:
    return {step: v for step, v in enumerate(run.result.personal_curve) if v is not None}


ACCURACY = Chart(
    "general",
    "General accuracy",
    "The global model on the test set after each round. Higher is better.",
    _per_round("general"),
    percent=True,
)
OVER_BYTES = Chart(
    "general:bytes",
    "General accuracy over what was sent",
    "MiB that all clients together had sent and received by the end of a round. Further left is cheaper.",
    _per_round("general"),
    x="MiB",
    percent=True,
    along=lambda run: {t: total / 2**20 for t, total in _so_far(run, lambda r: r.bytes_up + r.bytes_down).items()},
)
OVER_PASSES = Chart(
    "general:passes",
    "General accuracy over image passes",
    "Images that all clients together had trained on, every pass counted. Further left is cheaper.",
    _per_round("general"),
    x="thousand image passes",
    percent=True,
    along=lambda run: {t: total / 1000 for t, total in _so_far(run, lambda r: r.images).items()},
)
CLIENTS = Chart(
    "clients",
    "Personal accuracy, client by client",
    "Clients from the worst to the best, each on its own test split; a flat line treats all alike. Over several seeds, "
    "the mean of the clients at the same place.",
    lambda run: dict(enumerate(sorted(accuracies(run).values()), start=1)),
    x="client",
    percent=True,
)
LOSS = Chart(
    "loss",
    "Training loss",
    "Mean loss of the clients' local training. Methods train different losses, so compare a method with itself only.",
    _loss,
)
FINETUNING = Chart(
    "finetuning",
    "Personal accuracy, step by step",
    "Step 0 is the global model, step 1 follows the tuning of the feature extractor, and each further step is one turn"
    " of classifier and projection. Mean over clients, each on its own test split. Higher is better.",
    _finetuning,
    x="step",
    percent=True,
)

# What is charted round by round besides accuracy, in the order in which it is shown; some stand on the page itself.
MEASURES = {quantity.name: quantity for quantity in QUANTITIES if quantity.name != Accuracy.name}


def measure_charts(arranged: Arrangement) -> tuple[list[Chart], list[Chart]]:
    """Charts of the measures that the runs have: those of the page, and those of its fold-out."""
    there = {
        n for g in arranged.groups for run in g.runs for r in run.rounds for n, v in r.measures.items() if v is not None
    }
    known = [name for name in MEASURES if name in there]
    main = [name for name, quantity in MEASURES.items() if quantity.main]
    charts = {
        name: Chart(f"measure:{name}", MEASURES[name].title, MEASURES[name].caption, _per_round(name)) for name in known
    }
    for name in sorted(there - set(MEASURES)):
        charts[name] = Chart(f"measure:{name}", name, "", _per_round(name))
    return [c for n, c in charts.items() if n in main], [c for n, c in charts.items() if n not in main]


def curve(
    runs: Sequence[Run], of: Callable[[Run], Values], along: Callable[[Run], Values] | None = None
) -> dict[str, Any] | None:
    """Mean, lowest and highest over the seeds, at the rounds that all of them have; None if there is nothing.

    ``along`` puts a round where its cost is, the mean over seeds, instead of at its number.
    """
    having = [(run, values) for run in runs if (values := of(run))]
    seeds = [values for _, values in having]
    if not seeds:
        return None
    rounds = thinned(sorted(set.intersection(*(set(values) for values in seeds))))
    columns = [[values[t] for values in seeds] for t in rounds]
    places = rounds if along is None else _mean_cost([run for run, _ in having], along, rounds)
    drawn: dict[str, Any] = {"x": places, "mean": [short(sum(column) / len(column)) for column in columns]}
    if len(seeds) > 1:
        drawn["low"] = [short(min(column)) for column in columns]
        drawn["high"] = [short(max(column)) for column in columns]
    return {**drawn, "seeds": len(seeds)} if rounds else None


def _mean_cost(runs: Sequence[Run], along: Callable[[Run], Values], rounds: Sequence[int]) -> list[float]:
    costs = [along(run) for run in runs]
    return [short(sum(cost[t] for cost in costs) / len(costs)) for t in rounds]


def thinned(rounds: Sequence[int]) -> list[int]:
    """At most :data:`MOST_POINTS` of them, evenly spaced, the first and the last among them.

    >>> len(thinned(range(10_000))), thinned(range(10_000))[0], thinned(range(10_000))[-1]
    (250, 0, 9999)
    """
    if len(rounds) <= MOST_POINTS:
        return list(rounds)
    last = len(rounds) - 1
    return [rounds[i * last // (MOST_POINTS - 1)] for i in range(MOST_POINTS)]


def short(value: float) -> float:
    """A number with as many digits as a chart can show."""
    return float(f"{value:.5g}")
