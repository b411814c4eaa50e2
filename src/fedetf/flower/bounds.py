"""How much a site may claim: the number of its samples is its weight in the average, and in statistics of inputs."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field
from torch import Tensor

from fedetf.data.kinds import Sums
from fedetf.data.kinds.base import ColumnSums
from fedetf.engines.steps import Trained
from fedetf.errors import UserError
from fedetf.files import UnfitFile, is_file, read_json, write_whole
from fedetf.flower.federate import Federate
from fedetf.runs.records import Count, fitting
from fedetf.settings import TrainSettings

TIMES = 10  # the median, if the settings give no number
RATIO = 1000  # of the size of a column's numbers to the median of the sites
FEW = 3  # sites: with fewer, nobody can say who is the odd one
PHASES = 100  # at most, each of train.epochs or train.steps: methods may train in several


class Bounds(BaseModel):
    """What bounds.json says."""

    samples: Annotated[Count, Field(ge=1, alias="max-samples", strict=True)]


class SampleBound:
    """The most samples that a site may report: ``max-samples``, or ten times the median of the first round.

    What was found is written to bounds.json, so that it is the same after a restart of the server. Sites without any
    samples do not count in the median.
    """

    def __init__(self, folder: Path, federate: Federate, train: TrainSettings):
        self._path, self._train = folder / "bounds.json", train
        self.samples: float = federate.max_samples or (self._kept() if is_file(self._path) else math.inf)

    def find(self, reported: Iterable[int]) -> None:
        """Take the median of these numbers, unless the bound is known."""
        counts = [samples for samples in reported if samples]
        if math.isinf(self.samples) and counts:
            self.samples = math.floor(TIMES * statistics.median(counts))
            write_whole(self._path, (json.dumps({"max-samples": self.samples}) + "\n").encode())

    def excess(self, trained: Trained) -> str | None:
        """What a site claims too much of; None if nothing."""
        samples, images = trained.upload.samples, trained.upload.images
        if samples > self.samples:
            most = f"at most {self.samples} are allowed"
            return f"it reports {samples} samples, {most}; if that is right, set max-samples in pyproject.toml"
        if images > PHASES * self._train.images(samples):
            return f"it reports to have trained on {images} images, which is too many for its {samples} samples"
        return None

    def _kept(self) -> int:
        try:
            return fitting(Bounds, read_json(self._path), str(self._path)).samples
        except UnfitFile as error:
            raise UserError(f"{error}; set max-samples in pyproject.toml") from None


def impossible(count: Tensor, correct: Tensor, bound: SampleBound) -> str | None:
    """What cannot be in a validation's counts by class; None if all can. They are whole numbers of any size."""
    of, right = count.tolist(), correct.tolist()
    if not all(0 <= b <= a for a, b in zip(of, right, strict=True)):
        return "it counts more samples right than there are"
    return "it validates on more samples than it may have" if sum(of) > bound.samples else None


def in_proportion(told: Mapping[int, Sums], max_samples: int) -> tuple[dict[int, Sums], dict[int, list[str]]]:
    """What sites tell of their data, less what would decide alone; and which columns of whom that is.

    A column is left out whose root mean square is over a thousand times the median of the sites, or that has more
    cells than the median by a larger factor than samples are allowed to (``max_samples``, or ten times).
    """
    rows = [part.rows for part in told.values() if part.rows]
    times = max_samples / statistics.median(rows) if max_samples and rows else TIMES
    columns: dict[str, list[ColumnSums]] = {}
    for part in told.values():
        for column in part.columns:
            if column.count:
                columns.setdefault(column.name, []).append(column)
    most = {
        name: (times * statistics.median(map(_cells, same)), RATIO * statistics.median(map(_size, same)))
        for name, same in columns.items()
        if len(same) >= FEW
    }

    def is_odd(column: ColumnSums) -> bool:
        count, size = most.get(column.name, (math.inf, math.inf))
        return _cells(column) > count or _size(column) > size > 0

    odd = {client: [column.name for column in part.columns if is_odd(column)] for client, part in told.items()}
    kept = {
        client: part.model_copy(update={"columns": [_untold(c) if is_odd(c) else c for c in part.columns]})
        for client, part in told.items()
    }
    return kept, {client: names for client, names in odd.items() if names}


def _cells(column: ColumnSums) -> int:
    """How many there are, with a value or without: how many have one may differ much between honest sites."""
    return column.count + column.missing


def _size(column: ColumnSums) -> float:
    """The root mean square of a column's numbers."""
    return math.hypot(column.total / column.count, math.sqrt(column.squares / column.count)) if column.count else 0.0


def _untold(column: ColumnSums) -> ColumnSums:
    """A column of which only the name and the categories are known."""
    return ColumnSums(name=column.name, missing=column.missing, categories=column.categories)
