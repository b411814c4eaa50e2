"""What is odd about the data of sites and may be a slip of the pen: said in a line, and nothing is dropped for it."""

from collections.abc import Iterator

import numpy as np
import torch

from fedetf.data.kinds import TableNote
from fedetf.data.partition import Partition
from fedetf.data.samples import Dataset
from fedetf.errors import printable

MOST = 5  # that are named; of the rest it is said how many
MANY = 20  # rows; in fewer, words may all differ by chance


def oddities(dataset: Dataset, partition: Partition) -> list[str]:
    """Lines for classes that only one of several sites has, columns without a value at a site, and names of rows."""
    if len(partition.sites) < 2:
        return []
    lonely, empty = list(_lonely_classes(dataset, partition)), list(_empty_columns(dataset, partition))
    names = list(_names_of_rows(dataset, partition))
    lines = []
    if lonely:
        lines.append(f"at one site only: {_some(lonely)}; if that is a slip of the pen, mend it")
    if empty:
        lines.append(f"without a single value, taken for missing: {_some(empty)}")
    if names:
        lines.append(f"another word in every row: {_some(names)}; {NAME_OF_A_ROW}")
    return lines


NAME_OF_A_ROW = "if it names the row, leave it out: data.leave_out"


def is_name_of_a_row(words: int, rows: int) -> bool:
    """Whether so many different words in so many rows are as good as names: nothing to learn, and told to all."""
    return words == rows >= MANY


def _lonely_classes(dataset: Dataset, partition: Partition) -> Iterator[str]:
    labels, C = dataset.train.y.numpy(), len(dataset.classes)
    counts = np.stack([np.bincount(labels[partition.everything(k)], minlength=C) for k in range(len(partition))])
    for c in np.flatnonzero((counts > 0).sum(axis=0) == 1):
        site = int(counts[:, c].argmax())
        yield f"the class {dataset.classes[c]!r} ({partition.name(site)}, samples: {counts[site, c]})"


def _empty_columns(dataset: Dataset, partition: Partition) -> Iterator[str]:
    note = dataset.note
    if not isinstance(note, TableNote) or note.prepared:
        return
    for k in range(len(partition)):
        nowhere = dataset.train.x[torch.from_numpy(partition.everything(k))].isnan().all(dim=0)
        names = [column.name for column, empty in zip(note.columns, nowhere.tolist(), strict=True) if empty]
        if names:
            yield f"{', '.join(names)} at {partition.name(k)}"


def _names_of_rows(dataset: Dataset, partition: Partition) -> Iterator[str]:
    note = dataset.note
    if not isinstance(note, TableNote) or note.prepared:
        return
    for k in range(len(partition)):
        rows = dataset.train.x[torch.from_numpy(partition.everything(k))]
        for column, cells in zip(note.columns, rows.T, strict=True):
            there = cells[cells >= 0]  # neither missing nor, as in a row that is held out, unseen in training
            if column.categories is not None and is_name_of_a_row(len(there.unique()), len(there)):
                yield f"{column.name} at {partition.name(k)}"


def _some(what: list[str]) -> str:
    more = f" and {len(what) - MOST} more" if len(what) > MOST else ""
    return printable("; ".join(what[:MOST]), 1000) + more
