"""How the lines of a table stand: methods in settings, their seeds together. Tables and pages only render it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from fedetf.comparison.metric import ACCURACY
from fedetf.comparison.overall import Overall, overall
from fedetf.comparison.standing import Scores, Standing, chosen_rival, common_seeds, judge_columns, on_seeds
from fedetf.metrics import Quantity
from fedetf.runs import identity
from fedetf.runs.read import SCORES, Run
from fedetf.statistics import Spread

JUDGED = ("general", "personal")  # the columns in which methods are compared; the final model stands beside them

Own = TypeVar("Own")


class Entry(Protocol):
    """A line of a table: one method, or variant of one, in one setting, over its seeds."""

    @property
    def name(self) -> str:
        """What it is called among its rivals."""

    @property
    def names(self) -> Sequence[str]:
        """What else it can be called by."""

    @property
    def method(self) -> str:
        """The method, whatever its numbers are."""

    @property
    def setting(self) -> str:
        """What it is tried in: lines with the same are rivals."""

    @property
    def reference(self) -> bool:
        """Whether it is there to compare with, and no rival."""

    @property
    def scores(self) -> Mapping[str, Scores]:
        """For each of :data:`fedetf.runs.read.SCORES`, a value by seed."""

    @property
    def runs(self) -> Sequence[Run]:
        """The runs that they come from."""

    def on_seeds(self: Own, seeds: Sequence[int]) -> Own:
        """The same, over the runs of some seeds; all of them if it has none of these."""


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Judged(Generic[E]):
    """The lines of a table, and how each stands."""

    lines: list[E]
    metric: Quantity = ACCURACY
    against: str | None = None  # the method that others are compared with; None: see chosen_rival

    @cached_property
    def standings(self) -> list[dict[str, Standing]]:
        """How each line stands in its setting, by column."""
        standings: list[dict[str, Standing]] = [{} for _ in self.lines]
        lower = self.metric.better == "lower"
        for numbers in self.settings.values():
            lines = [self.lines[number] for number in numbers]
            references = [place for place, line in enumerate(lines) if line.reference]
            columns = {name: [line.scores.get(name, {}) for line in lines] for name in SCORES}
            against = next((place for place, number in enumerate(numbers) if number in self._chosen), None)
            judged = judge_columns({name: columns.pop(name) for name in JUDGED}, against, references, lower)
            for name, column in {**judged, **judge_columns(columns, None, references, lower)}.items():
                for number, standing in zip(numbers, column.standings, strict=True):
                    standings[number][name] = standing
        return standings

    @cached_property
    def settings(self) -> dict[str, list[int]]:
        """The numbers of the lines of each setting: rivals, and their references."""
        places: dict[str, list[int]] = {}
        for number, line in enumerate(self.lines):
            places.setdefault(line.setting, []).append(number)
        return places

    @cached_property
    def counted(self) -> list[E]:
        """The lines over the seeds that all rivals of their setting have, which every mean of a table is over."""
        counted = list(self.lines)
        for numbers in self.settings.values():
            rivals = [self.lines[number] for number in numbers if not self.lines[number].reference]
            seeds = common_seeds([[run.seed for run in line.runs] for line in rivals])
            for number in numbers if seeds else ():
                counted[number] = counted[number].on_seeds(seeds)
        return counted

    @cached_property
    def _chosen(self) -> list[int]:
        """The numbers of the lines that others are compared with: the same method in every setting that has it."""
        rivals = [line for line in self.lines if not line.reference]
        first = chosen_rival([line.names for line in rivals], self.against)
        if first is None:
            return []
        wanted = self.against or rivals[first].method
        chosen = []
        for numbers in self.settings.values():
            those = [number for number in numbers if not self.lines[number].reference]
            place = chosen_rival([self.lines[number].names for number in those], wanted)
            chosen += [] if place is None else [those[place]]
        return chosen

    @property
    def chosen_method(self) -> str | None:
        """The method of those that others are compared with; None if there is nobody."""
        return self.lines[self._chosen[0]].method if self._chosen else None

    @property
    def compared_with(self) -> str:
        """Whom the differences are to; empty if there are none."""
        if not any(standing.difference for line in self.standings for standing in line.values()):
            return ""
        names = {self.lines[number].name for number in self._chosen}
        return names.pop() if len(names) == 1 else self.chosen_method or ""

    @property
    def majority(self) -> dict[str, Spread]:
        """What a constant answer reaches in personal accuracy, in each setting where it is on record.

        It is on the seeds that the other values of the column are on.
        """
        shares = {}
        for setting, numbers in self.settings.items():
            lines = [self.lines[number] for number in numbers]
            seeds = common_seeds([line.scores.get("personal", {}) for line in lines if not line.reference])
            runs = lines[0].runs if self.metric == ACCURACY else []
            values = {run.seed: share for run in runs if (share := run.result.personal_majority) is not None}
            spread = Spread.of(on_seeds(seeds, values).values())
            if spread is not None:
                shares[setting] = spread
        return shares

    @property
    def overall(self) -> dict[str, Overall]:
        """The methods over all settings, by column, where there are several of both.

        Learning rates, and all else that is chosen for a method, are no settings to count wins over.
        """
        problems = [problem(self.lines[numbers[0]]) for numbers in self.settings.values()]
        if len(set(problems)) < len(problems):
            return {}
        over_settings = {}
        for column in JUDGED:
            means: dict[str, list[float | None]] = {}
            for place, numbers in enumerate(self.settings.values()):
                for number in numbers:
                    spread = self.standings[number][column].spread
                    if not self.lines[number].reference:
                        row = means.setdefault(self._row(number), [None] * len(self.settings))
                        row[place] = None if spread is None else spread.mean
            judged = overall(means, self.metric.better == "lower")
            if judged is not None:
                over_settings[column] = judged
        return over_settings

    def _row(self, number: int) -> str:
        """What a line is called over all settings: its method, or its name where a method has several lines in one."""
        line = self.lines[number]
        alike = Counter(each.setting for each in self.lines if each.method == line.method)
        return line.method if max(alike.values()) == 1 else line.name


def problem(line: Entry) -> str:
    """What the methods of its setting are compared on; see :func:`fedetf.runs.identity.problem`."""
    return identity.problem(line.runs[0].settings) if line.runs else line.setting
