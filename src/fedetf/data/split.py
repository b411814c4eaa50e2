"""A stratified split of labels in two, the one of scikit-learn's ``train_test_split``.

To import scikit-learn takes as long as to import PyTorch; a run, which needs no more of it than this, does not wait.
"""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]  # counts too


def stratified(labels: NDArray[np.generic], test: int, seed: int) -> tuple[Indices, Indices]:
    """Places for training, and ``test`` places for testing, with every class in both in the same proportion."""
    rng = np.random.RandomState(seed)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    for_training = _shares(counts, len(labels) - test, rng)
    for_test = _shares(counts - for_training, test, rng)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    parts: tuple[list[Indices], list[Indices]] = ([], [])
    for places, first, second in zip(members, for_training, for_test, strict=True):
        shuffled = places[rng.permutation(len(places))]
        parts[0].append(shuffled[:first])
        parts[1].append(shuffled[first : first + second])
    training, testing = (rng.permutation(np.concatenate(part)) for part in parts)
    return training, testing


def _shares(counts: Indices, draws: int, rng: np.random.RandomState) -> Indices:
    """How many of each class make so many draws: in proportion, and the largest remainders are rounded up."""
    exact = counts / counts.sum() * draws
    shares = np.floor(exact)
    remainders = exact - shares
    for remainder in np.unique(remainders)[::-1]:
        missing = int(draws - shares.sum())
        if missing <= 0:
            break
        (alike,) = np.where(remainders == remainder)
        shares[rng.choice(alike, size=min(len(alike), missing), replace=False)] += 1
    whole: Indices = shares.astype(np.intp)
    return whole
