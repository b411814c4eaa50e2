"""Which clients a method serves worse than none would: always the same answer, or training alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedetf.runs.read import Run
from fedetf.statistics import below

MODELS = {"general": "the global model", "personal": "the personal model"}
MAJORITY = "always answering the client's most frequent training class"
ALONE = "the client does alone (local)"

Bars = Mapping[int, Sequence[float | None]]  # by seed: a value for each client


@dataclass(frozen=True)
class Shortfall:
    """Who is below a bar with a model, in accuracy on the client's own test split."""

    model: str  # of MODELS
    bar: str  # MAJORITY or ALONE
    who: list[str]  # sites with in how many seeds; other clients with the seed, which decides what they hold


def shortfalls(runs: Sequence[Run], alone: Sequence[Run] = ()) -> list[Shortfall]:
    """Of a method's runs, one for each seed; ``alone`` are those of ``local`` in the same setting, on the same seeds.

    Only those with somebody to name.
    """
    majority = {run.seed: run.result.majority_per_client for run in runs}
    by_itself = {run.seed: run.result.personal_per_client for run in alone}
    candidates = [
        Shortfall(model, bar, _who(runs, model, bars))
        for model in MODELS
        for bar, bars in ((MAJORITY, majority), (ALONE, by_itself))
    ]
    return [shortfall for shortfall in candidates if shortfall.who]


def _who(runs: Sequence[Run], model: str, bars: Bars) -> list[str]:
    compared = [run for run in runs if run.seed in bars]
    low = [(run, client) for run in compared for client in below(_accuracies(run, model), bars[run.seed])]
    if not any(run.holdings.sites for run, _ in low):
        return [f"client {client}" + (f" (seed {run.seed})" if len(compared) > 1 else "") for run, client in low]
    times = Counter(run.holdings.sites[client] for run, client in low if client < len(run.holdings.sites))
    of = f" of {len(compared)} seeds)"
    return [name + ("" if len(compared) == 1 else f" ({count}{of}") for name, count in times.items()]


def _accuracies(run: Run, model: str) -> list[float | None]:
    result = run.result
    return result.personal_per_client if model == "personal" else result.per_client.general.get("accuracy", [])
