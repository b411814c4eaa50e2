"""Find a dataset by name and load it: embedded digits, CSV and Parquet files, a folder, a hub id, or a plug-in.

A name is looked up in ``$FEDETF_DATA/<name>/``, then among the datasets of installed packages, then in the Hugging Face
cache, then on the hub. A plug-in is a function ``load(settings, seed) -> Dataset``.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedetf.data.cache import cached
from fedetf.data.decode import label_encoder, same_channels, stack_images, unlabelled
from fedetf.data.folders import class_files, class_folder, folder_splits
from fedetf.data.frames import Frame, joined
from fedetf.data.kinds import Note, Roles, begin, find_roles
from fedetf.data.samples import Dataset, Samples
from fedetf.data.sources import SITE, TABLES, TEST_SPLITS, Splits, hub_splits, is_table, read_splits, tables_in
from fedetf.data.split import stratified
from fedetf.data.tail import long_tail
from fedetf.errors import UserError, unknown, visible
from fedetf.own_code import guarded, is_own_dataset
from fedetf.plugins import Registry
from fedetf.rng import numpy_stream
from fedetf.settings import DataSettings

Loader = Callable[[DataSettings, int], Dataset]  # from the settings and the seed


@dataclass(frozen=True)
class Known:
    """A dataset that has a name here."""

    description: str
    hub: str = ""


DATASETS = {
    "digits": Known("1,797 grey 8×8 digits, 10 classes; inside scikit-learn, nothing to download"),
    "cifar10": Known("60,000 colour 32×32 images, 10 classes (paper)", "uoft-cs/cifar10"),
    "cifar100": Known("60,000 colour 32×32 images, 100 classes (paper)", "uoft-cs/cifar100"),
    "tiny-imagenet": Known("110,000 colour 64×64 images, 200 classes (paper)", "zh-plus/tiny-imagenet"),
    "pacs": Known("9,991 colour images, 7 classes in 4 visual domains (column domain)", "flwrlabs/pacs"),
    "newsgroups": Known("18,821 texts, 20 classes", "SetFit/20_newsgroups"),
    "heart-disease": Known("920 rows of 13 numbers, 2 classes, 4 hospitals (column hospital)"),
    "spoken-digits": Known("3,000 sounds, 10 classes, 6 speakers (column speaker)"),
    "smartwatch": Known("140 signals of 6 channels, 7 classes, 10 people (column person)"),
    "fashion-mnist": Known("70,000 grey 28×28 images, 10 classes", "zalando-datasets/fashion_mnist"),
}

Read = tuple[Samples, Note | None]


def load_dataset(settings: DataSettings, seed: int) -> Dataset:
    """Load ``settings.name``; ``seed`` draws the subset where ``data.limit`` asks for one."""
    name = settings.name
    dataset = _find_loader(name)(settings, seed)
    if settings.site_column is not None and dataset.train.sites is None:
        raise UserError(
            f"{name} has no columns, so data.site_column has no meaning; it is for tables, Parquet files and the hub"
        )
    dataset = _limited(replace(dataset, classes=[visible(name) for name in dataset.classes]), settings, seed)
    tail = long_tail(dataset.train, len(dataset.classes), settings.imbalance, seed)
    return replace(dataset, train=tail)


def _find_loader(name: str) -> Loader:
    path = None if name == "digits" else _local_path(name)
    if path is not None:
        return partial(_from_path, path)
    return registry.find(name) if registry.is_known(name) else _from_hub


def _from_path(path: Path, settings: DataSettings, seed: int) -> Dataset:
    if is_table(path) or tables_in(path):
        files = [path] if path.is_file() else tables_in(path)
        return cached(files, settings, seed, lambda: _from_tables(path, settings, seed))
    return cached(class_files(path), settings, seed, lambda: from_frames(*folder_splits(path), settings, seed))


def _from_tables(path: Path, settings: DataSettings, seed: int) -> Dataset:
    splits, site = read_splits(path)
    if path.is_dir() and site is None:
        where = f"dataset {settings.name!r}"
        splits = {split: replace(frame, where=f"{where}, split {split!r}") for split, frame in splits.items()}
    return from_frames(splits, site, settings, seed)


def _from_hub(settings: DataSettings, seed: int) -> Dataset:
    name = settings.name
    if name not in DATASETS and "/" not in name:
        raise unknown(
            "dataset", name, registry.names(), "a file or folder, a name in $FEDETF_DATA, or OWNER/NAME of the hub"
        )
    if name in DATASETS and not DATASETS[name].hub:
        raise UserError(
            f"dataset {name!r} is not on the hub; put it into $FEDETF_DATA/{name}/ as train.parquet or CSV files"
        )
    splits, files = hub_splits(name, DATASETS[name].hub if name in DATASETS else name)
    return cached(files, settings, seed, lambda: from_frames(splits, None, settings, seed))


def _local_path(name: str) -> Path | None:
    """Where ``name`` lies on this machine: as a path that is written like one, under ``$FEDETF_DATA``, or as a path."""
    path, root = Path(name), os.environ.get("FEDETF_DATA")
    written_as_path = path.is_absolute() or name.startswith(".")
    if root and not written_as_path:
        if not Path(root).is_dir():
            raise UserError(f"FEDETF_DATA names {root!r}, which is not a folder; correct it or unset it")
        if tables_in(Path(root) / name):
            return Path(root) / name
    if registry.is_known(name):
        return None
    if path.is_dir() or is_table(path):
        return path
    if path.suffix.lower() in TABLES and not path.exists():
        raise UserError(f"there is no file {name!r}; is it spelled right, and are you in the right folder?")
    if written_as_path or path.exists():
        what = "give a CSV or Parquet file, or a folder of such files or of train/<class>/ images"
        raise UserError(f"{name!r} is not a folder; {what}")
    return None


# --- digits ---------------------------------------------------------------------------------------------------------


def _digits(settings: DataSettings, _seed: int) -> Dataset:
    """scikit-learn's digits; a stratified 20%, always the same, is the balanced test set."""
    found = find_spec("sklearn")  # imports nothing: scikit-learn itself would take as long as PyTorch
    assert found is not None
    assert found.origin is not None
    table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")  # 64 pixels, a label
    grey = (table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).round().astype("uint8")
    x = stack_images([Image.fromarray(picture) for picture in grey], settings.size, "digits")
    return _hold_out(Samples(x, torch.from_numpy(table[:, -1]).long()), [str(c) for c in range(10)])


def _hold_out(samples: Samples, classes: list[str], note: Note | None = None) -> Dataset:
    """Keep a stratified 20% as the test set, for data that comes without one; the same whatever the seed.

    Windows of one recording stay together.
    """
    recordings = np.arange(len(samples)) if samples.groups is None else samples.groups
    _, first, member = np.unique(recordings, return_index=True, return_inverse=True)
    labels = samples.y[torch.from_numpy(first)]
    counts = np.unique(labels, return_counts=True)[1]
    if counts.min() < 2:
        raise UserError("there is no test split, and a class with a single sample cannot be split; add a test split")
    wanted = math.ceil(max(0.2, len(counts) / len(labels)) * len(labels))  # one of each class at least
    parts = stratified(labels.numpy(), wanted, seed=0)
    if samples.groups is not None:
        parts = (np.flatnonzero(np.isin(member, parts[0])), np.flatnonzero(np.isin(member, parts[1])))
    train, test = (samples.take(torch.as_tensor(part)) for part in parts)
    return Dataset(train, test, classes, note=note, held_out="a fifth of the data, drawn before it was dealt out")


# --- tables: files and the hub --------------------------------------------------------------------------------------


def from_frames(splits: Splits, site: str | None, settings: DataSettings, seed: int, keep_all: bool = False) -> Dataset:
    """Tables by split as a dataset; ``site``: the column that says whose rows they are, where each table is a site's.

    Without a test split, a fifth is held out; but where the sites are given, or ``keep_all`` is, each client holds out
    its own.
    """
    if "train" not in splits:
        where = f"dataset {settings.name!r}"
        raise UserError(f"{where} has no split 'train' (it has: {', '.join(splits)}); name a file train.parquet")
    test_name = next((name for name in TEST_SPLITS if name in splits), None)
    train = splits["train"]
    column = site or settings.site_column
    roles = find_roles(train, settings, column)
    names = train.class_names(roles.label)
    classes, encode = label_encoder(train.values(roles.label), names)

    def samples(split: str, limit: int | None, note: Note | None = None) -> Read:
        frame = splits[split]
        frame.check_rows()
        for name in (roles.label, *roles.columns):
            frame.check(name)
        if frame.class_names(roles.label) not in (None, classes):
            raise UserError(f"{frame.where} has other class names than 'train'; make them agree")
        y = encode(frame.values(roles.label), frame.where, frame.values(site) if site else ())
        chosen = _balanced_subset(y, limit, seed, split)
        rows = frame if len(chosen) == len(frame) else frame.take(chosen.numpy())
        sites = _sites(rows, column) if split == "train" or column in frame.columns else None
        return _read(rows, y[chosen], roles, settings, sites, note)

    if test_name is not None:
        read, note = samples("train", settings.limit)
        return _paired(read, samples(test_name, settings.test_limit, note)[0], classes, note)
    read, note = samples("train", None)
    if site is None and not keep_all:
        return _hold_out(read, classes, note)
    return Dataset(read, read, classes, note=note, by_clients=True, held_out="what the sites hold out, taken together")


def _read(
    frame: Frame,
    y: torch.Tensor,
    roles: Roles,
    settings: DataSettings,
    sites: NDArray[np.str_] | None = None,
    note: Note | None = None,
) -> Read:
    """The inputs of a table's rows, and how they were read; ``note``: as others were read before."""
    if roles.kind == "image":
        return Samples(stack_images(_encoded(frame, roles.columns[0]), settings.size, frame.where), y, sites), None
    note = note or begin(roles.kind, frame, roles.columns, settings)
    raw = note.read(frame)
    windows = len(raw.rows) != len(frame) or note.cuts
    return Samples(
        raw.x, y[torch.from_numpy(raw.rows)], None if sites is None else sites[raw.rows], raw.rows if windows else None
    ), note


def _sites(frame: Frame, column: str | None) -> NDArray[np.str_] | None:
    """The name of each sample's site, if a column says it."""
    if column is None:
        return None
    if column not in frame.columns:
        raise UserError(f"{frame.where} has no column {column!r} of sites; its columns are: {', '.join(frame.columns)}")
    names = frame.values(column)
    if any(name is None for name in names):
        raise UserError(f"{frame.where} has rows without a {column}; fill them in, or remove them")
    return np.array([visible(str(name)) for name in names])


def _encoded(frame: Frame, column: str) -> Sequence[Any]:
    """The images of a column as bytes or paths, decoded later and in parallel."""
    pictures = pictures_of(frame, column)
    if None in pictures:
        raise UserError(f"{frame.where} has rows without an image; remove them")
    return pictures


def pictures_of(frame: Frame, column: str) -> list[bytes | Path | None]:
    """The images of a column as bytes or paths; None where there is none."""
    rows = frame.table[column].to_pylist()
    pictures = [_picture(row) if isinstance(row, dict) else row for row in rows]
    paths = [Path(picture) if isinstance(picture, str) else picture or None for picture in pictures]
    named = next((path for path in paths if isinstance(path, Path)), None)
    if named is not None and not frame.names_files:  # a stranger's table could name any picture of this machine
        raise UserError(f"{frame.where} names files such as {str(named)!r} instead of holding images; embed these")
    return paths


def _picture(row: dict[str, Any]) -> bytes | Path | None:
    """The content of an image, else where it is."""
    path = row.get("path")
    return row.get("bytes") or (Path(os.fsdecode(path)) if isinstance(path, (str, bytes)) else None)


def _paired(train: Samples, test: Samples, classes: list[str], note: Note | None = None) -> Dataset:
    if note is None:
        x, test_x = same_channels(train.x, test.x)
        train, test = replace(train, x=x), replace(test, x=test_x)
    return Dataset(train, test, classes, note=note)


# --- what one site holds ---------------------------------------------------------------------------------------------


def share_roles(path: Path, settings: DataSettings) -> tuple[Frame, Roles]:
    """The table of one site's data: a CSV or Parquet file, a folder of such files, or ``<class>/*``; and its roles."""
    if path.is_dir() and not tables_in(path):
        frame = class_folder(path)
    elif path.exists():
        splits, _ = read_splits(path)
        frame = joined(list(splits.values()), str(path))
    else:
        raise UserError(f"{str(path)!r} is not a folder or file; give a table, or a folder of tables or of <class>/")
    return frame, find_roles(frame, settings, SITE if SITE in frame.columns else settings.site_column)


def load_share(path: Path, classes: Sequence[str], shape: Sequence[int] | None, settings: DataSettings) -> Read:
    """What one site holds, with labels by the federation's ``classes``, and how it was read.

    All sites agree on ``classes``, whose order gives the numbers, and, of images, on ``shape``, (channels, height,
    width). A label is the name of a class; a site need not hold all of them.
    """
    frame, roles = share_roles(path, settings)
    named = frame.named(roles.label)
    labels = [label for label in named if label is not None]
    problem = unlabelled(named, f" of {path}")
    if problem is not None:
        raise UserError(problem)
    strangers = sorted(set(labels) - set(classes))
    if strangers:
        raise UserError(f"{path} has the label {strangers[0]!r}, which is none of: {', '.join(classes)}")
    y = torch.tensor([list(classes).index(label) for label in labels])
    samples, note = _read(frame, y, roles, settings)
    if note is not None:
        return samples, note
    if shape is None:
        raise UserError(f"{path} holds images, so pyproject.toml must say their shape: channels x height x width")
    x = samples.x
    if x.shape[1] == 1 and shape[0] == 3:
        x = x.repeat(1, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    if tuple(x.shape[1:]) != tuple(shape):
        given, wanted = ("x".join(map(str, sizes)) for sizes in (x.shape[1:], shape))
        raise UserError(f"the images of {path} are {given}, the federation takes {wanted}; see data.size")
    return replace(samples, x=x), None


# --- subsets --------------------------------------------------------------------------------------------------------


def _balanced_subset(y: torch.Tensor, limit: int | None, seed: int, split: str) -> torch.Tensor:
    """At most ``limit`` indices, in order: the classes take turns, each giving its samples in a random order."""
    if limit is None or limit >= len(y):
        return torch.arange(len(y))
    shuffled = torch.from_numpy(numpy_stream(seed, f"limit-{split}").permutation(len(y)))
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    counts = torch.bincount(y)
    turn = torch.cat([torch.arange(int(n)) for n in counts])  # a sample's turn within its class
    return torch.sort(by_class[torch.argsort(turn, stable=True)[:limit]]).values


def _limited(dataset: Dataset, settings: DataSettings, seed: int) -> Dataset:
    """Apply the limits to what was loaded whole (digits, and data without a test split)."""
    if settings.limit is None and settings.test_limit is None:
        return dataset
    train = _balanced_subset(dataset.train.y, settings.limit, seed, "train")
    test = _balanced_subset(dataset.test.y, settings.test_limit, seed, "test")
    return replace(dataset, train=dataset.train.take(train), test=dataset.test.take(test))


# --- plug-ins -------------------------------------------------------------------------------------------------------


def _plugin(plugin: Any, name: str) -> Loader:
    """A package's or the user's own ``load(settings, seed)``, whose errors are one line."""
    if not callable(plugin):
        raise UserError(f"{name} is not a function that loads a dataset; see docs/guides/plugins.md")

    def load(settings: DataSettings, seed: int) -> Dataset:
        dataset = guarded(lambda: plugin(settings, seed), f"{name} cannot be loaded")
        if not isinstance(dataset, Dataset):
            raise UserError(f"{name} gives {type(dataset).__name__}, not a fedetf.data.Dataset")
        for x, y in ((samples.x, samples.y) for samples in (dataset.train, dataset.test)):
            if x.dtype not in (torch.uint8, torch.float32) or y.dtype != torch.int64:
                raise UserError(f"{name} gives inputs {x.dtype}, labels {y.dtype}; give uint8 or float32, and int64")
        return dataset

    load.__doc__ = plugin.__doc__
    return load


_LOADERS: dict[str, Loader] = {name: _digits if name == "digits" else _from_hub for name in DATASETS}
registry = Registry("dataset", "fedetf.datasets", "--dataset", _LOADERS, _plugin, own=is_own_dataset)
