"""The curves of a page: what is drawn, what it means, and its values as mean and range over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedetf.report.groups import Arrangement
from fedetf.runs.read import Run

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


def _per_round(name: str) -> Callable[[Run], Values]:
    return lambda run: {r.round: v for r in run.rounds if (v := getattr(r, name)) is not None}


def _measure(name: str) -> Callable[[Run], Values]:
    return lambda run: {r.round: v for r in run.rounds if (v := r.measures.get(name)) is not None}


def _finetuning(run: Run) -> Values:
    return {step: v for step, v in enumerate(run.result.personal_curve) if v is not None}


ACCURACY = Chart(
    "general",
    "General accuracy",
    "The global model on the test set after each round. Higher is better.",
    _per_round("general"),
    percent=True,
)
LOSS = Chart(
    "loss",
    "Training loss",
    "Mean loss of the clients' local training. Methods train different losses, so compare a method with itself only.",
    _per_round("loss"),
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

# What the measures are called, in the order in which they are shown; the first six stand on the page itself.
MEASURES = {
    "nc2": (
        "Neural-collapse error (NC2)",
        "How far the class means are from a simplex ETF, the arrangement with the widest equal angles. 0 is perfect;"
        " lower is better.",
    ),
    "prototype_consistency": (
        "Prototype consistency",
        "Do clients place a class in the same direction of feature space? 1 is full agreement; higher is better.",
    ),
    "classifier_consistency": (
        "Classifier consistency",
        "Do clients' classifiers point the same way, class by class? This is classifier bias, turned round: 1 is no"
        " bias; higher is better. A fixed classifier has 1 by construction.",
    ),
    "model_consistency": (
        "Local model consistency",
        "How alike the clients' encoders are after local training. 1 is identical; higher means less drift.",
    ),
    "nc1_ratio": (
        "Within-class variability (NC1)",
        "Spread inside classes over spread between them. 0 is full collapse; lower is better.",
    ),
    "nc3_cos": (
        "Alignment of features and classifier (NC3)",
        "Cosine between each class mean and its classifier vector. 1 is aligned; higher is better.",
    ),
    "nc2_uncentred": (
        "Neural-collapse error, class means not centred",
        "As in the paper's Figure 5b; features that are never negative cannot reach 0. Lower is better.",
    ),
    "prototype_consistency_raw": (
        "Prototype consistency of the encoder's features",
        "Of h for every method, FedETF's included; higher is better.",
    ),
    "prototype_consistency_centred": (
        "Prototype consistency, centred",
        "What is common to all classes of a client does not count; higher is better.",
    ),
    "nc1_trace": ("Spread within classes (NC1)", "Depends on the scale of features; lower is better."),
    "nc1_pinv": ("Within-class variability, whitened (NC1)", "Lower is better."),
    "nc1_cos": ("Cosine of features to their class mean (NC1)", "1 is full collapse; higher is better."),
    "nc2_norm": ("Unequal lengths of class means (NC2)", "Coefficient of variation; 0 is equal, lower is better."),
    "nc3_dual": ("Distance of features and classifier (NC3)", "0 is self-dual, 4 opposite; lower is better."),
    "classifier_consistency_flat": ("Classifier consistency, whole matrix", "1 is equal; higher is better."),
    "update_consistency": ("Consistency of updates", "1: all clients move the same way; higher is better."),
    "drift": ("Drift", "Length of a client's update relative to the model; lower is less drift."),
    "nc_singletons": ("Classes with a single sample", "They have no spread, and count in NC1 as such."),
    "nc2_classes": (
        "Class means with a direction",
        "What the neural-collapse error rests on; with two it is always 0.",
    ),
    "prototypes_left_out": ("Class means of clients without a direction", "Left out of prototype consistency."),
    "updates_left_out": ("Clients whose training changed nothing", "Left out of the consistency of updates."),
    "nc_classes": ("Classes in the test set", "What the neural-collapse measures rest on."),
    "prototype_classes": ("Classes with two holders or more", "What prototype consistency rests on."),
}
_ON_THE_PAGE = 6


def measure_charts(arranged: Arrangement) -> tuple[list[Chart], list[Chart]]:
    """Charts of the measures that the runs have: those of the page, and those of its fold-out."""
    there = {
        n for g in arranged.groups for run in g.runs for r in run.rounds for n, v in r.measures.items() if v is not None
    }
    known = [name for name in MEASURES if name in there]
    main = list(MEASURES)[:_ON_THE_PAGE]
    charts = {name: Chart(f"measure:{name}", *MEASURES[name], _measure(name)) for name in known}
    for name in sorted(there - set(MEASURES)):
        charts[name] = Chart(f"measure:{name}", name, "", _measure(name))
    return [c for n, c in charts.items() if n in main], [c for n, c in charts.items() if n not in main]


def curve(runs: Sequence[Run], of: Callable[[Run], Values]) -> dict[str, Any] | None:
    """Mean, lowest and highest over the seeds, at the rounds that all of them have; None if there is nothing."""
    seeds = [values for values in map(of, runs) if values]
    if not seeds:
        return None
    rounds = thinned(sorted(set.intersection(*(set(values) for values in seeds))))
    columns = [[values[t] for values in seeds] for t in rounds]
    drawn: dict[str, Any] = {"x": rounds, "mean": [short(sum(column) / len(column)) for column in columns]}
    if len(seeds) > 1:
        drawn["low"] = [short(min(column)) for column in columns]
        drawn["high"] = [short(max(column)) for column in columns]
    return {**drawn, "seeds": len(seeds)} if rounds else None


def thinned(rounds: Sequence[int]) -> list[int]:
    """At most so many, evenly spaced, the first and the last among them.

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
