"""Memory that several processes see: the images once, and the model that a round starts from."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import pickle  # of a run's own job, between a process and the workers it made; no file is ever read with it
import tempfile
from collections.abc import Sequence
from typing import Any

import cloudpickle

ALIGNMENT = 64


class Memory:
    """A piece of memory that is passed on by its file descriptor, and gone when the last process has let go of it."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.bytes = memoryview(mmap.mmap(descriptor, 0))

    @classmethod
    def new(cls, size: int) -> Memory:
        """Fresh memory of at least ``size`` bytes."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("fedetf")
        else:  # macOS: a file without a name serves as well
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor)

    def close(self) -> None:
        """Let go of the descriptor. The bytes stay for as long as something refers to them."""
        os.close(self.descriptor)


def flatten(value: Any) -> list[memoryview]:
    """Any object as a pickle and, apart from it and not copied, the content of its arrays."""
    arrays: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return [memoryview(head), *(array.raw() for array in arrays)]


def restore(parts: Sequence[Any]) -> Any:
    """The object of :func:`flatten`. Its arrays are views of ``parts``."""
    head, *arrays = parts
    return pickle.loads(head, buffers=arrays)  # made by this run for its own workers; no file is ever read so


def store(parts: Sequence[memoryview | bytes]) -> Memory:
    """Put pieces of bytes into shared memory, each on a boundary that fits every type of array."""
    sizes = [memoryview(part).nbytes for part in parts]
    head = json.dumps(sizes).encode()
    starts = _starts(len(head), sizes)
    memory = Memory.new(starts[-1] + sizes[-1])
    memory.bytes[:8] = len(head).to_bytes(8, "little")
    memory.bytes[8 : 8 + len(head)] = head
    for start, size, part in zip(starts, sizes, parts, strict=True):
        memory.bytes[start : start + size] = part
    return memory


def stored(memory: Memory) -> list[memoryview]:
    """The pieces that :func:`store` put there. Nobody may write to them."""
    length = int.from_bytes(memory.bytes[:8], "little")
    sizes = json.loads(bytes(memory.bytes[8 : 8 + length]))
    starts = _starts(length, sizes)
    return [memory.bytes[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _starts(head: int, sizes: Sequence[int]) -> list[int]:
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in (8 + head, *sizes)]
    return list(itertools.accumulate(rounded))[:-1]
