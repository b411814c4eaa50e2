"""What it costs to reach a target, as rows of text: for the page, for table.md and for a terminal."""

from collections.abc import Sequence

from fedetf.comparison.judged import Entry
from fedetf.comparison.target import to_target
from fedetf.report.clients import DASH


def target_lead(target: float) -> str:
    """What the table means."""
    return (
        "What it takes until the general accuracy, as the mean of the last five measured rounds, reaches "
        f"{_percent(target)}: all clients together, means over seeds. Where some seeds do not reach it, the table says "
        "how many do. Seconds can be compared on one machine only."
    )


def target_rows(entries: Sequence[Entry], target: float) -> list[list[str]]:
    """Headings, then a row for each method."""
    several = len({entry.setting for entry in entries}) > 1
    heads = ["Method", *(["Setting"] if several else [])]
    rows = [[*heads, f"Rounds to {_percent(target)}", "MiB sent and received", "Image passes", "Seconds"]]
    for entry in entries:
        spent = to_target(entry.runs, target)
        if spent.mean is not None:
            cost = spent.mean
            cells = [f"{cost.rounds:.3g}", f"{cost.bytes / 2**20:,.3g}", f"{cost.image_passes:,.0f}"]
            cells.append(f"{cost.seconds:,.1f}")
        else:
            reached = f"reached by {spent.reached} of {spent.seeds} seeds" if spent.reached else "not reached"
            cells = [reached if spent.seeds else "no global model", DASH, DASH, DASH]
        rows.append([entry.name, *([entry.setting] if several else []), *cells])
    return rows


def _percent(target: float) -> str:
    return f"{100 * target:g} %"
