"""What makes an update unfit to be folded in: its form, values that are no numbers, and too much influence.

A client may send whatever its data teach it. What no local training can have made of the received model is refused, for
one such update would decide the average for all.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

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
        weights = [name for name in _floats(received) if not is_variance(name)]
        variances = [name for name in received if is_variance(name)]
        counters = [name for name, tensor in received.items() if _is_counter(tensor)]
        groups = (weights, variances, counters) if received else ()
        self._parts = [(names, _joined(received, names)) for names in groups]
        self._most = max_ratio * _scale(received)

    def passes(self, state: Tensors, images: int) -> bool:
        """Whether nothing is wrong; False means that it takes a closer look to tell."""
        if not state or {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} != self._forms:
            return False
        (weights, before), (variances, spread), (counts, start) = ((_joined(state, n), r) for n, r in self._parts)
        deviations = variances.clamp(min=0).sqrt() - spread.clamp(min=0).sqrt()
        length = torch.hypot(torch.dist(weights, before), torch.linalg.vector_norm(deviations))
        possible = (variances >= 0).all() & (counts >= start.clamp(max=0)).all() & (counts <= start + images).all()
        return bool(possible & (length <= self._most))  # one read from the device; NaN is not below anything


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


def _joined(state: Tensors, names: Sequence[str]) -> Tensor:
    """The named tensors as one vector."""
    named = [state[name].flatten() for name in names]
    return torch.cat(named) if named else next(iter(state.values())).new_zeros(0)


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
