"""The user's own data: one entry for each client, of arrays, data frames, texts or files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedetf.data.decode import class_name
from fedetf.data.folders import folder_splits
from fedetf.data.frames import Frame, from_pandas, joined, of_columns
from fedetf.data.kinds import Note, TableNote
from fedetf.data.load import from_frames
from fedetf.data.partition import Partition, altered
from fedetf.data.samples import Dataset, Samples
from fedetf.data.sources import is_table, read_splits, tables_in
from fedetf.data.windows import split_given
from fedetf.errors import UserError, visible
from fedetf.settings import DataSettings

Pair = tuple[Any, Any]
TEXT = "text"  # the column of texts that are given without one


def from_clients(
    data: Sequence[Any] | Mapping[str, Any], test: Any, settings: DataSettings, seed: int, as_it_is: bool = False
) -> tuple[Dataset, Partition]:
    """Join what the clients hold into one dataset, and split each client's share as everywhere.

    ``data`` has one entry for each client, and their names if it is a dict: ``(x, y)``, a DataFrame with a column of
    labels, or the path of a CSV or Parquet file or of a folder. ``x`` is ``[n, …]``: uint8 images (``[n, H, W]``,
    ``[n, C, H, W]`` or ``[n, H, W, C]``), numbers ``[n, features]``, which are standardised (``as_it_is``: not), a
    DataFrame, or a list of texts; floating numbers of other shapes are used as they are. ``y`` is ``[n]``, of integers
    or strings. Without ``test``, what the clients that can train hold out stands in for it.
    """
    names = [visible(str(name)) for name in data] if isinstance(data, Mapping) else []
    entries = list(data.values()) if isinstance(data, Mapping) else list(data)
    if not entries:
        raise UserError("data is empty; give a list of (x, y), one for each client")
    called = names or [f"client {k}" for k in range(len(entries))]
    if any(_is_table(entry) for entry in entries):
        frames = [_frame(entry, name, settings) for entry, name in zip(entries, called, strict=True)]
        tested = None if test is None else _frame(test, "the test set", settings)
        samples, held_out, classes, note, sizes = _from_tables(frames, tested, settings)
    else:
        samples, held_out, classes, note, sizes = _from_arrays(entries, test, called, as_it_is)
    parts = np.split(np.arange(len(samples)), np.cumsum(sizes)[:-1])
    partition = replace(split_given(samples, parts, settings, classes, seed), sites=names)
    source = "what the clients hold out, taken together" if held_out is None else "a test set that was given"
    dataset = Dataset(samples, held_out or samples, classes, note=note, by_clients=held_out is None, held_out=source)
    return dataset, altered(partition, dataset, settings, seed)


Joined = tuple[Samples, Samples | None, list[str], Note | None, list[int]]  # train, test, classes, note, client sizes


def _from_arrays(entries: Sequence[Any], test: Any, called: Sequence[str], as_it_is: bool) -> Joined:
    pairs = [_pair(pair, name) for pair, name in zip(entries, called, strict=True)]
    kinds = {f"{tuple(x.shape[1:])} {x.dtype}" for x, _ in pairs}
    if len(kinds) > 1:
        raise UserError(
            f"clients hold inputs of different shapes or types: {', '.join(sorted(kinds))}; make them agree"
        )
    if len({y.dtype.kind for _, y in pairs}) > 1:
        raise UserError("some clients have numbers as labels, others text; make them agree")
    classes, labels = np.unique(np.concatenate([y for _, y in pairs]), return_inverse=True)
    train = Samples(torch.cat([x for x, _ in pairs]), torch.from_numpy(labels.astype(np.int64)))
    held_out = None if test is None else _test_samples(test, classes)
    note = TableNote.of_numbers(train.x.shape[1]) if train.x.ndim == 2 and not as_it_is else None
    if note is None:
        train = replace(train, x=_single(train.x))
        held_out = held_out and replace(held_out, x=_single(held_out.x))
    return train, held_out, [class_name(c) for c in classes.tolist()], note, [len(y) for _, y in pairs]


def _single(x: Tensor) -> Tensor:
    return x if x.dtype == torch.uint8 else x.to(torch.float32)


def _from_tables(frames: Sequence[Frame], test: Frame | None, settings: DataSettings) -> Joined:
    table = joined(frames, "data")
    splits = {"train": table} if test is None else {"train": table, "test": test}
    dataset = from_frames(splits, None, settings, 0, keep_all=True)
    owner = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    rows = np.arange(len(owner)) if dataset.train.groups is None else dataset.train.groups
    sizes = np.bincount(owner[rows], minlength=len(frames)).tolist()
    return dataset.train, None if test is None else dataset.test, dataset.classes, dataset.note, sizes


def as_table(data: Any, where: str) -> Frame:
    """A DataFrame, or the path of a CSV or Parquet file, as a table."""
    if isinstance(data, (str, Path)):
        splits, _ = read_splits(Path(data)) if _has_tables(Path(data)) else folder_splits(Path(data))
        return joined(list(splits.values()), str(data))
    return from_pandas(data, where)


def _has_tables(path: Path) -> bool:
    if not path.exists():
        raise UserError(f"{str(path)!r} is not a folder or file; give a CSV or Parquet file, or a folder")
    return is_table(path) or bool(tables_in(path))


def _is_table(entry: Any) -> bool:
    """Whether a client's data are a table, or columns beside labels, rather than plain arrays."""
    if isinstance(entry, (str, Path)) or is_dataframe(entry):
        return True
    return isinstance(entry, (tuple, list)) and len(entry) == 2 and (is_dataframe(entry[0]) or are_texts(entry[0]))


def is_dataframe(x: Any) -> bool:
    """Whether it is a pandas DataFrame, or looks like one."""
    return hasattr(x, "columns") and hasattr(x, "rename")


def are_texts(x: Any) -> bool:
    """Whether it is a list of texts."""
    if isinstance(x, np.ndarray):
        return x.ndim == 1 and x.dtype.kind in "UO" and all(isinstance(text, str) for text in x[:100])
    return isinstance(x, (list, tuple)) and bool(x) and all(isinstance(text, str) for text in x[:100])


def _frame(entry: Any, where: str, settings: DataSettings) -> Frame:
    """One client's data as a table with a column of labels."""
    if not isinstance(entry, (tuple, list)):
        return replace(as_table(entry, where), where=where if is_dataframe(entry) else str(entry))
    x, y = entry
    frame = from_pandas(x, where) if is_dataframe(x) else of_columns({TEXT: list(x)}, where)
    return labelled(frame, as_labels(y, where), settings)


def labelled(frame: Frame, labels: NDArray[Any], settings: DataSettings) -> Frame:
    """A table with its labels as one more column, of the name that is looked for first."""
    if len(labels) != len(frame):
        raise UserError(f"{frame.where} has {len(frame)} inputs but {len(labels)} labels; give one for each input")
    name = settings.label_column or "label"
    if name in frame.columns:
        raise UserError(f"{frame.where} has a column {name!r} beside the labels that are given; remove one of them")
    return replace(frame, table=frame.table.append_column(name, pyarrow.array(labels.tolist())))


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
    if labels.dtype == object and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)  # as pandas has text
    if labels.ndim != 1:
        raise UserError(f"{where}: labels have shape {labels.shape}; expected [n], one class for each input")
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        raise UserError(f"{where}: labels must be whole numbers or text; some are missing or fractions")
    if labels.dtype.kind not in "biufUS":
        raise UserError(f"{where}: labels must be numbers or text, all of one kind, not {labels.dtype}")
    return labels


def as_inputs(x: Any, where: str) -> Tensor:
    """``x`` as a tensor: images to ``[n, C, H, W]`` uint8, rows to float64, other numbers to float32."""
    tensor = torch.as_tensor(x).detach().cpu()
    if tensor.ndim < 2:
        raise UserError(f"{where}: inputs have shape {tuple(tensor.shape)}; expected [n, features] or images")
    if tensor.is_complex():
        raise UserError(f"{where}: inputs are complex; give real numbers")
    if tensor.dtype != torch.uint8 or tensor.ndim == 2:  # bytes in rows are numbers, not pictures
        if torch.isinf(tensor).any() or (tensor.ndim > 2 and torch.isnan(tensor).any()):
            raise UserError(f"{where}: inputs hold infinite or missing values; replace them")
        return tensor.to(torch.float64 if tensor.ndim == 2 else torch.float32)
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
