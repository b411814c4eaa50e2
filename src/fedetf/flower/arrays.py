"""Tensors as Flower's arrays, and back. What comes in is looked at before any memory is given to it.

An Array's data are a .npy file. Its header is compared with the one that type and shape should have and never
interpreted: it cannot ask for memory, hold objects, or claim more numbers than there are.
"""

import math

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fedetf.core.state import State
from fedetf.errors import RunError

STYPE = "numpy.ndarray"  # what Flower calls a .npy file
MAGIC = b"\x93NUMPY\x01\x00"  # with the version of the format
START = len(MAGIC) + 2  # where the header begins, after its own length in two bytes
TYPES = {str(np.dtype(kind)): np.dtype(kind) for kind in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")}


def to_arrays(state: State) -> ArrayRecord:
    """Tensors as Flower has them."""
    return ArrayRecord({name: Array(tensor.cpu().contiguous().numpy()) for name, tensor in state.items()})


def to_state(arrays: ArrayRecord, device: torch.device | None = None) -> State:
    """And back; with memory of their own."""
    return {name: torch.tensor(numbers(name, array), device=device) for name, array in arrays.items()}


def numbers(name: str, array: Array) -> np.ndarray:
    """The content of an array, in the memory of its message; an error if it is not what it claims to be."""
    if array.stype != STYPE or array.dtype not in TYPES:
        raise RunError(f"{name} is {array.stype} of {array.dtype}, not {STYPE} of numbers")
    kind, shape = TYPES[array.dtype], tuple(array.shape)
    if len(shape) > 8 or not all(type(size) is int and size >= 0 for size in shape):
        raise RunError(f"{name} has no shape")
    data = memoryview(array.data)
    length = int.from_bytes(data[len(MAGIC) : START], "little")
    header, content = bytes(data[START : START + length]), data[START + length :]
    expected = f"{{'descr': {kind.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if data[: len(MAGIC)] != MAGIC or len(header) != length or header.rstrip() != expected.encode():
        raise RunError(f"{name} does not hold {array.dtype} numbers of shape {list(shape)}")
    if len(content) != math.prod(shape) * kind.itemsize:
        raise RunError(f"{name} holds {len(content)} bytes, not those of shape {list(shape)}")
    return np.frombuffer(content, kind).reshape(shape)
