"""Inputs that look different at each client: a tilted camera, a noisy sensor, other colours (``data.shift``).

A client's own difference is drawn once, from (seed, client), and recorded in ``partition.json``. All of its samples
have it, in every split. The test set of the global model stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, radians, sin

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedetf.errors import UserError
from fedetf.rng import numpy_stream, torch_stream
from fedetf.settings import DataSettings

DEGREES = 90.0  # of rotation at strength 1, to either side
NOISE = 0.5  # standard deviation at strength 1, as a share of the range of pixels or of the spread of numbers
BLUR = 0.1  # standard deviation at strength 1, as a share of an image's width
FACTOR = 2.0  # of colour and scale at strength 1: from a half to twice
ONE_SIDED = ("noise", "blur")  # a client has more or less of it; the others go both ways
FOR_NUMBERS = ("noise", "scale")


@dataclass(frozen=True)
class Shift:
    """What is different at each client."""

    kind: str
    amounts: list[list[float]]  # of each client: degrees, a standard deviation, or a factor (colour: of each channel)


def draw_shift(settings: DataSettings, clients: int, shape: Sequence[int], seed: int) -> Shift | None:
    """Each client's own difference; None if ``data.shift`` asks for none. ``shape`` is that of one input."""
    kind, strength = settings.shift, settings.shift_strength
    if kind == "none":
        return None
    if len(shape) != 3 and kind not in FOR_NUMBERS:
        raise UserError(f"data.shift = {kind!r} is for images; for numbers choose {' or '.join(FOR_NUMBERS)}")
    low, number = (0.0 if kind in ONE_SIDED else -1.0), (shape[0] if kind == "colour" else 1)
    draws = [numpy_stream(seed, "shift", k).uniform(low, 1.0, number) * strength for k in range(clients)]
    units = {"rotate": DEGREES, "noise": NOISE, "blur": BLUR * shape[-1]}
    amounts = [draw * units[kind] if kind in units else FACTOR**draw for draw in draws]
    return Shift(kind, [[float(f"{value:.6g}") for value in amount] for amount in amounts])


def shifted(x: Tensor, shift: Shift, parts: Sequence[NDArray[np.int64]], seed: int) -> Tensor:
    """A copy of the inputs ``[N, ...]`` in which each client's samples ``parts[k]`` look as that client sees them."""
    changed = x.clone()
    spread = _spread(x) if x.is_floating_point() else None  # of each number; pixels have a range instead
    for k, (amount, part) in enumerate(zip(shift.amounts, parts, strict=True)):
        if not len(part):
            continue
        rows = torch.from_numpy(part)
        mine = x[rows] if x.is_floating_point() else x[rows].float()
        seen = _SEE[shift.kind](mine, amount, spread, torch_stream(seed, "shift-noise", k))
        changed[rows] = seen if spread is not None else seen.round_().clamp_(0, 255).to(x.dtype)
    return changed


def _spread(x: Tensor) -> Tensor:
    """The standard deviation of each number over the samples ``[N, ...]`` that have it."""
    there = ~x.isnan()
    if there.all():
        return x.std(dim=0)
    count = there.sum(dim=0).clamp(min=2)
    deviations = torch.where(there, x - x.nanmean(dim=0), 0.0)
    return (deviations.square().sum(dim=0) / (count - 1)).sqrt()


# --- what one client sees, each (inputs [n, ...], amount, spread, generator) -> inputs --------------------------------


def _rotate(x: Tensor, amount: Sequence[float], _spread: Tensor | None, _generator: torch.Generator) -> Tensor:
    return _turned(x, radians(amount[0]), 1.0)


def _noise(x: Tensor, amount: Sequence[float], spread: Tensor | None, generator: torch.Generator) -> Tensor:
    return x + amount[0] * (255.0 if spread is None else spread) * torch.randn(x.shape, generator=generator)


def _blur(x: Tensor, amount: Sequence[float], _spread: Tensor | None, _generator: torch.Generator) -> Tensor:
    """A Gaussian blur; beyond the edges an image goes on as it is at them."""
    sigma, channels = amount[0], x.shape[1]
    radius = round(3 * sigma)
    if radius < 1:
        return x
    places = torch.arange(-radius, radius + 1, dtype=x.dtype)
    weights = torch.exp(-(places**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).expand(channels, 1, 1, -1)
    x = F.conv2d(F.pad(x, (radius, radius, 0, 0), mode="replicate"), weights, groups=channels)
    return F.conv2d(F.pad(x, (0, 0, radius, radius), mode="replicate"), weights.transpose(2, 3), groups=channels)


def _colour(x: Tensor, amount: Sequence[float], _spread: Tensor | None, _generator: torch.Generator) -> Tensor:
    return x * torch.tensor(amount).view(1, -1, 1, 1)


def _scale(x: Tensor, amount: Sequence[float], spread: Tensor | None, _generator: torch.Generator) -> Tensor:
    """Images are magnified, numbers multiplied."""
    return _turned(x, 0.0, amount[0]) if spread is None else x * amount[0]


def _turned(x: Tensor, angle: float, factor: float) -> Tensor:
    """Images turned counter-clockwise by ``angle`` and magnified by ``factor`` about their middle, black beyond."""
    H, W = x.shape[-2:]
    c, s = cos(angle) / factor, sin(angle) / factor  # the grid says where a pixel comes from: the inverse
    matrix = torch.tensor([[c, -s * H / W, 0.0], [s * W / H, c, 0.0]])
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


_SEE = {"rotate": _rotate, "noise": _noise, "blur": _blur, "colour": _colour, "scale": _scale}
