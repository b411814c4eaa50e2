"""A long tail: few classes are common, most are rare, and the test set stays as it is."""

import numpy as np
import torch

from fedetf.data.samples import Samples
from fedetf.rng import numpy_stream


def long_tail(train: Samples, classes: int, imbalance: float, seed: int) -> Samples:
    """Class c keeps n·ρ^(−c/(C−1)) of its samples, ρ = ``imbalance``, as in long-tailed CIFAR (Cui et al., CVPR 2019).

    n is the number of samples of the largest class. A class keeps at least one sample, and never more than it has.
    """
    if imbalance == 1:
        return train
    labels = train.y.numpy()
    most = np.bincount(labels, minlength=classes).max()
    kept = []
    for c in range(classes):
        of_class = numpy_stream(seed, "imbalance", c).permutation(np.flatnonzero(labels == c))
        kept.append(of_class[: max(1, int(most * imbalance ** (-c / (classes - 1)) + 1e-9))])
    return train.take(torch.from_numpy(np.sort(np.concatenate(kept))))
