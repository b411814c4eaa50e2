import os

# Before anything imports the hub's client: tests never look for a network.
os.environ["HF_HUB_OFFLINE"] = "1"

import io
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import groups
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedetf.data import Dataset
from fedetf.data.load import _LOADERS
from fedetf.engines.forkserver import cores
from fedetf.settings import DataSettings

torch.set_num_threads(1)

# What a shell runs in the background is told to ignore Ctrl-C, and so would be what a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: some tests wait, for a network or for a process that they have killed."""
    return cores() + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longer than others begins first, so that no worker is left alone with it at the end."""

    def how_long(item: pytest.Item) -> tuple[float, bool]:
        limit = item.get_closest_marker("timeout")
        return limit.args[0] if limit else 0, item.get_closest_marker("slow") is not None

    items.sort(key=how_long, reverse=True)
    groups.pytest_collection_modifyitems(config, items)


@pytest.fixture(scope="session", autouse=True)
def _digits_once() -> Iterator[None]:
    """The digits are read once in a process, not for each of a thousand runs, where it is much of the work."""
    read, kept = _LOADERS["digits"], {}

    def digits(settings: DataSettings, seed: int) -> Dataset:
        if settings.size not in kept:
            kept[settings.size] = read(settings, seed)
        dataset = kept[settings.size]
        train, test = (replace(part, x=part.x.clone(), y=part.y.clone()) for part in (dataset.train, dataset.test))
        return replace(dataset, train=train, test=test)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_LOADERS, "digits", digits)
        yield


@pytest.fixture(autouse=True)
def _no_outside_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDETF_DATA", raising=False)
    monkeypatch.setenv("FEDETF_CACHE", "off")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """A test draws the same numbers whatever ran before it, in whichever process."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core the engine is the serial one, unless a test says otherwise: most look into it."""
    for module in ("placement", "forkserver"):
        monkeypatch.setattr(f"fedetf.engines.{module}.cores", lambda: 1)


@pytest.fixture
def one_core() -> Iterator[None]:
    """What is started here has one core, and so the serial engine: nothing imports torch a second time for workers."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {random.choice(sorted(all_cores))})
    yield
    os.sched_setaffinity(0, all_cores)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[..., Path]:
    """Write a plain Parquet file (no Hugging Face metadata) of an image column and a label column."""

    def write(
        name: str, images: list[np.ndarray], labels: list[object], columns: tuple[str, str] = ("image", "label")
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures = pa.array([{"bytes": png(i), "path": None} for i in images])
        pq.write_table(pa.table({columns[0]: pictures, columns[1]: pa.array(labels)}), path)
        return path

    return write


def images(n: int, shape: tuple[int, ...] = (8, 8), seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8))


def blobs(clients: int = 3, n: int = 20, features: int = 5, classes: int = 3, seed: int = 0):
    """A list of (x, y) per client: Gaussian blobs, float32 vectors."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 3, (classes, features))
    data = []
    for _ in range(clients):
        y = rng.integers(0, classes, n)
        y[:classes] = np.arange(classes)
        data.append(((centres[y] + rng.normal(0, 1, (n, features))).astype(np.float32), y))
    return data
