"""The user's own data: a list of (x, y), one for each client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedetf.data.partition import Indices
from fedetf.data.samples import Dataset, Samples
from fedetf.errors import UserError

Pair = tuple[Any, Any]


def from_clients(data: Sequence[Pair], test: Pair | None) -> tuple[Dataset, list[Indices]]:
    """Join the clients' arrays into one dataset; also return which samples are whose.

    ``x`` is ``[n, …]``: uint8 images (``[n, H, W]``, ``[n, C, H, W]`` or ``[n, H, W, C]``) or floating numbers, used
    as they are. ``y`` is ``[n]``, of integers or strings. Without ``test`` the clients' own data stands in for it; the
    caller replaces that by what the clients hold out.
    """
    if not data:
        raise UserError("data is empty; give a list of (x, y), one for each client")
    xs = [as_inputs(x, f"client {k}") for k, (x, _) in enumerate(data)]
    ys = [np.asarray(y) for _, y in data]
    kinds = {f"{tuple(x.shape[1:])} {x.dtype}" for x in xs}
    if len(kinds) > 1:
        raise UserError(
            f"clients hold inputs of different shapes or types: {', '.join(sorted(kinds))}; make them agree"
        )
    classes, labels = np.unique(np.concatenate(ys), return_inverse=True)
    train = Samples(torch.cat(xs), torch.from_numpy(labels.astype(np.int64)))
    names = [str(c) for c in classes]
    ends = np.cumsum([len(y) for y in ys])
    parts = np.split(np.arange(len(labels)), ends[:-1])
    if test is None:
        return Dataset(train, train, names), parts
    test_labels = np.asarray(test[1])
    if not np.isin(test_labels, classes).all():
        raise UserError(
            f"the test set has labels that no client holds: {set(test_labels.tolist()) - set(classes.tolist())}"
        )
    test_y = torch.from_numpy(np.searchsorted(classes, test_labels).astype(np.int64))
    return Dataset(train, Samples(as_inputs(test[0], "the test set"), test_y), names), parts


def as_inputs(x: Any, where: str) -> Tensor:
    """``x`` as a tensor: images to ``[n, C, H, W]`` uint8, numbers to float32."""
    tensor = torch.as_tensor(x)
    if tensor.ndim < 2:
        raise UserError(f"{where}: inputs have shape {tuple(tensor.shape)}; expected [n, features] or images")
    if tensor.dtype != torch.uint8:
        if not torch.isfinite(tensor).all():
            raise UserError(f"{where}: inputs hold NaN or infinite values; replace them")
        return tensor.to(torch.float32)
    if tensor.ndim == 3:
        return tensor[:, None]
    if tensor.ndim == 4 and tensor.shape[-1] in (1, 3) and tensor.shape[1] not in (1, 3):
        return tensor.permute(0, 3, 1, 2)
    return tensor
