"""Decoded images, kept for the next run: 50,000 pictures take seconds to decode, and a moment to map from a file.

An entry is a safetensors file whose name is a hash of all that it depends on: what the source files hold, the settings
that say how they are read, and the versions of what read them. It is mapped into memory, not copied. ``$FEDETF_CACHE``
names another folder for the entries, or is ``off``. What a real site holds never goes here (``load_share``).
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import PIL
import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, Field
from torch import Tensor

from fedetf import __version__
from fedetf.core.state import load_checked, nbytes, save_state
from fedetf.data.samples import Dataset, Samples
from fedetf.errors import UserError
from fedetf.files import TENSORS, UnfitFile, digest, make_folder, mark_used, matching, remove, used_last, user_cache
from fedetf.runs.records import fitting
from fedetf.settings import DataSettings

MOST = 8 * 2**30  # bytes of all entries together; those that were not used for longest go first
NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
# What is done with samples once they are there. Whatever else the section has counts as how they are read.
LATER = {"name", "clients", "partition", "alpha", "shards", "min_size", "strict", "normalize", "augment"}
LATER |= {"test_fraction", "validation_fraction"}


class Entry(BaseModel):
    """What a dataset is besides its samples, and the site of each training sample."""

    classes: Annotated[list[str], Field(min_length=1)]
    held_out: str
    by_clients: bool
    sites: list[str] | None


def cached(files: Iterable[Path], settings: DataSettings, seed: int, load: Callable[[], Dataset]) -> Dataset:
    """What ``load`` makes of the files, or what it made of them before; ``seed`` draws the subset of a limit."""
    folder = _folder()
    if folder is None:
        return load()
    path = folder / f"{_key(files, settings, seed)}.safetensors"
    kept = _read(path)
    if kept is not None:
        return kept
    dataset = load()
    try:
        _write(dataset, path)
    except (OSError, UserError) as error:  # a full disk, a home that cannot be written to: the run needs no cache
        warnings.warn(f"decoded images are not kept ({error}); FEDETF_CACHE=off does without", stacklevel=2)
    return dataset


def _folder() -> Path | None:
    """Where the entries are; None if the user wants none."""
    chosen = os.environ.get("FEDETF_CACHE", "")
    if chosen.lower() in ("off", "0", "no", "false"):
        return None
    return Path(chosen) if chosen else user_cache() / "images"


def _key(files: Iterable[Path], settings: DataSettings, seed: int) -> str:
    """A hash of the files' names and contents, and of what decides how they are read."""
    drawn = None if settings.limit is None and settings.test_limit is None else seed
    how = [__version__, PIL.__version__, settings.model_dump(exclude=LATER), drawn]
    key = hashlib.blake2b(json.dumps(how, sort_keys=True).encode(), digest_size=16)
    for path in files:
        key.update(json.dumps(path.parts[-3:]).encode() + digest(path, TENSORS))  # <split>/<class>/<file>
    return key.hexdigest()


def _read(path: Path) -> Dataset | None:
    """An entry, if it is there and whole."""
    try:
        content, tensors = load_checked(path)
        about = fitting(Entry, content, str(path))
        train, test = (_restored(tensors, name, len(about.classes)) for name in ("train", "test"))
        if about.sites is not None:
            train = replace(train, sites=np.array(about.sites))
            if len(about.sites) != len(train):
                return None
        mark_used(path)
        return Dataset(train, test, **about.model_dump(exclude={"sites"}))
    except (OSError, UserError, LookupError):  # not there, or damaged: it is made anew
        return None


def _write(dataset: Dataset, path: Path) -> None:
    """Add an entry, and let go of the oldest until all fit. Of two that want to write the same, one does."""
    if dataset.note is not None:
        return  # other kinds are read in no time
    splits = {"train": dataset.train, "test": dataset.test}
    tensors = {f"{name}.x": samples.x.permute(0, 2, 3, 1) for name, samples in splits.items()}  # as they lie in memory
    tensors |= {f"{name}.y": samples.y for name, samples in splits.items()}
    if nbytes(tensors) > MOST // 2:
        return
    if dataset.by_clients:  # the same samples stand for both, and a file holds no tensor under two names
        tensors |= {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("test.")}
    sites = dataset.train.sites
    make_folder(path.parent, private=True)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=0):
            about = {name: getattr(dataset, name) for name in ("classes", "held_out", "by_clients")}
            save_state(tensors, path, {**about, "sites": None if sites is None else sites.tolist()})
            _make_room(path.parent)
    except Timeout:
        pass  # another process is writing it


def _make_room(folder: Path) -> None:
    entries = sorted(matching(folder, NAME), key=used_last, reverse=True)
    total = 0
    for path in entries:
        total += path.stat().st_size
        if total > MOST:
            remove(path)
            remove(path.with_suffix(".lock"))


def _restored(tensors: dict[str, Tensor], name: str, classes: int) -> Samples:
    x, y = tensors[f"{name}.x"], tensors[f"{name}.y"]
    sound = x.ndim == 4 and x.dtype == torch.uint8 and y.dtype == torch.int64 and y.shape == x.shape[:1] and len(y)
    if not sound or not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise UnfitFile("an entry of the cache is damaged")
    return Samples(x.permute(0, 3, 1, 2), y)
