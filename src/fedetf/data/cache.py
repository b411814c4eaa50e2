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
from pathlib import Path

import numpy as np
import PIL
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from fedetf import __version__
from fedetf.core.state import load_checked, nbytes, save_state
from fedetf.data.samples import Dataset, Samples
from fedetf.errors import UserError
from fedetf.files import TENSORS, digest, make_folder, mark_used, matching, remove, used_last, user_cache
from fedetf.settings import DataSettings

MOST = 8 * 2**30  # bytes of all entries together; those that were not used for longest go first
NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
# What is done with samples once they are there. Whatever else the section has counts as how they are read.
LATER = {"name", "clients", "partition", "alpha", "shards", "min_size", "strict", "normalize", "augment"}
LATER |= {"test_fraction", "validation_fraction"}


NOTED = ("classes", "held_out", "by_clients")  # what a dataset is besides its samples


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
        about, tensors = load_checked(path)
        sites = None if about["sites"] is None else np.array(about["sites"])
        splits = {name: _restored(tensors, name, sites if name == "train" else None) for name in ("train", "test")}
        if sites is not None and sites.shape != splits["train"].y.shape:
            return None
        mark_used(path)
        return Dataset(splits["train"], splits["test"], **{name: about[name] for name in NOTED})
    except (OSError, UserError, LookupError, TypeError, ValueError):  # not there, or damaged: it is made anew
        return None


def _write(dataset: Dataset, path: Path) -> None:
    """Add an entry, and let go of the oldest until all fit. Of two that want to write the same, one does."""
    if dataset.note is not None:
        return  # other kinds are read in no time
    splits = {"train": dataset.train, "test": dataset.test}
    tensors = {f"{name}.x": _rows(samples.x) for name, samples in splits.items()}
    tensors |= {f"{name}.y": samples.y for name, samples in splits.items()}
    if nbytes(tensors) > MOST // 2:
        return
    if dataset.by_clients:  # the same samples stand for both, and a file holds no tensor under two names
        tensors |= {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("test.")}
    sites = dataset.train.sites
    make_folder(path.parent, private=True)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=0):
            about = {name: getattr(dataset, name) for name in NOTED}
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


def _rows(x: Tensor) -> Tensor:
    """Images with their channels last, as they lie in memory; all else as it is."""
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def _restored(tensors: dict[str, Tensor], name: str, sites: NDArray[np.str_] | None) -> Samples:
    x = tensors[f"{name}.x"]
    return Samples(x.permute(0, 3, 1, 2) if x.ndim == 4 else x, tensors[f"{name}.y"], sites)
