"""``engine.compile``: a faster training step of the encoder, where that pays and can be done."""

import time
import warnings
from collections.abc import Callable

import torch
from filelock import FileLock
from torch import Tensor, nn

from fedetf.files import make_folder, user_cache
from fedetf.nn.encoders import fused

Encode = Callable[[Tensor], Tensor]

WORTH_SAYING = 5.0  # seconds


def with_kernels(encoder: nn.Module, device: torch.device) -> Encode:
    """The encoder with kernels of its own, if there are some for it; where they cannot be built, as it is."""
    try:
        if device.type == "cpu":
            fused.enable(encoder)
    except Exception as error:  # no compiler, or one that fails
        _warn(error)
    return encoder


def compiled(encoder: nn.Module, example: Tensor) -> Encode:
    """The encoder with a faster training step; where that fails, the encoder as it is, with a warning.

    On a CPU the residual networks have kernels of their own, because torch.compile gains nothing with them there. All
    else goes through torch.compile.
    """
    try:
        if example.device.type == "cpu" and fused.enable(encoder):
            return encoder
        return _by_torch(encoder, example)
    except Exception as error:  # no compiler, an encoder that cannot be traced: torch has many words for it
        _warn(error)
        return encoder


def _warn(error: Exception) -> None:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    warnings.warn(f"the encoder cannot be compiled here and is used as it is ({reason})", stacklevel=3)


def _by_torch(encoder: nn.Module, example: Tensor) -> Encode:
    """The encoder through torch.compile for training batches of the shape of ``example``.

    Others, such as the last batch of an epoch, and all evaluation go through the encoder as it is: each further shape
    would be compiled anew. Compiled code is cached by torch, on disk, for later runs; workers take turns so that one of
    them compiles and the others find it there.
    """
    began = time.perf_counter()
    make_folder(user_cache(), private=True)
    with FileLock(user_cache() / "compile.lock"), torch.enable_grad():
        fast = torch.compile(encoder, dynamic=False)
        encoder.train()
        fast(example).sum().backward()
    for parameter in encoder.parameters():
        parameter.grad = None
    seconds = time.perf_counter() - began
    if seconds > WORTH_SAYING:
        warnings.warn(f"compiling the encoder took {seconds:.0f} s; torch caches it for later runs", stacklevel=2)

    def encode(x: Tensor) -> Tensor:
        features: Tensor = fast(x) if encoder.training and x.shape == example.shape else encoder(x)
        return features

    return encode
