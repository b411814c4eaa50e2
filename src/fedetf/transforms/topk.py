"""The largest entries of an update only (``update.top_k``)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.errors import RunError
from fedetf.transforms.base import Shapes

VALUES, PLACES = "/values", "/places"


@dataclass(frozen=True)
class TopK:
    """Of each tensor the largest entries, and where they stood.

    k = max(1, ⌈share·d⌉) of them; of equal ones the first.
    Places travel as numbers of four bytes or as one bit for each entry, whichever is less.
    """

    share: float

    def encode(self, update: State) -> State:
        """``NAME/values`` ``[k]`` and ``NAME/places``."""
        sent = {}
        for name, tensor in update.items():
            flat = tensor.flatten()
            largest = flat.abs().sort(descending=True, stable=True).indices[: self._count(flat.numel())]
            places = largest.sort().values
            sent[name + VALUES], sent[name + PLACES] = flat[places], _packed(places, flat.numel())
        return sent

    def decode(self, sent: State, shapes: Shapes) -> State:
        """Zeros, with the values where they stood."""
        update = {}
        for name, shape in shapes.items():
            values, total = sent[name + VALUES], math.prod(shape)
            places = _unpacked(sent[name + PLACES], total, self._count(total))
            update[name] = values.new_zeros(total).index_copy_(0, places.to(values.device), values).reshape(shape)
        return update

    def shapes(self, shapes: Shapes) -> Shapes:
        """Those of the values."""
        return {name + VALUES: (self._count(math.prod(shape)),) for name, shape in shapes.items()}

    def _count(self, total: int) -> int:
        return min(total, max(1, math.ceil(self.share * total)))


def _packed(places: Tensor, total: int) -> Tensor:
    if not _as_bits(len(places), total):
        return places.to(torch.int32)
    mask = np.zeros(total, bool)
    mask[places.cpu().numpy()] = True
    return torch.from_numpy(np.packbits(mask))


def _unpacked(sent: Tensor, total: int, count: int) -> Tensor:
    as_bits = _as_bits(count, total)
    kind, length = (torch.uint8, -(-total // 8)) if as_bits else (torch.int32, count)
    if sent.dtype != kind or tuple(sent.shape) != (length,):
        raise RunError(f"places are {sent.dtype} {list(sent.shape)}, not {kind} [{length}]")
    if as_bits:
        places = torch.from_numpy(np.flatnonzero(np.unpackbits(sent.cpu().numpy(), count=total)))
    else:
        places = sent.cpu().long()
    if (
        len(places) != count
        or (count and not 0 <= int(places.min()) <= int(places.max()) < total)
        or len(places.unique()) < count
    ):
        raise RunError(f"places do not name {count} of {total} entries")
    return places


def _as_bits(count: int, total: int) -> bool:
    return -(-total // 8) < 4 * count
