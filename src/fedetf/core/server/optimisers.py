"""The server's step towards the combined model (``server.optimiser``; Hsu et al. 2019, Reddi et al. 2021).

D = combined − wᵗ is the pseudo-gradient. Sums are in double precision and rounded once.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from fedetf.core.state import State, widest
from fedetf.settings import ServerSettings

RATES = {"momentum": 1.0, "adagrad": 0.1, "adam": 0.01, "yogi": 0.01}  # where server.lr is left out
SLOTS = {"momentum": ("v",), "adagrad": ("v",), "adam": ("m", "v"), "yogi": ("m", "v")}


def is_plain(settings: ServerSettings) -> bool:
    """Whether the server simply takes the combined model: by name, or because the step would change nothing."""
    name = settings.optimiser
    return name == "none" or (name == "momentum" and settings.momentum == 0 and rate(settings) == 1)


def rate(settings: ServerSettings) -> float:
    """``server.lr``, or what suits the optimiser."""
    return RATES[settings.optimiser] if settings.lr is None else settings.lr


def initial_memory(parameters: State, settings: ServerSettings) -> State:
    """What the optimiser remembers before the first round: zeros."""
    slots = () if is_plain(settings) else SLOTS[settings.optimiser]
    return {f"{slot}.{name}": zeros(tensor) for slot in slots for name, tensor in parameters.items()}


def zeros(like: Tensor) -> Tensor:
    """Zeros of that shape in the widest type."""
    return torch.zeros(like.shape, dtype=widest(like.device), device=like.device)


def moved(combined: State, current: State, names: Collection[str], settings: ServerSettings, memory: State) -> State:
    """The combined model with a step of the optimiser in place of the tensors ``names``; ``memory`` is its own.

    momentum: v ← m·v + D, w ← w + lr·v. The others: m ← β₁·m + (1 − β₁)·D (Adagrad: D itself), w ← w + lr·m/(√v + ε)
    with v ← v + D² (Adagrad), β₂·v + (1 − β₂)·D² (Adam), v − (1 − β₂)·D²·sign(v − D²) (Yogi). No bias correction, as
    in Reddi et al.
    """
    result = dict(combined)
    for name in names:
        w = current[name].to(widest(current[name].device))
        step = _step(name, combined[name].to(w.dtype) - w, settings, memory)
        result[name] = (w + rate(settings) * step).to(current[name].dtype)
    return result


def _step(name: str, D: Tensor, s: ServerSettings, memory: State) -> Tensor:
    v = memory[f"v.{name}"]
    if s.optimiser == "momentum":
        v = memory[f"v.{name}"] = s.momentum * v + D
        return v
    square = D.square()
    if s.optimiser == "adagrad":
        m, v = D, v + square
    else:
        m = memory[f"m.{name}"] = s.beta1 * memory[f"m.{name}"] + (1 - s.beta1) * D
        if s.optimiser == "adam":
            v = s.beta2 * v + (1 - s.beta2) * square
        else:
            v = v - (1 - s.beta2) * square * (v - square).sign()
    memory[f"v.{name}"] = v
    return m / (v.sqrt() + s.eps)
