"""The values that a setting may take when it is tuned; a field declares them: ``Annotated[float, Range(0.1, 1.0)]``."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """All values from ``low`` to ``high``, both included: whole numbers if both are; on a logarithmic scale by default.

    >>> Range(1, 10).clipped(30), Range(0.1, 1.0).clipped(0.5), Range(0, 1, log=False)
    (10, 0.5, 0 to 1)
    """

    low: float
    high: float
    log: bool = True

    def clipped(self, value: float) -> float:
        """The value, or the end of the range that is nearest to it."""
        return min(max(value, self.low), self.high)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __repr__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + (", logarithmic" if self.log else "")


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __repr__(self) -> str:
        return ", ".join(map(str, self.values))
