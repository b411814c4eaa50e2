"""Label skew: how far the clients' classes are from those of all clients together. Natural logarithms throughout.

Everything is a function of the class counts n_{k,c} of the training splits. Clients without samples are left out and
counted. A number whose definition is empty is NaN, never 0.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClientSkew:
    """One client's classes, with π_k(c) = n_{k,c}/n_k and π(c) the shares over all clients."""

    client: int
    samples: int  # n_k
    classes: int  # how many it holds
    missing: float  # share of the classes that it lacks
    largest: float  # share of its largest class
    entropy: float  # H_k = −Σ π_k log π_k
    entropy_normalised: float  # H_k / ln C
    effective_classes: float  # exp(H_k)
    tv: float  # total variation ½ Σ |π_k − π|, in [0, 1]
    kl: float  # Σ π_k log(π_k/π)


@dataclass(frozen=True)
class Skew:
    """The label skew of a federation."""

    clients: list[ClientSkew]  # those that hold samples
    empty: int  # clients that hold none
    mutual_information: float  # I = Σ (n_k/N) KL_k, nats; 0 if every client has the same mix
    jensen_shannon: float  # mean over pairs of clients, in [0, ln 2]
    single_class: int  # clients with one class only
    holders: tuple[int, float, int]  # clients that hold a class: fewest, mean, most
    size_ratio: float  # largest client / smallest
    size_variation: float  # standard deviation of the sizes / their mean
    size_gini: float  # Σ_{i,j} |n_i − n_j| / (2 K² mean n), in [0, 1)

    def mean(self, name: str, weighted: bool = False) -> float:
        """The mean of a number of :class:`ClientSkew` over clients, plain or weighted by their samples."""
        values = np.array([getattr(client, name) for client in self.clients], dtype=float)
        weights = np.array([client.samples for client in self.clients], dtype=float) if weighted else None
        return float(np.average(values, weights=weights)) if len(values) else math.nan


def label_skew(counts: ArrayLike) -> Skew:
    """The label skew of class counts ``[clients, classes]``.

    Examples
    --------
    >>> skew = label_skew([[4, 0], [0, 4]])
    >>> round(skew.mutual_information, 6), skew.clients[0].tv, skew.clients[0].effective_classes
    (0.693147, 0.5, 1.0)
    """
    n = np.asarray(counts, dtype=float)
    sizes = n.sum(axis=1)
    with_data = np.flatnonzero(sizes)
    n, sizes = n[with_data], sizes[with_data]
    shares = n / sizes[:, None]
    total = n.sum()
    overall = n.sum(axis=0) / total if len(with_data) else np.full(n.shape[1], math.nan)
    clients = [_client(int(k), row, share, overall) for k, row, share in zip(with_data, n, shares, strict=True)]
    weights = sizes / total if len(with_data) else sizes
    holders = (n > 0).sum(axis=0)
    return Skew(
        clients=clients,
        empty=len(np.asarray(counts)) - len(with_data),
        mutual_information=float(sum(w * c.kl for w, c in zip(weights, clients, strict=True))) if clients else math.nan,
        jensen_shannon=_mean_pairwise_js(shares),
        single_class=sum(client.classes == 1 for client in clients),
        holders=(int(holders.min()), float(holders.mean()), int(holders.max())),
        size_ratio=float(sizes.max() / sizes.min()) if clients else math.nan,
        size_variation=float(sizes.std() / sizes.mean()) if clients else math.nan,
        size_gini=_gini(sizes),
    )


def _client(client: int, counts: Floats, shares: Floats, overall: Floats) -> ClientSkew:
    C, classes = len(counts), int((counts > 0).sum())
    entropy = float(entropy_of(shares))
    present = shares > 0
    return ClientSkew(
        client=client,
        samples=int(counts.sum()),
        classes=classes,
        missing=1 - classes / C,
        largest=float(shares.max()),
        entropy=entropy,
        entropy_normalised=entropy / math.log(C) if C > 1 else math.nan,
        effective_classes=math.exp(entropy),
        tv=float(np.abs(shares - overall).sum() / 2),
        kl=float((shares[present] * np.log(shares[present] / overall[present])).sum()),
    )


def entropy_of(shares: Floats) -> Floats:
    """−Σ p log p along the last axis, 0 log 0 = 0."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    entropy: Floats = np.abs((shares * logs).sum(axis=-1))  # the sum is ≤ 0; abs spares the sign of −0
    return entropy


def _mean_pairwise_js(shares: Floats) -> float:
    """JS(p, q) = H((p+q)/2) − (H(p) + H(q))/2, a row of pairs at a time."""
    K = len(shares)
    if K < 2:
        return math.nan
    entropies = entropy_of(shares)
    total = 0.0
    for i in range(K - 1):
        middle = entropy_of((shares[i] + shares[i + 1 :]) / 2)
        total += float((middle - (entropies[i] + entropies[i + 1 :]) / 2).sum())
    return max(total, 0.0) / (K * (K - 1) / 2)


def _gini(sizes: Floats) -> float:
    """Σ_{i,j} |n_i − n_j| / (2 K² mean n), from the sorted sizes."""
    K = len(sizes)
    if K == 0:
        return math.nan
    ranks = np.arange(1, K + 1)
    return float(((2 * ranks - K - 1) * np.sort(sizes)).sum() / (K * sizes.sum()))
