"""Named random streams: every draw comes from a generator that is a function of (seed, purpose, round, client).

No draw depends on what was drawn before elsewhere. So two methods see the same partition and the same batches, one
worker gives the same bits as eight, and a resumed run the same as one that was never stopped.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

CPU = torch.device("cpu")


def derive(seed: int, purpose: str, *keys: int) -> int:
    """A 63-bit seed for one stream; different (purpose, keys) give unrelated streams."""
    text = "/".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_stream(seed: int, purpose: str, *keys: int) -> torch.Generator:
    """A torch generator for one stream. It lives on the CPU, so that every device gets the same draws."""
    return torch.Generator().manual_seed(derive(seed, purpose, *keys))


def numpy_stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A NumPy generator for one stream."""
    return np.random.default_rng(derive(seed, purpose, *keys))


@contextmanager
def global_stream(seed: int, purpose: str, *keys: int, device: torch.device = CPU) -> Iterator[None]:
    """Run a block with torch's global generators set to one stream, and put back that of the CPU and of ``device``.

    For code that can only draw from there: weight initialisation, dropout.
    """
    stream = derive(seed, purpose, *keys)
    if device.type != "cpu":
        with torch.random.fork_rng([device], device_type=device.type):
            torch.manual_seed(stream)
            yield
        return
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(stream)  # torch.manual_seed notes a traceback for each kind of absent device
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
