"""What the kinds of data share: a note of how raw inputs are read and prepared, and the sums that it is fitted by.

A :class:`Note` is all that must be known of a kind to use a model: it is written into the model's file, checked when it
is read again, and gives the module that stands before the encoder. Before the fit it describes what one party found in
its own data. The fit needs :class:`Sums` of each client's training split and nothing else, so that the same statistics
come out whether the clients are simulated or real.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedetf.core.threads import cpu_threads
from fedetf.data.frames import MOST_COLUMNS, Frame
from fedetf.errors import UserError
from fedetf.settings import DataSettings

Finite = Annotated[float, Field(allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=10_000)]
MOST_CATEGORIES = 1_000


class Record(BaseModel):
    """What is written and read: of bounded shape, and nothing besides."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Seen(Record):
    """What training has seen of a column of numbers, of a channel, or of a band."""

    mean: Finite = 0.0
    std: Annotated[Finite, Field(gt=0)] = 1.0
    low: Finite | None = None
    high: Finite | None = None

    @property
    def in_words(self) -> str:
        """For a model card."""
        if self.low is None or self.high is None:
            return "-"
        return f"{self.low:g} to {self.high:g}, mean {self.mean:.4g}, std {self.std:.4g}"


class ColumnSums(Record):
    """What one client tells of one column (or channel) of its training split."""

    name: Word
    count: Annotated[int, Field(ge=0, lt=2**53)] = 0  # of values that are there
    missing: Annotated[int, Field(ge=0, lt=2**53)] = 0
    total: Finite = 0.0  # Σ x
    squares: Annotated[Finite, Field(ge=0)] = 0.0  # Σ (x − mean)², around the client's own mean
    low: Finite | None = None
    high: Finite | None = None
    categories: Annotated[list[Word], Field(max_length=MOST_CATEGORIES)] | None = None  # None: a column of numbers

    def bare(self) -> "ColumnSums":
        """Without its statistics: whether values are there and missing, and the categories that occur."""
        there, missing = min(self.count, 1), min(self.missing, 1)
        return ColumnSums(name=self.name, count=there, missing=missing, categories=self.categories)


class Sums(Record):
    """What one client tells of its training split, so that inputs can be prepared alike everywhere."""

    kind: Word
    rows: Annotated[int, Field(ge=0, lt=2**53)] = 0
    columns: Annotated[list[ColumnSums], Field(min_length=1, max_length=MOST_COLUMNS)]

    def bare(self) -> "Sums":
        """What must be told all the same where each site prepares by its own statistics: what columns there are."""
        return Sums(kind=self.kind, rows=min(self.rows, 1), columns=[column.bare() for column in self.columns])


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a column over all clients, and the range that was seen."""

    mean: float = 0.0
    std: float = 1.0
    low: float | None = None
    high: float | None = None


def column_sums(name: str, values: NDArray[np.float64]) -> ColumnSums:
    """The sums of one client's values ``[n]``; NaN is a missing one."""
    there = values[~np.isnan(values)]
    missing = len(values) - len(there)
    if not len(there):
        return ColumnSums(name=name, missing=missing)
    with np.errstate(over="ignore"):
        squares = float(np.square(there - there.mean()).sum())
    if not math.isfinite(squares):
        raise UserError(f"the column {name!r} holds numbers too large to be squared; scale it, or leave it out")
    low, high = float(there.min()), float(there.max())
    return ColumnSums(
        name=name, count=len(there), missing=missing, total=float(there.sum()), squares=squares, low=low, high=high
    )


def spread_of(parts: Sequence[ColumnSums]) -> Spread:
    """Mean and standard deviation from the sums of clients, whatever their order.

    Squares around a client's own mean, instead of plain ones, keep their digits where the mean is large against the
    standard deviation: Σ(x − m)² = Σ_k [squares_k + n_k (mean_k − m)²] (Chan, Golub and LeVeque 1979).
    """
    parts = [part for part in parts if part.count]
    count = sum(part.count for part in parts)
    if not count:
        return Spread()
    if any(max(abs(part.total), math.sqrt(part.squares)) > 1e150 for part in parts):
        raise UserError(
            f"the column {parts[0].name!r} holds numbers too large to be squared; scale it, or leave it out"
        )
    mean = math.fsum(part.total for part in parts) / count
    squares = math.fsum(part.squares + part.count * (part.total / part.count - mean) ** 2 for part in parts)
    std = math.sqrt(squares / count)
    least = 10 * np.finfo(np.float64).eps * max(1.0, abs(mean))  # a constant column's is not quite 0
    lows, highs = [p.low for p in parts if p.low is not None], [p.high for p in parts if p.high is not None]
    return Spread(mean, std if std > least else 1.0, min(lows, default=None), max(highs, default=None))


@dataclass(frozen=True)
class Raw:
    """Inputs as they are stored ``[n, …]``, and the row of the table that each came from ``[n]``."""

    x: Tensor
    rows: NDArray[np.int64]


class Note(Record):
    """How inputs of one kind are read and prepared."""

    encoder: ClassVar[str]  # the model that fits the kind, if none is chosen
    chunk: ClassVar[int] = 1000  # inputs prepared at a time; 1 where the bits depend on it
    fitted: ClassVar[bool] = True  # whether preparation rests on statistics of the data
    cuts: ClassVar[bool] = False  # whether a row may become several inputs, which stay together in every split
    kind: str
    prepared: bool = False  # inputs are stored as the encoder takes them; each client's own note has prepared them

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one raw input."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of raw inputs."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """The widths of the one-hot blocks at the end of a prepared input."""
        return ()

    @property
    def numbers(self) -> Tensor:
        """Which parts of a raw input are quantities, for its shape or for all of it: not those that are codes."""
        return torch.tensor(True)

    @classmethod
    @abstractmethod
    def begin(cls, frame: Frame, columns: Sequence[str], settings: DataSettings) -> "Note":
        """What one party finds in these columns of its own table, before anything is fitted."""

    @classmethod
    @abstractmethod
    def fit(cls, parts: Sequence[Sums], settings: DataSettings) -> "Note":
        """The note that follows from what all clients tell."""

    @abstractmethod
    def read(self, frame: Frame) -> Raw:
        """Rows of a table as raw inputs."""

    def strange(self, x: Tensor) -> dict[str, int]:
        """Columns that hold categories which training has not seen, and in how many of the raw inputs ``[n, …]``."""
        return {}

    def of_files(self, paths: Sequence[Path]) -> Frame:
        """Single files, one input each, as a table that :meth:`read` takes."""
        raise UserError(f"the model takes the rows of a table; give a CSV or Parquet file, not {paths[0].name}")

    @abstractmethod
    def sums(self, x: Tensor) -> Sums:
        """What a client tells of its raw inputs ``[n, …]``."""

    def recoded(self, x: Tensor, fitted: "Note") -> Tensor:
        """Raw inputs that were read by this note, as the fitted one has them."""
        return x

    def with_own(self, own: Sums) -> "Note":
        """The same with the statistics of one client, who alone knows them; as it is, where nothing is fitted."""
        return self

    def module(self) -> nn.Module:
        """What turns a stored batch into what the encoder takes."""
        return nn.Identity() if self.prepared else self.preparing()

    def prepare(self, x: Tensor) -> Tensor:
        """Stored inputs ``[n, …]`` as the encoder takes them; on one thread, so that cores do not change the bits."""
        module = self.module().to(x.device)
        with torch.no_grad(), cpu_threads(1):
            return torch.cat([module(part) for part in x.split(self.chunk)])

    @abstractmethod
    def preparing(self) -> nn.Module:
        """What turns a raw batch into what the encoder takes."""

    @abstractmethod
    def sentence(self, named: bool) -> str:
        """For a model card: what goes in; ``named``: a file that takes columns by their names."""

    @abstractmethod
    def describe(self) -> list[list[str]]:
        """For a model card: a row for each column, after a header."""
