"""``--compile``: the encoder's training step through torch.compile, where that pays and can be done."""

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor, nn

Encode = Callable[[Tensor], Tensor]

WORTH_SAYING = 5.0  # seconds


def compiled(encoder: nn.Module, example: Tensor) -> Encode:
    """The encoder, compiled for training batches of the shape of ``example``.

    Others, such as the last batch of an epoch, and all evaluation go through the encoder as it is: each further shape
    would be compiled anew. Compiled code is cached by torch, on disk, for later runs; workers take turns so that one of
    them compiles and the others find it there. Where compiling fails, the encoder is used as it is, with a warning.
    """
    fast = torch.compile(encoder, dynamic=False)
    began = time.perf_counter()
    try:
        with FileLock(Path(tempfile.gettempdir()) / "fedetf-compile.lock"), torch.enable_grad():
            encoder.train()
            fast(example).sum().backward()
    except Exception as error:  # no compiler, an encoder that cannot be traced: torch has many words for it
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        warnings.warn(f"the encoder cannot be compiled here and is used as it is ({reason})", stacklevel=2)
        return encoder
    finally:
        for parameter in encoder.parameters():
            parameter.grad = None
    seconds = time.perf_counter() - began
    if seconds > WORTH_SAYING:
        warnings.warn(f"compiling the encoder took {seconds:.0f} s; torch caches it for later runs", stacklevel=2)

    def encode(x: Tensor) -> Tensor:
        features: Tensor = fast(x) if encoder.training and x.shape == example.shape else encoder(x)
        return features

    return encode
