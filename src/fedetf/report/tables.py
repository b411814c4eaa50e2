"""Tables for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from fedetf.data import Partition
from fedetf.engines.job import Job
from fedetf.outcome import Outcome
from fedetf.settings import LAST


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash."""
    return "-" if value is None else f"{100 * value:.1f} %"


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> Table:
    """A table without frills; the columns named in ``right`` are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in set(right) else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def describe_job(job: Job) -> str:
    """A run in one line."""
    s = job.settings
    held = f"{len(job.partition)} clients, {s.data.describe()}"
    training = f"{s.train.describe()}, lr {s.train.lr:g}, batch {s.train.batch_size}"
    return f"{s.method.name} on {s.data.name}: {s.model.name}, {held}, {training}, seed {s.seed}"


def result_table(job: Job, outcome: Outcome) -> Table:
    """The result of one run, with what each number is."""
    partition = job.partition
    last = min(LAST, len(outcome.rounds))
    measured = sum(accuracy is not None for accuracy in outcome.personal)
    note = f"each on its own test split, mean of {measured} clients"
    if partition.single_class:
        note += f" ({partition.single_class} with one class only)"
    sent = outcome.bytes_up / len(partition) / 2**20
    rows = [["general", percent(outcome.general), "final global model on the test set"]]
    if last > 1:
        rows.append([f"general, last {last}", percent(outcome.general_last5), f"mean of the last {last} rounds"])
    if outcome.personal:
        rows.append(["personal", percent(outcome.personal_mean), note])
    rows.append(["sent per client", f"{sent:.3g} MiB", "mean over all clients, all rounds together"])
    table = plain_table(["", "", ""], rows)
    table.show_header = False
    return table


def partition_table(partition: Partition) -> Table:
    """Who holds what: sizes, how many classes, and the largest ones, client by client."""
    rows = []
    for k, counts in enumerate(partition.counts):
        top = [c for c in np.argsort(-counts, kind="stable")[:3] if counts[c]]
        largest = ", ".join(f"{partition.classes[c]}: {counts[c]}" for c in top)
        held = int((counts > 0).sum())
        rows.append(
            [partition.name(k), str(counts.sum()), str(len(partition.test[k])), f"{held}/{len(counts)}", largest]
        )
    numbers = ["client", "train", "test", "classes"]
    return plain_table([*numbers, "most of"], rows, right=numbers)


def bench_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What ``fedetf bench`` measured."""
    shown = [
        [
            row["name"],
            f"{row['value']:,.0f}" if row["value"] >= 100 else f"{row['value']:.3g}",
            row["unit"],
            "" if row["ratio"] is None else f"{row['ratio']:.2f}" if row["ratio"] >= 0.1 else f"{row['ratio']:.4f}",
            row["against"] and f"× {row['against']}",
        ]
        for row in rows
    ]
    return plain_table(["what", "measured", "unit", "ratio", "against"], shown, right=["measured", "ratio"])
