"""Where data lies: files, folders and the hub, each as tables by split."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from fedetf.data.frames import Frame, is_csv, joined, read_csv, read_frame, read_parquet
from fedetf.errors import UserError, need

TEST_SPLITS = ("test", "validation", "valid", "val")
TABLES = (".parquet", ".csv", ".tsv")
SITE = "site"  # the column that says which file a row is from

Splits = dict[str, Frame]


def is_table(path: Path) -> bool:
    """Whether a path is a file of rows and columns."""
    return path.is_file() and path.suffix.lower() in TABLES


def tables_in(folder: Path) -> list[Path]:
    """The Parquet files of a folder, else its CSV files, by name."""
    files = sorted(path for path in folder.iterdir() if is_table(path)) if folder.is_dir() else []
    parquet = [path for path in files if not is_csv(path)]
    return parquet or files


def read_splits(path: Path) -> tuple[Splits, str | None]:
    """The tables of a file or folder by split, and the name of the column of sites, if each file is that of a site.

    ``train*.parquet``, ``test*.csv`` … are splits. CSV files of other names are one site each: ``<site>.csv``.
    """
    files = [path] if path.is_file() else tables_in(path)
    if path.is_file():
        if not is_table(path):  # a spreadsheet, say
            raise UserError(f"{path} is neither a CSV nor a Parquet file; save its table as CSV, {path.stem}.csv")
        return {"train": read_frame(path)}, None
    if is_csv(files[0]) and not any(_split(file) == "train" for file in files):
        frames = [with_site(read_csv(file), file.stem) for file in files]
        return {"train": joined(frames, str(path))}, SITE
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split(file), []).append(file)
    return {split: _one(parts, path) for split, parts in splits.items()}, None


def _split(path: Path) -> str:
    return next((name for name in ("train", *TEST_SPLITS) if path.stem.startswith(name)), path.stem)


def _one(files: list[Path], folder: Path) -> Frame:
    if is_csv(files[0]):
        return joined([read_csv(file) for file in files], str(folder))
    return read_parquet(files, str(folder))


def with_site(frame: Frame, site: str) -> Frame:
    """A table with one more column, which says whose it is."""
    if SITE in frame.columns:
        raise UserError(f"{frame.where} has a column {SITE!r}, but each table is that of one site; rename or remove it")
    names = pyarrow.array(np.full(len(frame), site, dtype=object))
    return replace(frame, table=frame.table.append_column(SITE, names))


# --- the hub ----------------------------------------------------------------------------------------------------------


def hub_splits(name: str, hub_id: str) -> tuple[Splits, list[Path]]:
    """A dataset from the Hugging Face cache, else from the hub, by split; and the files that hold it."""
    need("hub", f"dataset {name!r} is not in $FEDETF_DATA; taking it from the Hugging Face hub", "datasets")
    import datasets
    from huggingface_hub import HfApi

    with _quiet(datasets):
        try:
            with _offline(datasets):
                return _frames(datasets.load_dataset(hub_id), name)
        except Exception:  # not in the cache; the library has no single error for that
            pass
        try:
            HfApi().dataset_info(hub_id, timeout=10)  # says at once what load_dataset would try for half a minute
            return _frames(datasets.load_dataset(hub_id), name)
        except Exception as error:  # likewise: no network, no such dataset, no permission …
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"dataset {name!r} is neither in $FEDETF_DATA nor in the cache, and the hub did not give it "
                f"({reason}); go online, or set FEDETF_DATA to a folder that has {name}/train.parquet and test.parquet"
            ) from None


def _frames(splits: Any, name: str) -> tuple[Splits, list[Path]]:
    """As stored: this library would decode images one by one."""
    files = [Path(file["filename"]) for data in splits.values() for file in data.cache_files]
    tables = {
        str(split): data.data.table.replace_schema_metadata(data.features.arrow_schema.metadata)
        for split, data in splits.items()
    }
    return {split: Frame(table, f"dataset {name!r}", names_files=True) for split, table in tables.items()}, files


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
