"""Tables: numbers are standardised, missing ones imputed and flagged; categories have a slot each, and one for others.

A raw input is a row of float64, one number for each column: the number itself, or the position of a category in its
list; NaN is missing, −1 a category that was not seen in training.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedetf.data.decode import class_name
from fedetf.data.frames import MOST_COLUMNS, Frame, number
from fedetf.data.kinds.base import (
    MOST_CATEGORIES,
    ColumnSums,
    Note,
    Raw,
    Seen,
    Spread,
    Sums,
    Word,
    column_sums,
    spread_of,
)
from fedetf.errors import UserError, printable
from fedetf.settings import DataSettings

UNKNOWN = -1.0
LARGEST = 1e30  # of a number: a model counts in float32, where larger ones may have no end, and so no probability


class Column(Seen):
    """One column of a table, and what training has seen of it."""

    name: Word
    categories: Annotated[list[Word], Field(max_length=MOST_CATEGORIES)] | None = None  # None: a column of numbers
    missing: bool = False  # whether values were missing in training: only then there is a flag for it

    def code(self, value: Any, where: str) -> float:
        """A cell as a number of the raw input."""
        if value is None:
            return math.nan
        if self.categories is not None:
            known = class_name(value)
            return float(self.categories.index(known)) if known in self.categories else UNKNOWN
        parsed = number(value) if isinstance(value, str) else float(value) if isinstance(value, SupportsFloat) else None
        if parsed is None or not math.isfinite(parsed):
            shown = printable(str(value), 40)
            raise UserError(f"{where}: {shown!r} in the column {self.name!r} is not a number; fix it or leave it empty")
        if abs(parsed) > LARGEST:
            shown = f"{parsed:g} in the column {self.name!r} is too large a number for a model"
            raise UserError(f"{where}: {shown}; fix it or leave it empty")
        return parsed


class TableNote(Note):
    """The columns that a model takes, in their order."""

    encoder = "mlp"
    kind: Literal["table"] = "table"
    columns: Annotated[list[Column], Field(min_length=1, max_length=MOST_COLUMNS)]

    @model_validator(mode="after")
    def _check_names(self) -> "TableNote":
        names = {column.name for column in self.columns}
        if len(names) < len(self.columns) or "" in names:
            raise ValueError("columns without names of their own")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """One number for each column."""
        return (len(self.columns),)

    @property
    def dtype(self) -> torch.dtype:
        """Numbers as a file or a data frame has them."""
        return torch.float64

    @property
    def blocks(self) -> tuple[int, ...]:
        """One for each column of categories: a slot for what is unknown or missing, then one for each."""
        return tuple(len(c.categories) + 1 for c in self.columns if c.categories is not None)

    @property
    def numbers(self) -> Tensor:
        """The columns of numbers."""
        return torch.tensor([column.categories is None for column in self.columns])

    @classmethod
    def begin(cls, frame: Frame, columns: Sequence[str], settings: DataSettings) -> "TableNote":
        """Columns of numbers, and columns of words with the words that are in them."""
        for name in settings.categories:
            frame.check(name)
        return cls(columns=[_found(frame, name, name in settings.categories) for name in columns])

    @classmethod
    def of_numbers(cls, count: int) -> "TableNote":
        """Columns of numbers without names of their own."""
        return cls(columns=[Column(name=f"x{i}") for i in range(count)])

    def read(self, frame: Frame) -> Raw:
        """Rows as float64 ``[n, columns]``; columns that the note does not name are left alone."""
        block = np.empty((len(frame), len(self.columns)), np.float64)
        for j, column in enumerate(self.columns):
            if column.name not in frame.columns:
                how = "add it, with empty cells where its values are not known"
                raise UserError(f"{frame.where} has no column {column.name!r}, which the model takes; {how}")
            values = frame.values(column.name)
            block[:, j] = [column.code(v, frame.row(i)) for i, v in enumerate(values)]
        return Raw(torch.from_numpy(block), np.arange(len(frame)))

    def strange(self, x: Tensor) -> dict[str, int]:
        """Those that have no slot of their own."""
        counts = {
            column.name: int((x[:, j] == UNKNOWN).sum())
            for j, column in enumerate(self.columns)
            if column.categories is not None
        }
        return {name: count for name, count in counts.items() if count}

    def sums(self, x: Tensor) -> Sums:
        """Counts, sums, squares and ranges of numbers; the categories that occur."""
        cells = zip(self.columns, x.numpy().T, strict=True)
        return Sums(kind=self.kind, rows=len(x), columns=[_sums(column, values) for column, values in cells])

    @classmethod
    def fit(cls, parts: Sequence[Sums], settings: DataSettings) -> "TableNote":
        """All columns that some client has, in the order in which they come up."""
        names = list(dict.fromkeys(column.name for part in parts for column in part.columns))
        told = [{column.name: column for column in reversed(part.columns)} for part in parts]
        return cls(columns=[_column(name, parts, told) for name in names])

    def with_own(self, own: Sums) -> "TableNote":
        """Columns of numbers by one client's means and standard deviations; one that it has no value of stays."""
        told = {column.name: spread_of([column]) for column in own.columns if column.categories is None}
        columns = [
            c if c.categories is not None else c.model_copy(update=vars(told.get(c.name, Spread())))
            for c in self.columns
        ]
        return self.model_copy(update={"columns": columns})

    def recoded(self, x: Tensor, fitted: Note) -> Tensor:
        """With the fitted note's columns and positions of categories; a column that is not here is missing."""
        assert isinstance(fitted, TableNote)
        mine = {column.name: (column, x[:, j]) for j, column in enumerate(self.columns)}
        missing = torch.full((len(x),), torch.nan, dtype=torch.float64)
        return torch.stack([_recoded(*mine.get(c.name, (c, missing)), c) for c in fitted.columns], dim=1)

    def preparing(self) -> nn.Module:
        """Raw rows to standardised ones."""
        return Standardise(self.columns)

    def sentence(self, named: bool) -> str:
        """Rows, or columns by name."""
        if named:
            what = "double for numbers, NaN for a missing one; text for categories, empty for a missing one"
            return f"one `[n, 1]` for each column, by its name: {what}; raw, as below."
        codes = "; a category by its place in its list, from 0, −1 for another" if self.blocks else ""
        return f"`[n, {len(self.columns)}]` float64, raw rows with these columns in this order, NaN for missing{codes}."

    def describe(self) -> list[list[str]]:
        """Name, kind and what was seen of each column."""
        rows = [["column", "holds", "seen in training", "missing in training"]]
        for c in self.columns:
            seen = c.in_words if c.categories is None else ", ".join(c.categories) or "-"
            kind = "number, unit unknown" if c.categories is None else "category, as text"
            rows.append([c.name, kind, seen, "yes" if c.missing else "no"])
        return rows


class Standardise(nn.Module):
    """Raw rows ``[n, columns]`` float64 -> float32 ``[n, numbers + flags + slots]``, in this order.

    Numbers are (x − mean)/std, computed in double precision; a missing one is 0, the mean, and has its flag set.
    """

    mean: Tensor
    std: Tensor
    numbers: Tensor
    flagged: Tensor

    def __init__(self, columns: Sequence[Column]):
        super().__init__()
        numbers = [j for j, c in enumerate(columns) if c.categories is None]
        buffers = {
            "numbers": torch.tensor(numbers, dtype=torch.int64),
            "mean": torch.tensor([columns[j].mean for j in numbers], dtype=torch.float64),
            "std": torch.tensor([columns[j].std for j in numbers], dtype=torch.float64),
            "flagged": torch.tensor([i for i, j in enumerate(numbers) if columns[j].missing], dtype=torch.int64),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)  # the note in the model's file has them
        self.slots = [(j, len(c.categories)) for j, c in enumerate(columns) if c.categories is not None]

    def forward(self, x: Tensor) -> Tensor:
        """Prepare one batch."""
        raw = x.index_select(1, self.numbers)
        missing = raw.isnan()
        z = torch.where(missing, 0.0, (raw - self.mean) / self.std)
        parts = [z, missing.index_select(1, self.flagged).to(z.dtype)]
        for j, count in self.slots:
            codes = x[:, j : j + 1]
            known = codes == torch.arange(count, dtype=x.dtype, device=x.device)  # NaN equals none
            parts += [1 - known.to(x.dtype).sum(dim=1, keepdim=True), known.to(x.dtype)]
        return torch.cat(parts, dim=1).to(torch.float32)


def _found(frame: Frame, name: str, as_categories: bool) -> Column:
    content = frame.holds[frame.check(name)]
    if content in ("number", "classes") and not as_categories:
        return Column(name=name)
    if content not in ("words", "number", "classes"):
        raise UserError(f"{frame.where}: the column {name!r} is not for tables; --set data.leave_out={name}")
    words = sorted({class_name(value) for value in frame.values(name) if value is not None})
    if len(words) > MOST_CATEGORIES or (words and len(max(words, key=len)) > 1_000):
        raise UserError(
            f"{frame.where}: the column {name!r} has {len(words):,} different texts, too many or too long for "
            f"categories; leave it out, --set data.leave_out={name}, or learn from it alone, --set data.kind=text"
        )
    return Column(name=name, categories=words)


def _sums(column: Column, values: NDArray[np.float64]) -> ColumnSums:
    if column.categories is None:
        return column_sums(column.name, values)
    missing = np.isnan(values)
    codes = np.unique(values[~missing]).astype(np.int64)
    words = [column.categories[code] for code in codes.tolist() if code >= 0]
    return ColumnSums(name=column.name, count=int((~missing).sum()), missing=int(missing.sum()), categories=words)


def _column(name: str, parts: Sequence[Sums], by_name: Sequence[dict[str, ColumnSums]]) -> Column:
    """A column as all clients together have it; a client without the column misses all of its values."""
    told = [columns.get(name) for columns in by_name]
    mine = [column for column in told if column is not None]
    missing = any(
        part.rows > 0 if column is None else column.missing > 0 for part, column in zip(parts, told, strict=True)
    )
    lists = [column.categories for column in mine if column.categories is not None]
    if not lists:
        spread = spread_of(mine)
        return Column(name=name, mean=spread.mean, std=spread.std, missing=missing, low=spread.low, high=spread.high)
    if any(column.categories is None and column.count for column in mine):
        how = "make it the same everywhere, or name it in data.categories"
        raise UserError(f"the column {name!r} holds numbers at some sites and words at others; {how}")
    words = sorted({word for words in lists for word in words})
    if len(words) > MOST_CATEGORIES:
        raise UserError(
            f"the column {name!r} has {len(words):,} categories; leave out what has over {MOST_CATEGORIES:,}"
        )
    return Column(name=name, categories=words, missing=missing)


def _recoded(old: Column, values: Tensor, new: Column) -> Tensor:
    if new.categories is None or old.categories is None:
        return values
    place = {word: float(i) for i, word in enumerate(new.categories)}
    codes = torch.tensor([place.get(word, UNKNOWN) for word in old.categories] + [UNKNOWN], dtype=torch.float64)
    there = ~values.isnan()
    return torch.where(there, codes[torch.where(there, values, UNKNOWN).to(torch.int64)], values)
