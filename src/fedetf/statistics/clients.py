"""How a method treats its clients: the distribution of their accuracies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Clients:
    """Accuracies of clients that have a test split; all are fractions."""

    count: int
    mean: float
    std: float  # population: these are all clients, no sample of them
    std_beyond_chance: float | None  # less what small test splits add; None if their sizes are not known
    worst: float
    worst_decile: float  # the mean of the worst tenth
    quartiles: tuple[float, float, float]
    jain: float  # 1: all the same; too blunt to rank methods by
    gini: float  # 0: all the same


def describe_clients(accuracies: Sequence[float], sizes: Sequence[int] | None = None) -> Clients:
    """The distribution of ``accuracies``; ``sizes`` are those of the test splits.

    >>> round(describe_clients([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.95, 0.85, 0.75, 0.1]).std, 6)
    0.248445
    """
    a = np.sort(np.asarray(accuracies, float))
    K, mean, std = len(a), float(a.mean()), float(a.std())
    total, squares = float(a.sum()), float((a**2).sum())
    places = np.arange(1, K + 1)
    return Clients(
        count=K,
        mean=mean,
        std=std,
        std_beyond_chance=None if sizes is None else _beyond_chance(np.asarray(accuracies, float), np.asarray(sizes)),
        worst=float(a[0]),
        worst_decile=float(a[: math.ceil(0.1 * K)].mean()),
        quartiles=(float(np.quantile(a, 0.25)), float(np.quantile(a, 0.5)), float(np.quantile(a, 0.75))),
        jain=total**2 / (K * squares) if squares else 1.0,
        gini=float(((2 * places - K - 1) * a).sum()) / (K * total) if total else 0.0,
    )


def below(values: Sequence[float | None], bars: Sequence[float | None]) -> list[int]:
    """Which clients are below their bar, of those that have both; a list may end early.

    >>> below([0.5, 0.9, None, 0.2], [0.6, 0.9, 1.0])
    [0]
    """
    pairs = enumerate(zip(values, bars, strict=False))
    return [k for k, (value, bar) in pairs if value is not None and bar is not None and value < bar]


def _beyond_chance(a: np.ndarray, n: np.ndarray) -> float | None:
    """The deviation less a(1 − a)/(n − 1), what chance alone adds; a split of one image tells nothing of it."""
    several = n > 1
    if not several.any():
        return None
    chance = (a[several] * (1 - a[several]) / (n[several] - 1)).mean()
    return math.sqrt(max(0.0, float(a.var() - chance)))
