"""A state as one vector for each type of number: one operation on it instead of one on each of many small tensors."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def packed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy in which tensors of one type lie one behind the other, so that :func:`joined` has nothing to do."""
    copy: dict[str, Tensor] = dict.fromkeys(state, torch.empty(0))  # in the same order
    for names in alike(state):
        tensors = [state[name].detach() for name in names]
        vector = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
        for name, tensor, place in zip(names, tensors, parted(vector, [t.shape for t in tensors]), strict=True):
            copy[name] = place.copy_(tensor)
    return copy


def alike(state: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of a state's tensors, those of one type on one device together."""
    names: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in state.items():
        names.setdefault((tensor.dtype, tensor.device), []).append(name)
    return list(names.values())


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors, of one type, as one vector ``[n]``: a view if they lie one behind the other, else a copy."""
    first = tensors[0]
    start = end = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous():
            break
        end += tensor.numel() * tensor.element_size()
    else:
        memory = first.untyped_storage()
        if end <= memory.data_ptr() + memory.nbytes():  # else they are neighbours by chance
            return first.as_strided([(end - start) // first.element_size()], [1])
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def parted(vector: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """A vector as tensors of these shapes, views of it: the reverse of :func:`joined`."""
    parts = vector.split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
