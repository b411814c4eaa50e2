"""One model from many: the mean, and rules that some bad updates cannot mislead (``server.combine``).

Every rule but the mean needs all models at once: n models in memory. Each takes every client for one, whatever number
of samples it claims. Parameters x_k are what the rules look at; what else comes with them (BatchNorm's statistics) is
combined with the same coefficients, or the same way coordinate by coordinate. Integer counters: the largest.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fedetf.core.state import State, WeightedMean, widest
from fedetf.errors import RunError

Models = Sequence[State]
WEISZFELD = 4  # iterations of the geometric median (Pillutla et al.)
CLIPPINGS = 3  # iterations of centred clipping (Karimireddy et al. 2021: one to three)


def mean(models: Iterable[tuple[State, float]]) -> State:
    """The mean by weight (Eq. 2), one model in memory; empty if there is none with a positive weight."""
    running = WeightedMean()
    for model, weight in models:
        running.add(model, weight)
    return running.result()


def median(models: Models) -> State:
    """Per coordinate (Yin et al. 2018); of an even number, the mean of the two middle values."""
    middle, n = len(models) // 2, len(models)

    def rule(values: Tensor) -> Tensor:
        ordered = values.sort(dim=0).values
        return ordered[middle] if n % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    return _by_coordinate(models, rule)


def trimmed_mean(models: Models, faulty: int) -> State:
    """Per coordinate without the b largest and the b smallest (Yin et al. 2018)."""
    if 2 * faulty >= len(models):
        raise RunError(f"trimming {faulty} at each end leaves nothing of {len(models)} updates; lower server.faulty")
    return _by_coordinate(models, lambda values: values.sort(dim=0).values[faulty : len(models) - faulty].mean(dim=0))


def krum(models: Models, parameters: Sequence[str], faulty: int, chosen: int | None = None) -> State:
    """The mean of the ``chosen`` models with the smallest scores (Blanchard et al. 2017); None takes n − f − 2.

    A model's score is the sum of its squared distances to the n − f − 2 nearest others; of equal scores the first
    client's counts as smaller.
    """
    n = len(models)
    if n == 1:
        return models[0]
    near = n - faulty - 2
    if near < 1:
        raise RunError(
            f"Krum needs {faulty + 3} updates to tolerate {faulty} faulty ones and got {n}; lower server.faulty"
        )
    others = squared_distances(models, parameters).sort(dim=1).values[:, 1 : near + 1]  # the first is the model itself
    order = others.sum(dim=1).sort(stable=True).indices.tolist()
    best = sorted(order[: chosen or near])
    return mean((models[i], 1.0) for i in best)


def geometric_median(models: Models, parameters: Sequence[str]) -> State:
    """argmin_z Σ ‖z − x_k‖ by Weiszfeld's iterations from the mean (Pillutla, Kakade and Harchaoui 2022)."""
    coefficients = [1.0] * len(models)
    for _ in range(WEISZFELD):
        centre = mean(zip(models, coefficients, strict=True))
        lengths = [_distance(model, centre, parameters) for model in models]
        floor = 1e-6 * sorted(lengths)[len(lengths) // 2] or 1.0  # all are alike
        coefficients = [1 / max(length, floor) for length in lengths]
    return mean(zip(models, coefficients, strict=True))


def centred_clip(models: Models, parameters: Sequence[str], start: State, radius: float) -> State:
    """From ``start``, where the last round ended, v ← v + mean((x_k − v)·min(1, τ/‖x_k − v‖)) a few times."""
    combined = mean((model, 1.0) for model in models)
    v = {name: start[name].to(widest(start[name].device)) for name in parameters}
    for _ in range(CLIPPINGS):
        apart = [{name: model[name].to(v[name].dtype) - v[name] for name in parameters} for model in models]
        scales = [min(1.0, radius / length) if (length := _length(each)) else 1.0 for each in apart]
        for name in v:
            v[name] = v[name] + sum(each[name] * scale for each, scale in zip(apart, scales, strict=True)) / len(models)
    return {name: v[name].to(tensor.dtype) if name in v else tensor for name, tensor in combined.items()}


def squared_distances(models: Models, parameters: Sequence[str]) -> Tensor:
    """‖x_i − x_j‖² of all pairs ``[n, n]``, tensor by tensor, by differences in double precision."""
    n = len(models)
    total = torch.zeros(n, n, dtype=torch.float64)
    for name in parameters:
        values = torch.stack([model[name].flatten() for model in models]).to(widest(models[0][name].device))
        for i in range(n):
            total[i] += (values - values[i]).square().sum(dim=1).cpu()
    return total


def _by_coordinate(models: Models, rule: Callable[[Tensor], Tensor]) -> State:
    combined = mean((model, 1.0) for model in models)  # counters: the largest
    for name, tensor in combined.items():
        if tensor.is_floating_point():
            values = torch.stack([model[name] for model in models]).to(widest(tensor.device))
            combined[name] = rule(values).to(tensor.dtype)
    return combined


def _distance(model: State, centre: State, parameters: Sequence[str]) -> float:
    kind = widest(next(iter(centre.values())).device)
    return _length({name: model[name].to(kind) - centre[name].to(kind) for name in parameters})


def _length(tensors: State) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors.values()))
