"""Mean and standard deviation of a few values."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (divided by n − 1)."""

    mean: float
    std: float | None  # None of a single value
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None of nothing."""
        there = list(values)
        if not there:
            return None
        return cls(statistics.mean(there), statistics.stdev(there) if len(there) > 1 else None, len(there))

    @property
    def population(self) -> float | None:
        """The standard deviation divided by n, as the paper's authors compute it."""
        return None if self.std is None else self.std * math.sqrt((self.count - 1) / self.count)

    def percent(self, population: bool = False) -> str:
        """Mean±std in percent; of a single value, that value.

        >>> Spread(0.5, 0.1, 2).percent(), Spread(0.5, 0.1, 2).percent(population=True), Spread(0.5, None, 1).percent()
        ('50.00±10.00', '50.00±7.07', '50.00')
        """
        std = self.population if population else self.std
        return f"{100 * self.mean:.2f}" + ("" if std is None else f"±{100 * std:.2f}")
