"""Many methods over many settings: Friedman's test on their ranks, and who differs from whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedetf.statistics import Friedman, friedman

LEAST_METHODS, LEAST_SETTINGS = 3, 2


@dataclass(frozen=True)
class Overall:
    """Methods that have a value in every setting, on all settings together."""

    methods: list[str]
    friedman: Friedman
    left_out: list[str] = field(default_factory=list)  # those that have none in some setting

    @property
    def sentence(self) -> str:
        """What the ranks say."""
        test, count = self.friedman, self.friedman.blocks
        ranks = sorted(zip(test.ranks, self.methods, strict=True))
        named = ", ".join(f"{name} {rank:.2f}" for rank, name in ranks)
        shown = "differ" if test.differ else "are not shown to differ"
        p = test.p if test.permuted is None else test.permuted
        about = f"Over {count} settings the methods {shown} (Friedman's test, by permutation, p = {p:.2g})"
        apart = f" Ranks that are {test.width:.2f} apart differ (Nemenyi, 5 %)." if test.differ else ""
        without = f" Left out, without a value in every setting: {', '.join(self.left_out)}." if self.left_out else ""
        return f"{about}. Mean ranks, 1 is best: {named}.{apart}{without}"


def overall(values: Mapping[str, Sequence[float | None]], lower: bool = False) -> Overall | None:
    """Of each method its value in every setting; None if fewer than three have all, or there is one setting only."""
    whole = {name: [v for v in row if v is not None] for name, row in values.items() if None not in row}
    settings = len(next(iter(whole.values()), []))
    if len(whole) < LEAST_METHODS or settings < LEAST_SETTINGS:
        return None
    sign = -1 if lower else 1
    blocks = [[sign * row[number] for row in whole.values()] for number in range(settings)]
    return Overall(list(whole), friedman(blocks), [name for name in values if name not in whole])
