"""How the clients of each method fare, as rows of text: for the page, for table.md and for a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedetf.comparison.fairness import LOCAL, Fairness, Worst, fairness
from fedetf.comparison.judged import Entry
from fedetf.comparison.shortfall import MAJORITY, MODELS, Shortfall, shortfalls
from fedetf.runs.read import Run
from fedetf.statistics import Spread, below

if TYPE_CHECKING:
    from fedetf.engines.job import Job
    from fedetf.outcome import Outcome

DASH = "–"
MOST_CLASSES = 3  # of those that a client holds are named
MOST_CLIENTS = 10  # of those who are below something are named

LEAD = (
    "Personal accuracy is a mean over clients; here is how far they lie apart, each on its own test split. Values are "
    "means over seeds. The worst tenth is the mean of that many clients, at least one."
)
ALONE = "Worse off counts the clients that reach less than by training alone (local), on the same seeds."
UNSEEN = (
    "Unseen clients never trained; the first value is the global model as they receive it, the second their own model "
    "after the personal stage."
)


def lead(entries: Sequence[Entry]) -> str:
    """What the table means, as far as it has it."""
    parts = [LEAD, *([ALONE] if _alone(entries) else []), *([UNSEEN] if _has_unseen(entries) else [])]
    return " ".join(parts)


def client_rows(entries: Sequence[Entry]) -> list[list[str]]:
    """Headings, then a row for each method that has personal models; nothing if none has."""
    alone, unseen = _alone(entries), _has_unseen(entries)
    several = len({entry.setting for entry in entries}) > 1
    rows = []
    for entry, spread in zip(entries, fairness_of(entries), strict=True):
        if spread is not None:
            cells = [f"{100 * spread.worst_decile:.2f}", " / ".join(f"{100 * q:.1f}" for q in spread.quartiles)]
            cells += [_worse_off(spread)] if alone else []
            cells += [_unseen(entry.runs)] if unseen else []
            rows.append([entry.name, *([entry.setting] if several else []), *cells, describe_worst(spread.worst)])
    heads = ["Method", *(["Setting"] if several else []), "Worst tenth, %", "Quartiles, %"]
    heads += [*(["Worse off than alone"] if alone else []), *(["Unseen clients, %"] if unseen else []), "Worst client"]
    return [heads, *rows] if rows else []


def fairness_of(entries: Sequence[Entry]) -> list[Fairness | None]:
    """How the clients of each fare, against those of ``local`` in the same setting."""
    return [fairness(entry.runs, rival) for entry, rival in zip(entries, _rivals(entries), strict=True)]


def shortfall_lines(entries: Sequence[Entry]) -> list[str]:
    """A sentence for each method and bar that some clients are below, which names them."""
    several = len({entry.setting for entry in entries}) > 1
    return [
        f"{entry.name}{f' ({entry.setting})' if several else ''}: {_shortfall(shortfall)}"
        for entry, rival in zip(entries, _rivals(entries), strict=True)
        for shortfall in shortfalls(entry.runs, rival)
    ]


def below_majority(job: "Job", outcome: "Outcome", majority: Sequence[float | None]) -> list[str]:
    """The same of one run that has just ended; ``majority`` is what a constant answer reaches at each client."""
    sites = job.partition.sites
    reached = {model: outcome.per_client.get(model, {}).get("accuracy", []) for model in MODELS}
    low = {model: below(values, majority) for model, values in reached.items()}
    named = {
        model: [sites[client] if sites else f"client {client}" for client in clients] for model, clients in low.items()
    }
    return [_shortfall(Shortfall(model, MAJORITY, who)) for model, who in named.items() if who]


def _shortfall(shortfall: Shortfall) -> str:
    more = len(shortfall.who) - MOST_CLIENTS
    who = ", ".join(shortfall.who[:MOST_CLIENTS]) + (f" and {more} more" if more > 0 else "")
    return f"{MODELS[shortfall.model]} does worse than {shortfall.bar}, at {who}"


def _rivals(entries: Sequence[Entry]) -> list[Sequence[Run]]:
    """For each, the runs of ``local`` in the same setting; for ``local`` itself none."""
    alone = _alone(entries)
    return [() if is_alone(entry) else alone.get(entry.setting, ()) for entry in entries]


def describe_worst(worst: Worst) -> str:
    """Who it is, and what it holds: most of all classes, and how many more there are."""
    named = [f"{name} ({number:,})" for name, number in worst.held[:MOST_CLASSES]]
    more = len(worst.held) - MOST_CLASSES
    holds = f", trains on class {', '.join(named)}{f' and {more} more' if more > 0 else ''}" if named else ""
    return f"{worst.name}, seed {worst.seed}: {100 * worst.accuracy:.1f} %{holds}"


def _alone(entries: Sequence[Entry]) -> dict[str, Sequence[Run]]:
    """The runs of ``local``, by setting."""
    return {entry.setting: entry.runs for entry in entries if is_alone(entry)}


def is_alone(entry: Entry) -> bool:
    """Whether these are the runs in which each client trains alone."""
    return any(run.settings["method.name"] == LOCAL for run in entry.runs)


def _worse_off(fairness: Fairness) -> str:
    if fairness.worse_off is None or fairness.compared is None:
        return DASH
    return f"{fairness.worse_off:.3g} of {fairness.compared:.3g}"


def _has_unseen(entries: Sequence[Entry]) -> bool:
    return any(run.result.unseen for entry in entries for run in entry.runs)


def _unseen(runs: Sequence[Run]) -> str:
    """Before and after their personal stage, means over seeds."""
    there = [run.result.unseen for run in runs if run.result.unseen is not None]
    columns = [[each.general for each in there], [each.personal for each in there]]
    spreads = [Spread.of(value for value in column if value is not None) for column in columns]
    return " → ".join(DASH if spread is None else f"{100 * spread.mean:.2f}" for spread in spreads)
