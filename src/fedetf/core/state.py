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

from fedetf.core.vectors import alike, joined, parted
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
        self._form: dict[str, tuple[torch.Size, torch.dtype]] = {}  # of the first state, and its sums as vectors
        self._vectors: list[tuple[list[str], Tensor]] = []
        self._sum: State = {}  # by name: parts of them, and whatever later states have besides
        self._dtype: dict[str, torch.dtype] = {}

    def add(self, state: Mapping[str, Tensor], weight: float) -> None:
        """Fold in one state with its weight."""
        self.weight += weight
        form = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        if not self._sum:
            self._begin(state, weight, form)
        elif form == self._form:
            for names, total in self._vectors:
                _fold(total, joined([state[name] for name in names]), weight)
        else:
            self._add_by_name(state, weight)

    def _begin(self, state: Mapping[str, Tensor], weight: float, form: dict[str, Any]) -> None:
        self._form = form
        for names in alike(state):
            self._dtype |= dict.fromkeys(names, state[names[0]].dtype)
            total = _first(joined([state[name] for name in names]), weight)
            self._vectors.append((names, total))
            self._sum |= dict(zip(names, parted(total, [state[name].shape for name in names]), strict=True))

    def _add_by_name(self, state: Mapping[str, Tensor], weight: float) -> None:
        for name, tensor in state.items():
            self._dtype[name] = tensor.dtype
            if name in self._sum:
                _fold(self._sum[name], tensor, weight)
            else:
                self._sum[name] = _first(tensor, weight)

    def result(self) -> State:
        """The mean of what was added; empty if nothing with a positive weight was."""
        if self.weight <= 0:
            return {}
        return {
            name: (total / self.weight if total.is_floating_point() else total).to(self._dtype[name])
            for name, total in self._sum.items()
        }


def _first(tensor: Tensor, weight: float) -> Tensor:
    """What :class:`WeightedMean` makes of the first value."""
    return tensor.to(widest(tensor.device)) * weight if tensor.is_floating_point() else tensor.clone()


def _fold(total: Tensor, tensor: Tensor, weight: float) -> None:
    """Add a value to what it has so far, in the precision of the sum."""
    if total.is_floating_point():
        total.add_(tensor, alpha=weight)
    else:
        torch.maximum(total, tensor, out=total)


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
        check = zlib.crc32(content.data, zlib.crc32(name.encode(), check))
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
