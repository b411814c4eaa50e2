"""The user's own data: a list of (x, y), one for each client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedetf.data.partition import Partition, split_as
from fedetf.data.samples import Dataset, Samples
from fedetf.errors import UserError
from fedetf.settings import DataSettings

Pair = tuple[Any, Any]


def from_clients(
    data: Sequence[Pair], test: Pair | None, settings: DataSettings, seed: int
) -> tuple[Dataset, Partition]:
    """Join the clients' arrays into one dataset, and split each client's share as everywhere.

    ``x`` is ``[n, …]``: uint8 images (``[n, H, W]``, ``[n, C, H, W]`` or ``[n, H, W, C]``) or floating numbers, used
    as they are. ``y`` is ``[n]``, of integers or strings. Without ``test``, what all clients hold out stands in for it.
    """
    pairs = [_pair(pair, f"client {k}") for k, pair in enumerate(data)]
    if not pairs:
        raise UserError("data is empty; give a list of (x, y), one for each client")
    kinds = {f"{tuple(x.shape[1:])} {x.dtype}" for x, _ in pairs}
    if len(kinds) > 1:
        raise UserError(
            f"clients hold inputs of different shapes or types: {', '.join(sorted(kinds))}; make them agree"
        )
    if len({y.dtype.kind for _, y in pairs}) > 1:
        raise UserError("some clients have numbers as labels, others text; make them agree")
    classes, labels = np.unique(np.concatenate([y for _, y in pairs]), return_inverse=True)
    train = Samples(torch.cat([x for x, _ in pairs]), torch.from_numpy(labels.astype(np.int64)))
    names = [str(c) for c in classes]
    ends = np.cumsum([len(y) for _, y in pairs])
    partition = split_as(settings, np.split(np.arange(len(labels)), ends[:-1]), labels, names, seed)
    if test is None:
        held_out = train.take(torch.from_numpy(np.concatenate(partition.test)))
    else:
        held_out = _test_samples(test, classes)
    return Dataset(train, held_out, names), partition


def _test_samples(test: Pair, classes: NDArray[Any]) -> Samples:
    x, y = _pair(test, "the test set")
    unknown = sorted(set(y.tolist()) - set(classes.tolist()))
    if unknown:
        raise UserError(f"the test set has labels that no client holds: {unknown[:5]}")
    return Samples(x, torch.from_numpy(np.searchsorted(classes, y).astype(np.int64)))


def _pair(pair: Any, where: str) -> tuple[Tensor, NDArray[Any]]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise UserError(f"{where}: expected (x, y), inputs and labels")
    x, y = as_inputs(pair[0], where), as_labels(pair[1], where)
    if len(x) != len(y):
        raise UserError(f"{where} has {len(x)} inputs but {len(y)} labels; give one label for each input")
    return x, y


def as_labels(y: Any, where: str) -> NDArray[Any]:
    """``y`` as ``[n]`` integers or strings."""
    labels = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    if labels.ndim != 1:
        raise UserError(f"{where}: labels have shape {labels.shape}; expected [n], one class for each input")
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        raise UserError(f"{where}: labels must be whole numbers or text; some are missing or fractions")
    if labels.dtype.kind not in "biufUS":
        raise UserError(f"{where}: labels must be numbers or text, all of one kind, not {labels.dtype}")
    return labels


def as_inputs(x: Any, where: str) -> Tensor:
    """``x`` as a tensor: images to ``[n, C, H, W]`` uint8, numbers to float32."""
    tensor = torch.as_tensor(x).detach().cpu()
    if tensor.ndim < 2:
        raise UserError(f"{where}: inputs have shape {tuple(tensor.shape)}; expected [n, features] or images")
    if tensor.is_complex():
        raise UserError(f"{where}: inputs are complex; give real numbers")
    if tensor.dtype != torch.uint8 or tensor.ndim == 2:  # bytes in rows are numbers, not pictures
        if not torch.isfinite(tensor).all():
            raise UserError(f"{where}: inputs hold NaN or infinite values; replace them")
        return tensor.to(torch.float32)
    return torch.from_numpy(channels_first(tensor.numpy()))


def channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """``[n, h, w]`` or ``[n, h, w, c]`` as ``[n, c, h, w]``; channels are last if that is 1 or 3 and the second is not.

    Everything else stays as it is.
    """
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] not in (1, 3):
        return images.transpose(0, 3, 1, 2)
    return images
