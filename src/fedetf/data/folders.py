"""Folders of files as tables: ``train/<class>/*``, ``<class>/*`` or ``<site>/<class>/*`` of images, sounds or texts."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import pyarrow

from fedetf.data.frames import Frame, joined
from fedetf.data.sources import SITE, TEST_SPLITS, Splits, with_site
from fedetf.errors import UserError, visible
from fedetf.files import PICTURE, below, read_bytes, read_text

IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
ENDINGS = {**dict.fromkeys(IMAGE_ENDINGS, "image"), ".wav": "sound", ".txt": "text"}


def folder_splits(folder: Path) -> tuple[Splits, str | None]:
    """The files of a folder by split, and the name of the column of sites, if its folders are sites."""
    train = folder / "train"
    if train.is_dir():
        test = next((name for name in TEST_SPLITS if (folder / name).is_dir()), None)
        splits = {"train": class_folder(train)}
        return (splits if test is None else {**splits, test: class_folder(folder / test)}), None
    sites = [path for path in _folders(folder) if any(_files(inner) for inner in _folders(path))]
    if sites:
        return {
            "train": joined([with_site(class_folder(path), visible(path.name)) for path in sites], str(folder))
        }, SITE
    if any(_files(path) for path in _folders(folder)):
        return {"train": class_folder(folder)}, None
    raise UserError(
        f"{folder} has neither *.parquet or *.csv files nor folders of images, sounds or texts: train/<class>/, "
        "<class>/ or <site>/<class>/"
    )


def class_files(folder: Path) -> list[Path]:
    """All files that :func:`folder_splits` may read, behind links as well, by their names in the folder."""
    inside = (path for pattern in ("*/*", "*/*/*") for path in folder.glob(pattern))
    return sorted(path for path in inside if path.suffix.lower() in ENDINGS and path.is_file())


def class_folder(folder: Path) -> Frame:
    """``<class>/*`` as a table of inputs and labels. What is skipped is counted in a warning."""
    inside = [
        (path, visible(inner.name)) for inner in _folders(folder) for path in sorted(inner.glob("*")) if path.is_file()
    ]
    files = [(path, label) for path, label in inside if path.suffix.lower() in ENDINGS]
    if not files:
        raise UserError(f"{folder} holds no images, sounds or texts; expected {folder}/<class>/*.png, *.wav or *.txt")
    there = {ENDINGS[path.suffix.lower()] for path, _ in files}
    kind = next(kind for kind in ("image", "sound", "text") if kind in there)  # a note beside images is no sample
    files = [(path, label) for path, label in files if ENDINGS[path.suffix.lower()] == kind]
    others = len(inside) - len(files)
    if others:
        warnings.warn(f"{others} of the files in {folder} are skipped: no {kind}s", stacklevel=2)
    alike = (path for path in below(folder) if ENDINGS.get(path.suffix.lower()) == kind)
    astray = [path for path in alike if path.parent.parent != folder]
    if astray:
        first = visible(str(min(astray).relative_to(folder)))
        what = f"{len(astray)} of the files below {folder} are skipped, since they are not in a folder of their class"
        warnings.warn(f"{what}, the first of them {first}", stacklevel=2)
    inputs = _inputs([path for path, _ in files], kind)
    table = pyarrow.table({kind: inputs, "label": [label for _, label in files]})
    return Frame(table, str(folder), names_files=True)


def _inputs(paths: Sequence[Path], kind: str) -> pyarrow.Array:
    """Images by their paths, which are decoded later; what is in the other files."""
    if kind == "text":
        return pyarrow.array([read_text(path, links=True) for path in paths], pyarrow.string())
    encoded = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.binary()})  # a path need not be text
    content = (None if kind == "image" else read_bytes(path, PICTURE, links=True) for path in paths)
    return pyarrow.array([{"bytes": c, "path": os.fsencode(p)} for c, p in zip(content, paths, strict=True)], encoded)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _files(folder: Path) -> bool:
    return any(path.suffix.lower() in ENDINGS for path in folder.glob("*"))
