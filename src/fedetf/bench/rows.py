"""What a benchmark gives."""

from dataclasses import dataclass


@dataclass
class Row:
    """One line of the table."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
