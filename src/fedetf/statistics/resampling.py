"""Bootstrap intervals of a mean over clients; over a few seeds they are too narrow, see paired.py."""

import itertools
from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000


def bootstrap(values: Sequence[float], rng: np.random.Generator, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of the mean of ``values``, drawn again with replacement.

    Of the differences of two methods it is the interval of pairs. Where all nⁿ resamples are fewer than
    :data:`RESAMPLES`, each is taken once and nothing is drawn.

    >>> low, high = bootstrap([1.4, 0.8, 2.1, -0.3, 1.8], np.random.default_rng(0))
    >>> round(low, 2), round(high, 2)
    (0.36, 1.84)
    """
    n, given = len(values), np.asarray(values, float)
    if n**n <= RESAMPLES:
        drawn = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        drawn = rng.integers(n, size=(RESAMPLES, n))
    low, high = np.quantile(given[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
