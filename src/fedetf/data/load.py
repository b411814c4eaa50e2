"""Find a dataset by name and load it: embedded digits, Parquet files, an image folder, a hub id, or a plug-in.

A name is looked up in ``$FEDETF_DATA/<name>/*.parquet``, then among the datasets of installed packages, then in the
Hugging Face cache, then on the hub. A plug-in is a function ``load(settings, seed) -> Dataset``.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedetf.data.decode import find_image_column, find_label_column, label_encoder, same_channels, stack_images
from fedetf.data.samples import Dataset, Samples
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
    "fashion-mnist": Known("70,000 grey 28×28 images, 10 classes", "zalando-datasets/fashion_mnist"),
}

TEST_SPLITS = ("test", "validation", "valid", "val")
IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def load_dataset(settings: DataSettings, seed: int) -> Dataset:
    """Load ``settings.name``; ``seed`` draws the subset where ``data.limit`` asks for one."""
    name = settings.name
    dataset = _find_loader(name)(settings, seed)
    if settings.site_column is not None and dataset.train.sites is None:
        raise UserError(
            f"{name} has no columns, so data.site_column has no meaning; it is for Parquet files and the hub"
        )
    return _limited(replace(dataset, classes=[visible(name) for name in dataset.classes]), settings, seed)


def _find_loader(name: str) -> Loader:
    folder = None if name == "digits" else _local_folder(name)
    if folder is not None:
        return partial(_from_folder, folder)
    return registry.find(name) if registry.is_known(name) else _from_hub


def _from_folder(folder: Path, settings: DataSettings, seed: int) -> Dataset:
    if any(folder.glob("*.parquet")):
        return _from_tables(_parquet_splits(folder), settings, seed)
    return _image_folder(folder, settings, seed)


def _from_hub(settings: DataSettings, seed: int) -> Dataset:
    return _from_tables(_hub_splits(settings.name), settings, seed)


def _local_folder(name: str) -> Path | None:
    """Where ``name`` lies on this machine: as a path that is written like one, under ``$FEDETF_DATA``, or as a path."""
    path, root = Path(name), os.environ.get("FEDETF_DATA")
    written_as_path = path.is_absolute() or name.startswith(".")
    if root and not written_as_path:
        if not Path(root).is_dir():
            raise UserError(f"FEDETF_DATA names {root!r}, which is not a folder; correct it or unset it")
        if any((Path(root) / name).glob("*.parquet")):
            return Path(root) / name
    if registry.is_known(name):
        return None
    if path.is_dir():
        return path
    if written_as_path or path.exists():
        raise UserError(f"{name!r} is not a folder; give a folder of Parquet files or of train/<class>/ images")
    return None


# --- digits ---------------------------------------------------------------------------------------------------------


def _digits(settings: DataSettings, _seed: int) -> Dataset:
    """scikit-learn's digits; a stratified 20%, always the same, is the balanced test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = (bunch.images * (255 / 16)).round().astype("uint8")
    x = stack_images([Image.fromarray(picture) for picture in grey], settings.size, "digits")
    everything = Samples(x, torch.from_numpy(bunch.target).long())
    return _hold_out(everything, [str(c) for c in bunch.target_names])


def _hold_out(samples: Samples, classes: list[str]) -> Dataset:
    """Keep a stratified 20% as the test set, for data that comes without one; the same whatever the seed."""
    from sklearn.model_selection import train_test_split

    counts = torch.bincount(samples.y)
    if int(counts[counts > 0].min()) < 2:
        raise UserError("there is no test split, and a class with a single sample cannot be split; add a test split")
    train, test = train_test_split(
        range(len(samples)),
        test_size=max(0.2, len(classes) / len(samples)),
        stratify=samples.y,
        random_state=0,
    )
    return Dataset(samples.take(torch.tensor(train)), samples.take(torch.tensor(test)), classes)


# --- tables: Parquet files and the hub ------------------------------------------------------------------------------


def _parquet_splits(folder: Path) -> dict[str, Any]:
    """Read ``train*.parquet``, ``test*.parquet`` … of a folder, split name -> ``datasets.Dataset``."""
    import datasets
    import pyarrow
    import pyarrow.parquet

    splits: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.parquet")):
        split = next((name for name in ("train", *TEST_SPLITS) if path.stem.startswith(name)), path.stem)
        try:
            splits.setdefault(split, []).append(pyarrow.parquet.read_table(path))
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's, not of what the file holds
                raise
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} is not a whole Parquet file ({reason}); fetch it again") from None
    try:
        return {split: datasets.Dataset(pyarrow.concat_tables(tables)) for split, tables in splits.items()}
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the Parquet files of {folder} have different columns ({reason}); make them agree") from None


def _hub_splits(name: str) -> dict[str, Any]:
    """Load a dataset from the Hugging Face cache, else from the hub, split name -> ``datasets.Dataset``."""
    import datasets
    from huggingface_hub import HfApi

    if name not in DATASETS and "/" not in name:
        raise unknown("dataset", name, registry.names(), "a name in $FEDETF_DATA, a folder, or OWNER/NAME of the hub")
    hub_id = DATASETS[name].hub if name in DATASETS else name
    with _quiet(datasets):
        try:
            with _offline(datasets):
                return dict(datasets.load_dataset(hub_id))
        except Exception:  # not in the cache; the library has no single error for that
            pass
        try:
            HfApi().dataset_info(hub_id, timeout=10)  # says at once what load_dataset would try for half a minute
            return dict(datasets.load_dataset(hub_id))
        except Exception as error:  # likewise: no network, no such dataset, no permission …
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"dataset {name!r} is neither in $FEDETF_DATA nor in the cache, and the hub did not give it "
                f"({reason}); go online, or set FEDETF_DATA to a folder that has {name}/train.parquet and test.parquet"
            ) from None


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """With the hub's client in offline mode, in which it looks at the cache only."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the log lines of a library that is only a means here."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)


def _kind(feature: Any) -> str:
    """What a column holds: "image" (also encoded bytes without Hugging Face's metadata), "classes" or "other"."""
    import datasets

    if isinstance(feature, datasets.ClassLabel):
        return "classes"
    encoded = isinstance(feature, dict) and "bytes" in feature
    binary = isinstance(feature, datasets.Value) and feature.dtype in ("binary", "large_binary")
    return "image" if isinstance(feature, datasets.Image) or encoded or binary else "other"


def _from_tables(splits: dict[str, Any], settings: DataSettings, seed: int) -> Dataset:
    where = f"dataset {settings.name!r}"
    if "train" not in splits:
        raise UserError(f"{where} has no split 'train' (it has: {', '.join(splits)}); name a file train.parquet")
    test_name = next((name for name in TEST_SPLITS if name in splits), None)
    train = splits["train"]
    kinds = {column: _kind(feature) for column, feature in train.features.items()}
    image_column = find_image_column(kinds, settings.image_column, where)
    label_column = find_label_column(kinds, settings.label_column, where)
    train_labels = train[label_column][:]
    classes, encode = label_encoder(train_labels, getattr(train.features[label_column], "names", None))

    def samples(split: str, limit: int | None) -> Samples:
        table, place = splits[split], f"{where}, split {split!r}"
        for column in (label_column, image_column):
            if column not in table.features:
                raise UserError(f"{place} has no column {column!r}; its columns are: {', '.join(table.features)}")
        names = getattr(table.features[label_column], "names", None)
        if names is not None and names != classes:
            raise UserError(f"{place} names its classes otherwise than 'train'; make the two agree")
        y = encode(table[label_column][:], place)
        chosen = _balanced_subset(y, limit, seed, split)
        rows = table.select(chosen)
        sites = _sites(rows, settings.site_column, place) if split == "train" else None
        return Samples(stack_images(_encoded(rows, image_column, place), settings.size, place), y[chosen], sites)

    if test_name is None:
        return _hold_out(samples("train", None), classes)
    return _paired(samples("train", settings.limit), samples(test_name, settings.test_limit), classes)


def _sites(table: Any, column: str | None, where: str) -> NDArray[np.str_] | None:
    """The name of each sample's site, if a column says it."""
    if column is None:
        return None
    if column not in table.features:
        raise UserError(f"{where} has no column {column!r} of sites; its columns are: {', '.join(table.features)}")
    names = table[column][:]
    if any(name is None for name in names):
        raise UserError(f"{where} has rows without a {column}; fill them in, or remove them")
    return np.array([visible(str(name)) for name in names])


def _encoded(table: Any, column: str, where: str) -> Sequence[Any]:
    """The images of a column as bytes or paths, decoded later and in parallel."""
    if _kind(table.features[column]) != "image":
        raise UserError(f"column {column!r} of {where} holds no images; its kind is {table.features[column]}")
    rows = table.with_format("arrow")[:][column].to_pylist()  # as stored: this library would decode one by one
    pictures = [row.get("bytes") or row.get("path") if isinstance(row, dict) else row for row in rows]
    if not all(pictures):
        raise UserError(f"{where} has rows without an image; remove them")
    return [Path(picture) if isinstance(picture, str) else picture for picture in pictures]


# --- image folders --------------------------------------------------------------------------------------------------


def _image_folder(folder: Path, settings: DataSettings, seed: int) -> Dataset:
    """Load ``<folder>/train/<class>/*.png`` and, if it is there, ``<folder>/test/<class>/*.png``."""
    train = folder / "train"
    if not train.is_dir():
        raise UserError(
            f"{folder} has neither *.parquet nor train/<class>/ folders of images; "
            "for <site>/<class>/ there is a recipe in docs/guides/sites.md"
        )
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    test = next((folder / name for name in TEST_SPLITS if (folder / name).is_dir()), None)

    def samples(split: Path, limit: int | None) -> Samples:
        files = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((split / name).glob("*"))
            if path.suffix.lower() in IMAGE_ENDINGS
        ]
        if not files:
            raise UserError(f"{split} holds no images; expected {split}/<class>/*.png")
        y = torch.tensor([label for _, label in files])
        chosen = _balanced_subset(y, limit, seed, split.name)
        return Samples(stack_images([files[i][0] for i in chosen.tolist()], settings.size, str(split)), y[chosen])

    if test is None:
        return _hold_out(samples(train, None), classes)
    return _paired(samples(train, settings.limit), samples(test, settings.test_limit), classes)


def _paired(train: Samples, test: Samples, classes: list[str]) -> Dataset:
    x, test_x = same_channels(train.x, test.x)
    return Dataset(Samples(x, train.y, train.sites), Samples(test_x, test.y), classes)


# --- what one site holds ---------------------------------------------------------------------------------------------


def load_share(folder: Path, classes: Sequence[str], shape: Sequence[int], settings: DataSettings) -> Samples:
    """Labelled images of one site: ``<folder>/<class>/*.png``, or ``<folder>/*.parquet``.

    All sites agree on ``classes``, whose order gives the numbers, and on ``shape``, (channels, height, width). A label
    is the name of a class; a site need not hold all of them.
    """
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder; give one of Parquet files or of <class>/ images")
    if any(folder.glob("*.parquet")):
        pictures, labels = _labelled_rows(folder, settings)
    else:
        files = [path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in IMAGE_ENDINGS]
        pictures, labels = files, [path.parent.name for path in files]
    if not labels:
        raise UserError(f"{folder} holds no images; expected {folder}/<class>/*.png or Parquet files")
    strangers = sorted(set(labels) - set(classes))
    if strangers:
        raise UserError(f"{folder} has the label {strangers[0]!r}, which is none of: {', '.join(classes)}")
    x = stack_images(pictures, settings.size, str(folder))
    if x.shape[1] == 1 and shape[0] == 3:
        x = x.repeat(1, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    if tuple(x.shape[1:]) != tuple(shape):
        found, wanted = ("x".join(map(str, sizes)) for sizes in (x.shape[1:], shape))
        raise UserError(f"the images of {folder} are {found}, the federation takes {wanted}; see data.size")
    return Samples(x, torch.tensor([list(classes).index(label) for label in labels]))


def _labelled_rows(folder: Path, settings: DataSettings) -> tuple[list[Any], list[str]]:
    """The encoded images and the class names of all Parquet files of a folder."""
    pictures: list[Any] = []
    labels: list[str] = []
    for name, table in _parquet_splits(folder).items():
        where = f"{folder}, {name!r}"
        kinds = {column: _kind(feature) for column, feature in table.features.items()}
        column = find_label_column(kinds, settings.label_column, where)
        names = getattr(table.features[column], "names", None)
        labels += [str(label if names is None else names[label]) for label in table[column][:]]
        pictures += _encoded(table, find_image_column(kinds, settings.image_column, where), where)
    return pictures, labels


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
    return Dataset(dataset.train.take(train), dataset.test.take(test), dataset.classes)


# --- plug-ins -------------------------------------------------------------------------------------------------------


def _plugin(found: Any, name: str) -> Loader:
    """A package's or the user's own ``load(settings, seed)``, whose errors are one line."""
    if not callable(found):
        raise UserError(f"{name} is not a function that loads a dataset; see docs/guides/plugins.md")

    def load(settings: DataSettings, seed: int) -> Dataset:
        dataset = guarded(lambda: found(settings, seed), f"{name} cannot be loaded")
        if not isinstance(dataset, Dataset):
            raise UserError(f"{name} gives {type(dataset).__name__}, not a fedetf.data.Dataset")
        for x, y in ((samples.x, samples.y) for samples in (dataset.train, dataset.test)):
            if x.dtype not in (torch.uint8, torch.float32) or y.dtype != torch.int64:
                raise UserError(f"{name} gives inputs {x.dtype}, labels {y.dtype}; give uint8 or float32, and int64")
        return dataset

    load.__doc__ = found.__doc__
    return load


_LOADERS: dict[str, Loader] = {name: _digits if name == "digits" else _from_hub for name in DATASETS}
registry = Registry("dataset", "fedetf.datasets", "--dataset", _LOADERS, _plugin, own=is_own_dataset)
