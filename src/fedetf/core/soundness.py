"""What makes an update unfit to be folded in: its form, values that are no numbers, and too much influence.

A client may send whatever its data teach it. What no local training can have made of the received model is refused, for
one such update would decide the average for all.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedetf.core.vectors import alike, joined

Tensors = Mapping[str, Tensor]


def defect(state: Tensors, like: Tensors) -> str | None:
    """Say what makes ``state`` unfit to be folded in, or None if nothing does.

    It must hold all tensors of ``like`` in their shapes; it may hold more, the method's own statistics.
    """
    missing = sorted(like.keys() - state.keys())
    if missing:
        return f"{', '.join(missing)} missing"
    for name, tensor in state.items():
        if name in like and tensor.shape != like[name].shape:
            return f"{name} has shape {tuple(tensor.shape)}, not {tuple(like[name].shape)}"
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    together = torch.cat([tensor.flatten() for tensor in floats.values()] or [torch.zeros(1)])
    if torch.isfinite(torch.linalg.vector_norm(together)):  # one read from the device
        return None
    wrong = [name for name, tensor in floats.items() if not torch.isfinite(tensor).all()]
    return f"{wrong[0]} holds NaN or infinite values" if wrong else None  # none: only the squares were too large


def other_type(state: Tensors, like: Tensors) -> str | None:
    """Say which tensor of ``state`` is not of the type that it has in ``like``; None if all are."""
    for name, tensor in like.items():
        if name in state and state[name].dtype != tensor.dtype:
            return f"{name} has the type {state[name].dtype}, not {tensor.dtype}"
    return None


def unsound(state: Tensors, received: Tensors, images: int, max_ratio: float) -> str | None:
    """Say what is wrong with what a client made of ``received`` by training on ``images`` images; None if nothing is.

    ``state`` may hold statistics besides the tensors of ``received``, see :func:`too_large`.
    """
    problem = defect(state, received) or _impossible(state, received, images)
    if problem is not None:
        return problem
    update = {name: _spread(name, state[name]) - _spread(name, tensor) for name, tensor in _floats(received).items()}
    length, scale = _length(update), _scale(received)
    if length > max_ratio * scale or math.isinf(length):
        return (
            f"its update is {length / scale:.3g} times as long as the model that it received, "
            f"update.max_ratio allows {max_ratio:g}"
        )
    return too_large({name: tensor for name, tensor in state.items() if name not in received}, received, max_ratio)


class Glance:
    """Sees by a few long vectors that :func:`unsound` has nothing to say, as of nearly every update.

    What the received model has to do with it is worked out once, for all who received it.
    """

    def __init__(self, received: Tensors, max_ratio: float):
        self._forms = {name: (tensor.shape, tensor.dtype) for name, tensor in received.items()}
        vectors = [(names, joined([received[name] for name in names])) for names in alike(received)]
        self._floats = [(names, before, _places(received, names)) for names, before in vectors if _is_float(before)]
        self._counters = [(names, before) for names, before in vectors if _is_counter(before)]
        self._most = max_ratio * _scale(received)

    def passes(self, state: Tensors, images: int) -> bool:
        """Whether nothing is wrong; False means that it takes a closer look to tell."""
        if not state or {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} != self._forms:
            return False
        lengths, possible = [], []
        for names, before, places in self._floats:
            vector = joined([state[name] for name in names])
            lengths.append(torch.dist(vector, before))  # of variances as they are too: never too short
            if len(places):
                variances = vector[places]
                lengths.append(torch.dist(variances.clamp(min=0).sqrt(), before[places].clamp(min=0).sqrt()))
                possible.append(variances.min() >= 0)
        for names, start in self._counters:
            counts = joined([state[name] for name in names])
            possible += [(counts >= start.clamp(max=0)).all(), (counts <= start + images).all()]
        if lengths:
            possible.append(torch.linalg.vector_norm(torch.stack(lengths)) <= self._most)  # NaN is not below anything
        return bool(torch.stack(possible).all()) if possible else True  # one read from the device


def too_large(statistics: Tensors, received: Tensors, max_ratio: float) -> str | None:
    """Say how far statistics of features exceed what the model can give; None if they do not.

    They may be squares of features, as covariances are, and so have the square of what an update has.
    """
    length, root = _length(_floats(statistics)), max_ratio * _scale(received)
    most = root * root
    if length <= most and math.isfinite(length):
        return None
    return f"its statistics have the length {length:.3g}, update.max_ratio allows {most:.3g}"


def is_variance(name: str) -> bool:
    """Whether a tensor holds BatchNorm's running variances."""
    return name.endswith("running_var")


def _impossible(state: Tensors, received: Tensors, images: int) -> str | None:
    """Say which variance is negative, or which counter runs backwards below zero or faster than images came."""
    wrong = {name: tensor < 0 for name, tensor in state.items() if is_variance(name)}
    for name, before in received.items():
        if _is_counter(before):
            count, start = state[name].long(), before.long()
            wrong[name] = (count < start.clamp(max=0)) | (count > start + images)
    if not wrong or not torch.cat([mask.flatten() for mask in wrong.values()]).any():  # one read from the device
        return None
    name = next(name for name, mask in wrong.items() if mask.any())
    if is_variance(name):
        return f"{name} holds negative variances"
    return f"{name} counts what training on {images} images cannot have counted"


def _is_counter(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


def _places(received: Tensors, names: Sequence[str]) -> Tensor:
    """Where variances are in the vector of these tensors."""
    parts = [torch.full_like(received[name], is_variance(name), dtype=torch.bool).flatten() for name in names]
    return torch.cat(parts).nonzero().flatten()


def _floats(state: Tensors) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}


def _spread(name: str, tensor: Tensor) -> Tensor:
    """A tensor on the scale of weights and features: of variances, the standard deviations."""
    return tensor.clamp(min=0).sqrt() if is_variance(name) else tensor


def _scale(received: Tensors) -> float:
    """How long the model is, as one vector; 1 if it is shorter, or if there is none."""
    return max(1.0, _length({name: _spread(name, tensor) for name, tensor in _floats(received).items()}))


def _length(tensors: Tensors) -> float:
    """The length of all together; infinite where squares overflow."""
    together = torch.cat([tensor.flatten() for tensor in tensors.values()] or [torch.zeros(1)])
    return float(torch.linalg.vector_norm(together))
