"""The ways to deal samples out, by name: the paper's Dirichlet split, an even one, one by classes, or a plug-in.

A way is a function ``deal(labels, settings, rng)`` that gives each client its samples; ``partition.py`` draws again and
repairs what it gives.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedetf.errors import UserError
from fedetf.own_code import guarded
from fedetf.plugins import Registry
from fedetf.settings import DataSettings

Indices = NDArray[np.int64]
# From ``[N]`` labels to the indices of each client's samples; it draws from the generator alone.
Deal = Callable[[Indices, DataSettings, np.random.RandomState], list[Indices]]
NOBODY = -1  # the owner of a sample that a partition leaves out


def dirichlet(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """Of each class, clients get shares that are drawn from Dirichlet(data.alpha) (paper)."""
    if settings.size_alpha is not None:
        return _by_mix_and_size(_by_class(labels), settings, rng)
    return parts_of(_by_dirichlet(_by_class(labels), settings.clients, settings.alpha, rng), settings.clients)


def iid(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """An even random split."""
    return parts_of(rng.permutation(np.arange(len(labels)) % settings.clients), settings.clients)


def quantity(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """The same mix of classes for all, sizes drawn from Dirichlet(data.size_alpha)."""
    sizes = _sizes(len(labels), settings, rng)
    return [np.sort(part) for part in np.split(rng.permutation(len(labels)), sizes.cumsum()[:-1])]


def shards(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """Each client holds data.shards classes."""
    return parts_of(_by_shards(_by_class(labels), settings.clients, settings.shards, rng), settings.clients)


def _by_class(labels: Indices) -> list[Indices]:
    return [np.flatnonzero(labels == c) for c in np.unique(labels)]


def _by_dirichlet(by_class: list[Indices], K: int, alpha: float, rng: np.random.RandomState) -> Indices:
    """Per class p ~ Dirichlet(α·1_K); client k gets round(p_k·N_c) samples, the last one what remains.

    The order of the draws is the authors', so that the same seed gives the client sizes of their runs.
    """
    shuffled = [rng.permutation(indices) for indices in by_class]
    shares = rng.dirichlet([alpha] * K, size=len(by_class))
    owner = np.empty(sum(map(len, by_class)), dtype=np.int64)
    for indices, p in zip(shuffled, shares, strict=True):
        if not np.isfinite(p).all():  # α so small that every gamma draw underflowed: one client gets the class
            p = np.eye(K)[rng.randint(K)]
        ends = np.minimum(np.round(p * len(indices)).astype(np.int64).cumsum(), len(indices))
        ends[-1] = len(indices)
        owner[indices] = np.repeat(np.arange(K), np.diff(ends, prepend=0))
    return owner


def _by_mix_and_size(by_class: list[Indices], settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
    """Sizes from Dirichlet(data.size_alpha), and for each client a mix of classes q ~ Dirichlet(data.alpha·1_C).

    A client draws from q among the classes that are not used up, or from what is left if q has none of it.
    """
    left = [rng.permutation(indices).tolist() for indices in by_class]
    wanted, C = _sizes(sum(map(len, left)), settings, rng), len(by_class)
    parts: list[list[int]] = [[] for _ in range(settings.clients)]
    for k in rng.permutation(settings.clients).tolist():
        mix = _shares(settings.alpha, C, rng)
        while len(parts[k]) < wanted[k]:
            stock = np.array([len(indices) for indices in left])
            available = np.where(stock > 0, mix, 0.0)
            available = available if available.sum() > 0 else stock.astype(float)
            drawn = rng.multinomial(wanted[k] - len(parts[k]), available / available.sum())
            for indices, number in zip(left, np.minimum(drawn, stock).tolist(), strict=True):
                parts[k] += [indices.pop() for _ in range(number)]
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def _sizes(samples: int, settings: DataSettings, rng: np.random.RandomState) -> Indices:
    """How many of the samples each client gets; all are dealt out."""
    shares = _shares(0.5 if settings.size_alpha is None else settings.size_alpha, settings.clients, rng)
    ends = np.round(shares.cumsum() * samples).astype(np.int64)
    ends[-1] = samples
    return np.diff(ends, prepend=0)


def _shares(alpha: float, number: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    """p ~ Dirichlet(α·1); where α is so small that every gamma draw underflows, one gets everything."""
    shares = rng.dirichlet([alpha] * number)
    return shares if np.isfinite(shares).all() else np.eye(number)[rng.randint(number)]


def _by_shards(by_class: list[Indices], K: int, shards: int, rng: np.random.RandomState) -> Indices:
    """Each client takes the ``shards`` classes that the fewest clients hold so far, ties broken at random."""
    C = len(by_class)
    if shards > C:
        raise UserError(f"data.shards = {shards} classes per client, but there are only {C} classes")
    if K * shards < C:
        raise UserError(f"{K} clients with {shards} classes each cannot hold {C} classes; raise data.shards")
    holders: list[list[int]] = [[] for _ in range(C)]
    for k in rng.permutation(K).tolist():
        order = np.lexsort((rng.rand(C), np.array([len(holding) for holding in holders])))
        for c in order[:shards]:
            holders[c].append(k)
    owner = np.empty(sum(map(len, by_class)), dtype=np.int64)
    for indices, holding in zip(by_class, holders, strict=True):
        for k, part in zip(holding, np.array_split(rng.permutation(indices), len(holding)), strict=True):
            owner[part] = k
    return owner


def _plugin(plugin: Any, name: str) -> Deal:
    """A package's or the user's own way to share: its errors are one line, and what it gives is checked."""
    if not callable(plugin):
        raise UserError(f"{name} is not a function that deals samples out; see docs/guides/plugins.md")

    def deal(labels: Indices, settings: DataSettings, rng: np.random.RandomState) -> list[Indices]:
        given = guarded(lambda: [np.asarray(part) for part in plugin(labels, settings, rng)], f"{name} failed")
        if len(given) != settings.clients:
            raise UserError(f"{name} gives {len(given)} parts for {settings.clients} clients; give one for each")
        if any(part.ndim != 1 or (len(part) and part.dtype.kind not in "iu") for part in given):
            raise UserError(f"{name} gives parts that are not lists of whole numbers; give indices of samples")
        parts = [np.sort(part).astype(np.int64) for part in given]
        dealt = np.concatenate(parts)
        if len(dealt) and not 0 <= dealt.min() <= dealt.max() < len(labels):
            raise UserError(f"{name} gives samples that do not exist; indices go from 0 to {len(labels) - 1}")
        if len(np.unique(dealt)) < len(dealt):
            raise UserError(f"{name} gives a sample twice; a sample belongs to one client at most")
        return parts

    deal.__doc__ = plugin.__doc__
    return deal


_ALL = (dirichlet, iid, quantity, shards)
_PARTITIONS: dict[str, Deal] = {deal.__name__: deal for deal in _ALL}
registry = Registry("partition", "fedetf.partitions", "data.partition =", _PARTITIONS, _plugin)


def parts_of(owner: Indices, K: int) -> list[Indices]:
    """The samples of each of K owners, in order; those of nobody are left out."""
    order = np.argsort(owner, kind="stable")
    ends = np.bincount(owner - NOBODY, minlength=K + 1).cumsum()
    return np.split(order, ends[:-1])[1:]
