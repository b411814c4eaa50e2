import os

# Before anything imports the hub's client: tests never look for a network.
os.environ["HF_HUB_OFFLINE"] = "1"

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import fedetf.data.load

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longer than others begins first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(scope="session", autouse=True)
def _digits_once() -> Iterator[None]:
    """The digits become a tensor once in a process, not for each of a thousand runs, where it is most of the work."""
    stack = fedetf.data.load.stack_images
    digits: dict[int | None, torch.Tensor] = {}

    def stacked(pictures: Sequence, size: int | None, where: str) -> torch.Tensor:
        if where != "digits":
            return stack(pictures, size, where)
        if size not in digits:
            digits[size] = stack(pictures, size, where)
        return digits[size].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedetf.data.load, "stack_images", stacked)
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
    monkeypatch.setattr("fedetf.engines.placement.cores", lambda: 1)


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
