"""Few bits a number (``update.bits``)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.errors import RunError
from fedetf.transforms.base import Shapes

CODES, SCALE = "/codes", "/scale"


@dataclass(frozen=True)
class Quantise:
    """Each tensor as integers of a few bits and one scale.

    s = max|p|/L, q = p/s rounded, halves to even, with L = 2^(bits−1) − 1 steps on either side of zero. One bit:
    q = ±1 by sign (0 is +) and s the mean of |p|.
    """

    bits: int  # 1, 2, 4 or 8

    def encode(self, update: State) -> State:
        """``NAME/codes``, packed into bytes, and ``NAME/scale``; what is no floating tensor travels as it is."""
        sent = {}
        for name, tensor in update.items():
            if not tensor.is_floating_point():
                sent[name] = tensor
                continue
            flat = tensor.flatten()
            scale = flat.abs().mean() if self.bits == 1 else flat.abs().max() / self._steps
            sent[name + SCALE] = scale.float()
            sent[name + CODES] = self._packed(self._codes(flat, scale))
        return sent

    def decode(self, sent: State, shapes: Shapes) -> State:
        """s·q; what was no floating tensor as it came."""
        coded = {name + part for name in shapes for part in (CODES, SCALE)}
        update = {name: tensor for name, tensor in sent.items() if name not in coded}
        for name, shape in shapes.items():
            codes, scale, total = sent[name + CODES], sent[name + SCALE], math.prod(shape)
            length = -(-total * self.bits // 8)
            if codes.dtype != torch.uint8 or tuple(codes.shape) != (length,) or scale.shape != ():
                raise RunError(f"the codes of {name} are {codes.dtype} {list(codes.shape)}, not uint8 [{length}]")
            q = self._unpacked(codes, total).to(scale.device)
            update[name] = (scale * q).reshape(shape)
        return update

    def shapes(self, shapes: Shapes) -> Shapes:
        """Of the scales."""
        return {name + SCALE: () for name in shapes}

    @property
    def _steps(self) -> int:
        return int(2 ** (self.bits - 1)) - 1

    def _codes(self, flat: Tensor, scale: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Whole numbers from 0 on."""
        if self.bits == 1:
            codes = flat >= 0
        else:
            q = torch.zeros_like(flat) if scale == 0 else (flat / scale).round().clamp(-self._steps, self._steps)
            codes = q + self._steps
        return codes.to(torch.uint8).cpu().numpy()

    def _packed(self, codes: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Tensor:
        bits = np.unpackbits(codes[:, None], axis=1)[:, 8 - self.bits :]
        return torch.from_numpy(np.packbits(bits))

    def _unpacked(self, codes: Tensor, total: int) -> Tensor:
        bits = np.unpackbits(codes.cpu().numpy(), count=total * self.bits).reshape(total, self.bits)
        powers = 2.0 ** np.arange(self.bits - 1, -1, -1)
        numbers = torch.from_numpy((bits @ powers).astype(np.float32))
        return 2 * numbers - 1 if self.bits == 1 else numbers - self._steps
