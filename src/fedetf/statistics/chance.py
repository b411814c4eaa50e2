"""Whether an accuracy is more than chance."""

import scipy

LEVEL = 0.05  # an accuracy that chance reaches less often is above it


def above_chance(accuracy: float, samples: int, chance: float) -> bool:
    """Whether an accuracy on so many samples is above ``chance``, by the exact one-sided binomial test.

    >>> above_chance(0.2, 50, 0.1), above_chance(0.15, 50, 0.1)
    (True, False)
    """
    right = round(accuracy * samples)
    return bool(scipy.stats.binomtest(right, samples, min(chance, 1.0), alternative="greater").pvalue < LEVEL)
