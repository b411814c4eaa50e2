"""Tables for the terminal."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import Markdown, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedetf.settings import LAST

if TYPE_CHECKING:
    from fedetf.data import Partition
    from fedetf.engines.job import Job
    from fedetf.outcome import Outcome

GAP = 2  # between columns
NARROWEST = 30  # characters of a line of text; with less, a table is hard to read


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash."""
    return "-" if value is None else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class PlainTable:
    """A table without frills, which never cuts a number or a word short.

    Only its widest column may wrap, and only while enough of it is left; on a narrower terminal each row becomes a
    paragraph. The columns named in ``right`` are aligned to the right; without ``headed``, no headings are shown.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    right: Collection[str] = ()
    headed: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        heads = self.columns if self.headed else [""] * len(self.columns)
        widths = [max(map(_width, column)) for column in zip(heads, *self.rows, strict=True)]
        widest = widths.index(max(widths))
        left = options.max_width - (sum(widths) - widths[widest]) - GAP * (len(widths) - 1)
        if left >= min(widths[widest], NARROWEST):
            yield self._as_table(widest)
        else:
            for row in self.rows:
                yield from self._as_paragraph(row)

    def _as_table(self, widest: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", show_header=self.headed)
        for k, column in enumerate(self.columns):
            justify: Literal["left", "right"] = "right" if column in self.right else "left"
            table.add_column(column, justify=justify, overflow="fold", no_wrap=k != widest)
        for row in self.rows:
            table.add_row(*row)
        return table

    def _as_paragraph(self, row: Sequence[str | Text]) -> Iterator[RenderableType]:
        first, *others = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        named = zip(self.columns[1:], others, strict=True)
        cells = [Text.assemble(f"{column}: " if column else "", cell) for column, cell in named if cell]
        yield Text.assemble((first.plain, "bold"))
        yield Padding(Text("; ").join(cells), (0, 0, 0, GAP), expand=False)


def _width(cell: str | Text) -> int:
    return cell_len(cell if isinstance(cell, str) else cell.plain)


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = (), headed: bool = True
) -> PlainTable:
    """See :class:`PlainTable`."""
    return PlainTable(columns, list(rows), set(right), headed)


class _FittingTable(TableElement):
    """A table of a page of Markdown, drawn like all others."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        header = self.header.row.cells if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        yield PlainTable([cell.content.plain for cell in header], rows)
        yield ""


class _Page(Markdown):
    elements: ClassVar = {**Markdown.elements, "table_open": _FittingTable}


def print_markdown(text: str, console: Console) -> None:
    """Show Markdown on a terminal; a file or another program gets it as it is."""
    if console.is_terminal:
        console.print(_Page(text))
    else:
        console.print(text, markup=False, soft_wrap=True)


def describe_job(job: "Job") -> str:
    """A run in one line."""
    s = job.settings
    clients = f"{len(job.partition)} clients, {s.data.describe()}"
    training = f"{s.train.describe()}, lr {s.train.lr:g}, batch {s.train.batch_size}"
    return f"{s.method.name} on {s.data.name}: {s.model.name}, {clients}, {training}, seed {s.seed}"


def result_table(job: "Job", outcome: "Outcome") -> PlainTable:
    """The result of one run, with what each number is."""
    partition = job.partition
    last = min(LAST, len(outcome.rounds))
    measured = sum(accuracy is not None for accuracy in outcome.personal)
    note = f"each on its own test split, mean of {measured} clients"
    if partition.single_class:
        note += f" ({partition.single_class} with one class only)"
    sent = outcome.bytes_up / len(partition.seen) / 2**20
    whose = "clients' own models, their mean" if job.method.measures_clients else "final global model"
    rows = [["general", percent(outcome.general), f"{whose} on the test set"]]
    if last > 1:
        rows.append([f"general, last {last}", percent(outcome.general_last5), f"mean of the last {last} rounds"])
    if outcome.personal:
        rows.append(["personal", percent(outcome.personal_mean), note])
    if outcome.unseen is not None:
        note = f"the same of {len(outcome.unseen.clients)} clients that never trained"
        rows.append(["unseen clients", percent(outcome.unseen.personal), note])
    rows.append(["sent per client", f"{sent:.3g} MiB", "mean over the clients, all rounds together"])
    return plain_table(["", "", ""], rows, headed=False)


def partition_table(partition: "Partition") -> PlainTable:
    """Who holds what: sizes, how many classes, and the largest ones, client by client."""
    rows = []
    for k, counts in enumerate(partition.counts):
        top = [c for c in np.argsort(-counts, kind="stable")[:3] if counts[c]]
        largest = ", ".join(f"{partition.classes[c]}: {counts[c]}" for c in top)
        classes_held = f"{int((counts > 0).sum())}/{len(counts)}"
        mark = " (unseen)" if k in partition.unseen else ""
        rows.append([partition.name(k) + mark, str(counts.sum()), str(len(partition.test[k])), classes_held, largest])
    numbers = ["client", "train", "test", "classes"]
    return plain_table([*numbers, "most of"], rows, right=numbers)


def bench_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
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
