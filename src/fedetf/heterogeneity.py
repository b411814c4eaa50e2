"""What kind of heterogeneity there is between sites: in labels, in sizes or in features, and how much of each."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedetf.data import Dataset, Partition
from fedetf.metrics.skew import Skew, entropy_of
from fedetf.rng import numpy_stream

LEVEL = 0.01  # what chance does less often is not taken for chance
MILD, STRONG, EXTREME = 0.05, 0.25, 0.6  # from this share on of what there is to know
UNEQUAL, VERY_UNEQUAL = 0.2, 0.5  # Gini coefficients of sizes
MOST_ROWS, LEAST_ROWS = 5000, 60
MOST_SITES = 50  # the largest ones are told apart
COARSE = 16  # pixels of an image's side, or moments of a signal, that are looked at
COMPONENTS = 20  # principal components of those
WORDS = 256  # numbers that the words of texts are counted by
SHUFFLES = 999


@dataclass(frozen=True)
class ToldApart:
    """How well a classifier that knows the class guesses the site of inputs that it was not fitted to."""

    accuracy: float
    chance: float  # what the same guesses reach if the sites of inputs are exchanged within each class
    p: float  # how often chance reaches that much: an exact permutation test
    rows: int  # that were guessed
    sites: int

    @property
    def level(self) -> float:
        """The share of what chance leaves open; 0 if it may be chance."""
        return max(0.0, (self.accuracy - self.chance) / (1 - self.chance)) if self.p < LEVEL else 0.0


@dataclass(frozen=True)
class Heterogeneity:
    """How different sites are, in three ways; words as "none", "mild", "strong", "extreme"."""

    labels: str
    sizes: str
    features: str | None  # None if there are too few rows to say
    told_apart: ToldApart | None


def heterogeneity(skew: Skew, partition: Partition, dataset: Dataset, seed: int) -> Heterogeneity:
    """What the training splits of a partition say; ``skew`` is that of its labels."""
    told_apart = tell_sites_apart(partition, dataset, seed)
    labels = label_level(skew, partition.counts)
    gini = skew.size_gini
    sizes = "none" if gini < UNEQUAL else "strong" if gini < VERY_UNEQUAL else "extreme"
    return Heterogeneity(word(labels), sizes, None if told_apart is None else word(told_apart.level), told_apart)


def word(level: float) -> str:
    """What a share of all that there is to know is called.

    >>> word(0.01), word(0.3)
    ('none', 'strong')
    """
    return "none" if level < MILD else "mild" if level < STRONG else "strong" if level < EXTREME else "extreme"


def label_level(skew: Skew, counts: NDArray[np.int64]) -> float:
    """The share of what there is to know of the class that the site tells; 0 if it may be chance, by a G test."""
    table = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    entropy = float(entropy_of(counts.sum(axis=0) / counts.sum()))
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if not freedom or scipy.stats.chi2.sf(2 * counts.sum() * skew.mutual_information, freedom) >= LEVEL:
        return 0.0
    return skew.mutual_information / entropy


# --- features ---------------------------------------------------------------------------------------------------------


def tell_sites_apart(partition: Partition, dataset: Dataset, seed: int) -> ToldApart | None:
    """Guess the site of inputs by a logistic regression that is told their class; None if there is too little to see.

    Half of the rows fit it, the other half is guessed. Sites with other mixes of classes are not told apart by that:
    what counts is what the guesses are worth beyond knowing the class. If inputs of a class were alike everywhere,
    their sites could be exchanged, which is what the test does.
    """
    rng = numpy_stream(seed, "tell-sites-apart")
    rows, sites = _rows(partition, dataset, rng)
    if len(rows) < LEAST_ROWS or len(np.unique(sites)) < 2:
        return None
    labels = dataset.train.y.numpy()[rows]
    coarse, rest = looks(_inputs(dataset, torch.from_numpy(rows)))
    fit, guess = np.split(rng.permutation(len(rows)), [len(rows) // 2])
    if len(np.unique(sites[fit])) < 2:
        return None
    guesses = _guesses(coarse, np.hstack([rest, np.eye(len(dataset.classes))[labels]]), sites, fit, guess)
    return judged(guesses, sites[guess], labels[guess], rng)


def judged(
    guesses: NDArray[np.int64], sites: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator
) -> ToldApart:
    """What guesses of sites are worth beyond the classes (all ``[n]``): sites change places within a class."""
    order = np.argsort(labels, kind="stable")
    guesses, sites, labels = guesses[order], sites[order], labels[order]
    right = int((guesses == sites).sum())
    reached = 0
    for _ in range(SHUFFLES):
        mixed = sites[np.lexsort((rng.random(len(sites)), labels))]
        reached += int((guesses == mixed).sum()) >= right
    expected = 0.0
    for c in np.unique(labels):  # Σ over sites of how often it is guessed × its share in the class
        true, guessed = sites[labels == c], guesses[labels == c]
        expected += sum((guessed == site).sum() * (true == site).mean() for site in np.unique(true))
    n = len(sites)
    return ToldApart(right / n, float(expected) / n, (1 + reached) / (1 + SHUFFLES), n, len(np.unique(sites)))


def looks(x: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """What a classifier is shown of inputs ``[n, …]``: a coarse view ``[n, d]``, and a few numbers ``[n, e]``.

    Of images and signals the view is pooled, and the numbers are mean, deviation and roughness of each channel, by
    which noise and blur are seen. Of texts it is how often words occur; of a table its columns.
    """
    if not x.is_floating_point() and x.ndim == 2:
        counts = torch.zeros(len(x), WORDS).scatter_add_(1, x % WORDS, torch.ones(x.shape))
        return (counts / x.shape[1]).numpy(), np.zeros((len(x), 0))
    x = torch.nan_to_num(x.float())
    if x.ndim == 2:
        return x.numpy(), np.zeros((len(x), 0))
    width = min(COARSE, x.shape[-1])
    images = x.ndim == 4
    coarse = F.adaptive_avg_pool2d(x, (min(COARSE, x.shape[2]), width)) if images else F.adaptive_avg_pool1d(x, width)
    flat, rough = x.flatten(2), x.diff(dim=-1).abs().flatten(2)
    numbers = torch.cat([flat.mean(2), flat.std(2, correction=0), rough.mean(2)], dim=1)
    return coarse.flatten(1).numpy(), torch.nan_to_num(numbers).numpy()


def _guesses(
    coarse: NDArray[Any], rest: NDArray[Any], sites: NDArray[np.int64], fit: NDArray[np.int64], guess: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The sites of ``guess``, by a logistic regression that saw ``fit``."""
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    components = min(COMPONENTS, coarse.shape[1], len(fit))
    view = make_pipeline(StandardScaler(), PCA(components, random_state=0)).fit(coarse[fit])
    seen = np.hstack([view.transform(coarse), rest])
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # guesses that could be better are guesses all the same
        fitted: NDArray[np.int64] = regression.fit(seen[fit], sites[fit]).predict(seen[guess])
    return fitted


def _rows(
    partition: Partition, dataset: Dataset, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Some of the training rows of the largest sites, and whose they are; of a recording's windows one."""
    groups = dataset.train.groups
    parts = [part if groups is None else _firsts(part, groups[part]) for part in partition.train]
    largest = sorted(range(len(parts)), key=lambda k: -len(parts[k]))[:MOST_SITES]
    rows = np.concatenate([parts[k] for k in largest])
    sites = np.repeat(largest, [len(parts[k]) for k in largest])
    chosen = rng.permutation(len(rows))[:MOST_ROWS]
    return rows[chosen], sites[chosen]


def _firsts(part: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    return part[np.unique(groups, return_index=True)[1]]


def _inputs(dataset: Dataset, rows: Tensor) -> Tensor:
    """Inputs as the encoder gets them."""
    if dataset.note is None:
        return dataset.train.x[rows]
    return dataset.note.prepare(dataset.train.x[rows])
