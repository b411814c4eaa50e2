"""Neural collapse of one model: NC1 (features gather at their class mean), NC2 (the means form a simplex ETF), NC3 (the
classifier is parallel to them).

Features z are what the classifier sees: μ for FedETF, h for all others. Classes without a sample are left out: C' is
the number of the others. A measure whose definition is empty is NaN, never 0.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.metrics.base import Metric, Predictions, Quantity, Values
from fedetf.metrics.cosines import EPS


class Collapse(Metric):
    """Neural collapse of the global model on its test set."""

    name: ClassVar = "collapse"
    personal: ClassVar = False  # a client's own test split is small, and lacks classes
    watches_clients: ClassVar = True  # where heads are private, NC3 is that of the participants'

    @classmethod
    def quantities(cls) -> Sequence[Quantity]:
        """Those that the report shows first come first."""
        return QUANTITIES

    def part(self, seen: Predictions) -> State:
        """The class statistics of the features."""
        return class_statistics(seen.z, seen.y, seen.totals)

    def model_part(self, heads: Sequence[Tensor]) -> State:
        """The class vectors, ``[heads, C, d]``."""
        return {"heads": torch.stack(list(heads))} if heads else {}

    def value(self, sums: State) -> Values:
        """All measures, and what they rest on."""
        return {**collapse(sums, list(sums.get("heads", ())))}


QUANTITIES = (
    Quantity(
        "nc2",
        "Neural-collapse error (NC2)",
        "lower",
        "How far the class means are from a simplex ETF, the arrangement with the widest equal angles. 0 is perfect.",
        short="NC2 centred",
        main=True,
    ),
    Quantity(
        "nc1_ratio",
        "Within-class variability (NC1)",
        "lower",
        "Spread inside classes over spread between them. 0 is full collapse.",
        main=True,
    ),
    Quantity(
        "nc3_cos",
        "Alignment of features and classifier (NC3)",
        "higher",
        "Cosine between each class mean and its classifier vector. 1 is aligned.",
        main=True,
    ),
    Quantity(
        "nc2_uncentred",
        "Neural-collapse error, class means not centred",
        "lower",
        "As in the paper's Figure 5b; features that are never negative cannot reach 0.",
        short="NC2 as in paper",
    ),
    Quantity("nc1_trace", "Spread within classes (NC1)", "lower", "Depends on the scale of features."),
    Quantity("nc1_pinv", "Within-class variability, whitened (NC1)", "lower"),
    Quantity("nc1_cos", "Cosine of features to their class mean (NC1)", "higher", "1 is full collapse."),
    Quantity("nc2_norm", "Unequal lengths of class means (NC2)", "lower", "Coefficient of variation; 0 is equal."),
    Quantity("nc3_dual", "Distance of features and classifier (NC3)", "lower", "0 is self-dual, 4 opposite."),
    Quantity("nc_singletons", "Classes with a single sample", about="They have no spread, and count in NC1 as such."),
    Quantity(
        "nc2_classes",
        "Class means with a direction",
        about="What the neural-collapse error rests on; with two it is always 0.",
    ),
    Quantity("nc_classes", "Classes in the test set", about="What the neural-collapse measures rest on."),
)


def class_statistics(z: Tensor, y: Tensor, totals: Tensor) -> State:
    """Sums over features, from which all measures follow; those of parts add up to those of the whole.

    Parameters
    ----------
    z:
        Features ``[n, d]``.
    y:
        Labels ``[n]``.
    totals:
        How many samples of each class the whole has ``[C]``: in ``scatter``, the class-balanced sum of z zᵀ, every
        sample counts 1/n_c.
    """
    z, y, totals = z.detach().to("cpu", torch.float64), y.cpu(), totals.to("cpu", torch.float64)
    norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    zeros = torch.zeros(len(totals), z.shape[1], dtype=torch.float64)
    return {
        "count": torch.bincount(y, minlength=len(totals)).double(),
        "sum": zeros.index_add(0, y, z),
        "directed": torch.bincount(y[norms.flatten() >= EPS], minlength=len(totals)).double(),  # have a direction
        "unit_sum": zeros.index_add(0, y, torch.where(norms < EPS, 0.0, z / norms.clamp(min=EPS))),
        "scatter": z.T @ (z / totals[y, None]),
    }


def collapse(statistics: State, classifiers: Sequence[Tensor]) -> dict[str, float]:
    """All measures of a model, and what they rest on.

    ``nc_classes`` is C', ``nc_singletons`` the number of classes with a single sample, ``nc2_classes`` that of class
    means with a direction, which ``nc2`` compares.

    Parameters
    ----------
    statistics:
        Of its features on a test set, see :func:`class_statistics`.
    classifiers:
        Its class vectors ``[C, d]``, in the space of the features. With several, the heads of clients, NC3 is the mean
        over them; with none it is NaN.
    """
    present = statistics["count"] > 0
    n = statistics["count"][present]
    means = statistics["sum"][present] / n[:, None]
    centred = means - means.mean(dim=0) if len(means) else means
    within = statistics["scatter"] / max(len(n), 1) - means.T @ means / max(len(n), 1)
    values = {"nc_classes": float(len(n)), "nc_singletons": float((n == 1).sum())}
    values |= _nc1(within, centred, singletons=bool((n <= 1).all()))
    values["nc1_cos"] = _nc1_cos(means, statistics["unit_sum"][present], statistics["directed"][present])
    values |= _nc2(centred)
    values["nc2_uncentred"] = _distance_from_etf(means)
    heads = [_nc3(centred, classifier.detach().to("cpu", torch.float64), present) for classifier in classifiers]
    return values | {name: _mean([head[name] for head in heads]) for name in ("nc3_cos", "nc3_dual")}


def _mean(values: Sequence[float]) -> float:
    """Of those that are defined; NaN of none."""
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def _nc1(within: Tensor, centred: Tensor, singletons: bool) -> dict[str, float]:
    """tr Σ_W, tr Σ_W / tr Σ_B and tr(Σ_W Σ_B⁺)/C'; lower is more collapse."""
    classes = len(centred)
    if singletons:  # there is no spread to speak of, or no class at all
        return dict.fromkeys(("nc1_trace", "nc1_ratio", "nc1_pinv"), torch.nan)
    trace = max(float(within.trace()), 0.0)
    between = centred.T @ centred / classes
    spread = float(between.trace())
    if classes < 2 or spread < EPS:
        empty = torch.inf if classes >= 2 and trace >= EPS else torch.nan
        return {"nc1_trace": trace, "nc1_ratio": empty, "nc1_pinv": empty}
    eigenvalues, vectors = torch.linalg.eigh(between)
    eigenvalues, vectors = eigenvalues[-(classes - 1) :], vectors[:, -(classes - 1) :]  # its rank is at most C' − 1
    sound = eigenvalues > 1e-10 * eigenvalues[-1]
    along = torch.einsum("di,de,ei->i", vectors[:, sound], within, vectors[:, sound])
    return {
        "nc1_trace": trace,
        "nc1_ratio": trace / spread,
        "nc1_pinv": float((along / eigenvalues[sound]).sum()) / classes,
    }


def _nc1_cos(means: Tensor, unit_sums: Tensor, n: Tensor) -> float:
    """The mean cosine of a feature and the mean of its class; higher is more collapse."""
    norms = torch.linalg.vector_norm(means, dim=1)
    sound = norms >= EPS
    cosines = (unit_sums[sound] * means[sound]).sum(dim=1) / norms[sound]
    return float(cosines.sum() / n[sound].sum()) if n[sound].any() else torch.nan


def _nc2(centred: Tensor) -> dict[str, float]:
    """How far the centred class means are from an ETF; lower is more collapse.

    ``nc2`` looks at their angles, ``nc2_norm`` at their lengths: standard deviation by mean. Figure 5b of the paper
    takes the angles of means that are not centred (``nc2_uncentred``); features that are never negative cannot bring
    that to 0. Two centred means are opposite whatever they are: with two classes ``nc2`` is 0 and tells nothing.
    """
    lengths = torch.linalg.vector_norm(centred, dim=1)
    mean = float(lengths.mean()) if len(lengths) else 0.0
    norm = float(lengths.std(correction=0)) / mean if mean >= EPS else torch.nan
    return {"nc2": _distance_from_etf(centred), "nc2_norm": norm, "nc2_classes": float((lengths >= EPS).sum())}


def _distance_from_etf(vectors: Tensor) -> float:
    """Mean square of cos + 1/(C'−1) over pairs of vectors ``[C', d]``; those without a direction are left out."""
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    directions = vectors[lengths >= EPS] / lengths[lengths >= EPS, None]
    classes = len(directions)
    if classes < 2:
        return torch.nan
    cosines = (directions @ directions.T)[~torch.eye(classes, dtype=torch.bool)]
    return float((cosines + 1 / (classes - 1)).square().mean())


def _nc3(centred: Tensor, classifier: Tensor, present: Tensor) -> dict[str, float]:
    """Cosine of class mean and class vector (higher is aligned), and ‖M/‖M‖ − W/‖W‖‖² (0 is self-dual).

    The class vectors are centred as well: a softmax does not see their mean, and that of an ETF is 0.
    """
    empty = {"nc3_cos": torch.nan, "nc3_dual": torch.nan}
    if classifier.shape[1] != centred.shape[1]:
        return empty
    W = (classifier - classifier.mean(dim=0))[present]
    norms = torch.linalg.vector_norm(centred, dim=1) * torch.linalg.vector_norm(W, dim=1)
    sound = (torch.linalg.vector_norm(centred, dim=1) >= EPS) & (torch.linalg.vector_norm(W, dim=1) >= EPS)
    if not sound.any():
        return empty
    M, W = centred[sound], W[sound]
    cosine = float(((M * W).sum(dim=1) / norms[sound]).mean())
    return {"nc3_cos": cosine, "nc3_dual": float((M / M.norm() - W / W.norm()).square().sum())}
