"""Model state as a flat ``dict[str, Tensor]``: what travels, what is averaged, what is saved."""

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedetf.files import TENSORS, UnfitFile, checked, parse_json, write_whole

State = dict[str, Tensor]


def clone(state: Mapping[str, Tensor], layout: torch.memory_format = torch.preserve_format) -> State:
    """A copy that shares no memory with ``state`` and carries no gradient."""
    return {name: tensor.detach().clone(memory_format=layout) for name, tensor in state.items()}


def nbytes(state: Mapping[str, Tensor]) -> int:
    """The number of bytes that ``state`` costs to send."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def widest(device: torch.device) -> torch.dtype:
    """Double precision where the device has it, for sums and logarithms that are rounded once."""
    return torch.float32 if device.type == "mps" else torch.float64


class WeightedMean:
    """A running weighted mean of states (Eq. 2): one sum in memory, whatever the number of clients.

    Floating tensors are averaged. Of integer tensors (BatchNorm's ``num_batches_tracked``) the largest is taken, a mean
    of counters having no meaning. Sums are kept in double precision where the device has it: the mean of a single state
    is then that state to the bit.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum: State = {}
        self._dtype: dict[str, torch.dtype] = {}

    def add(self, state: Mapping[str, Tensor], weight: float) -> None:
        """Fold in one state with its weight."""
        self.weight += weight
        for name, tensor in state.items():
            self._dtype[name] = tensor.dtype
            if not tensor.is_floating_point():
                seen = self._sum.get(name)
                self._sum[name] = tensor.clone() if seen is None else torch.maximum(seen, tensor)
            elif name in self._sum:
                self._sum[name].add_(tensor, alpha=weight)  # in the sum's precision
            else:
                self._sum[name] = tensor.to(widest(tensor.device)) * weight

    def result(self) -> State:
        """The mean of what was added; empty if nothing with a positive weight was."""
        if self.weight <= 0:
            return {}
        return {
            name: (total / self.weight if total.is_floating_point() else total).to(self._dtype[name])
            for name, total in self._sum.items()
        }


def save_state(state: Mapping[str, Tensor], path: Path, about: Mapping[str, Any], sync: bool = True) -> None:
    """Write ``state`` as safetensors so that ``path`` holds either the old file or the whole new one.

    ``about`` goes into the file's metadata as JSON, with a checksum of everything, under one key: the format does not
    keep several in a fixed order, and equal models shall be equal files.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    told = json.loads(json.dumps(about))  # as it will be read again: the keys of a dict are strings then
    note = json.dumps({**told, "check": _checksum(contiguous, told)})
    write_whole(path, save(contiguous, {"fedetf": note}), sync)


def load_checked(path: Path) -> tuple[dict[str, Any], State]:
    """What :func:`save_state` was told about a file, and the file, if it is as it was written."""
    state = load_state(path)
    with safe_open(path, framework="pt") as file:
        note = (file.metadata() or {}).get("fedetf")
    if note is None:
        raise UnfitFile(f"{path} does not say what it is; it was not written by fedetf")
    about = parse_json(note, str(path))
    expected = about.pop("check", None) if isinstance(about, dict) else None
    try:
        whole = expected is not None and _checksum(state, about) == expected
    except RecursionError:  # nested deeper than anything that can be written
        whole = False
    if not whole:
        raise UnfitFile(f"{path} is damaged: its content has changed")
    return about, state


def _checksum(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> int:
    check = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name in sorted(state):
        content = state[name].reshape(-1).view(torch.uint8).numpy()
        check = zlib.crc32(content.tobytes(), zlib.crc32(name.encode(), check))
    return check


def load_state(path: Path, device: str | torch.device = "cpu") -> State:
    """Read a safetensors file."""
    try:
        return load_file(checked(path, TENSORS), device=str(device))
    except (SafetensorError, TypeError) as error:  # the second for sizes beyond 64 bits
        raise UnfitFile(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def select(state: Mapping[str, Tensor], names: Iterable[str]) -> State:
    """The named tensors of ``state``."""
    return {name: state[name] for name in names}
