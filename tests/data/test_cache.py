"""Decoded images that are kept: the same samples, and nothing stale, half written or without end."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import images, png

import fedetf.data.cache as cache
import fedetf.data.load
from fedetf.core.state import load_checked, save_state
from fedetf.data import Dataset, load_dataset
from fedetf.settings import DataSettings

Write = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where entries are."""
    monkeypatch.setenv("FEDETF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was decoded, in the order in which that happened."""
    stack, seen = fedetf.data.load.stack_images, []

    def watched(pictures: list, size: int | None, where: str) -> torch.Tensor:
        seen.append(where)
        return stack(pictures, size, where)

    monkeypatch.setattr(fedetf.data.load, "stack_images", watched)
    return seen


@pytest.fixture
def folder(write_parquet: Write) -> Path:
    write_parquet("set/train.parquet", images(30, (8, 8, 3)), [i % 3 for i in range(30)])
    return write_parquet("set/test.parquet", images(9, (8, 8, 3), seed=2), [i % 3 for i in range(9)]).parent


def load(folder: Path, seed: int = 7, **settings: object) -> Dataset:
    return load_dataset(DataSettings(name=str(folder), **settings), seed)


def entries(store: Path) -> list[Path]:
    return sorted(store.glob("*.safetensors"))


def test_a_folder_for_each_site_whose_training_set_stands_in_for_the_test_set(tmp_path: Path, store: Path) -> None:
    for number, (site, kind) in enumerate([("east", "cat"), ("east", "dog"), ("north", "cat"), ("north", "dog")]):
        inside = tmp_path / "sites" / site / kind
        inside.mkdir(parents=True)
        for place, image in enumerate(images(3, (8, 8, 3), seed=number)):
            (inside / f"{place}.png").write_bytes(png(image))
    first, second = load(tmp_path / "sites"), load(tmp_path / "sites")
    assert len(entries(store)) == 1
    assert second.by_clients
    assert list(second.train.sites) == list(first.train.sites) == ["east"] * 6 + ["north"] * 6
    for split in ("train", "test"):
        assert torch.equal(getattr(first, split).x, getattr(second, split).x)


def test_the_second_time_nothing_is_decoded_and_all_is_the_same(folder: Path, store: Path, decoded: list[str]) -> None:
    first = load(folder)
    assert len(decoded) == 2
    second = load(folder, seed=8, alpha=5.0)  # who holds what is no matter of reading
    assert len(decoded) == 2
    assert np.array_equal(second.train.x.permute(0, 2, 3, 1).numpy(), np.stack(images(30, (8, 8, 3))))
    assert torch.equal(first.test.x, second.test.x)
    assert (first.train.x.stride(), first.train.y.tolist()) == (second.train.x.stride(), second.train.y.tolist())
    assert first.classes == second.classes
    assert len(entries(store)) == 1


def test_sites_are_kept_too(write_parquet: Write, store: Path, decoded: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_parquet("set/train.parquet", images(20), [i % 2 for i in range(20)])
    pq.write_table(pq.read_table(path).append_column("site", pa.array(["a", "b"] * 10)), path)
    for _ in range(2):
        assert load(path.parent, site_column="site").train.sites.tolist().count("a") == 8  # a fifth is held out
    assert len(decoded) == 1


def test_other_content_and_other_settings_are_other_entries(folder: Path, store: Path, write_parquet: Write) -> None:
    load(folder)
    assert load(folder, size=16).shape == (3, 16, 16)
    drawn = [load(folder, limit=6, seed=seed).train.x for seed in (7, 8)]
    assert not torch.equal(*drawn)
    assert len(entries(store)) == 4
    write_parquet("set/test.parquet", images(9, (8, 8, 3), seed=3), [i % 3 for i in range(9)])
    assert load(folder).test.x[0, :, 0, 0].tolist() == images(1, (8, 8, 3), seed=3)[0][0, 0].tolist()


def test_a_folder_of_images_is_known_by_what_is_in_it(tmp_path: Path, store: Path, decoded: list[str]) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "set/train" / name).mkdir(parents=True)
        for i, pixels in enumerate(images(10)):
            (tmp_path / "set/train" / name / f"{i}.png").write_bytes(png(pixels))
    for _ in range(2):
        load(tmp_path / "set")
    assert len(decoded) == 1
    (tmp_path / "set/train/dog").rename(tmp_path / "set/train/ant")
    assert load(tmp_path / "set").classes == ["ant", "cat"]


def test_a_damaged_entry_is_made_anew(folder: Path, store: Path, decoded: list[str]) -> None:
    whole = load(folder)
    (entry,) = entries(store)
    for damage in (entry.read_bytes()[:-5], entry.read_bytes()[:-1] + b"x", b""):
        entry.write_bytes(damage)
        assert torch.equal(load(folder).train.x, whole.train.x)
    assert len(decoded) == 8


def test_half_an_entry_of_a_killed_writer_is_no_entry(folder: Path, store: Path) -> None:
    whole = load(folder)
    (entry,) = entries(store)
    entry.rename(entry.with_name(entry.name + ".part"))  # as it is left if the writer dies before it renames
    assert torch.equal(load(folder).train.x, whole.train.x)
    assert [path.suffix for path in store.iterdir() if path.suffix != ".lock"] == [".safetensors"]


def test_two_writers_leave_one_whole_entry(folder: Path, store: Path) -> None:
    found: list[Dataset] = []
    together = threading.Barrier(4)

    def run() -> None:
        together.wait()
        found.append(load(folder))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(data.train.x, found[0].train.x) for data in found)
    assert len(entries(store)) == 1


def test_the_longest_unused_go_first(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder)
    (first,) = entries(store)
    monkeypatch.setattr(cache, "MOST", 5 * first.stat().st_size)
    for size in (7, 8, 9):
        load(folder, size=size)
    for age, entry in enumerate(sorted(entries(store), key=lambda path: path == first)):
        os.utime(entry, (1000 - age, 1000 - age))  # the first is the oldest,
    load(folder)  # but is used again
    load(folder, size=10)
    load(folder, size=11)
    assert first in entries(store)
    assert len(entries(store)) < 6
    assert sum(path.stat().st_size for path in entries(store)) <= cache.MOST


def test_it_can_be_turned_off_and_is_not_needed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    monkeypatch.setenv("FEDETF_CACHE", "off")
    load(folder)
    load(folder)
    assert len(decoded) == 4
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("FEDETF_CACHE", str(tmp_path / "a-file/cache"))
    with pytest.warns(UserWarning, match="decoded images are not kept .* FEDETF_CACHE=off"):
        assert len(load(folder).train) == 30


@pytest.mark.parametrize(("name", "value"), [("classes", 5), ("sites", [["a"], ["a", "b"]]), ("sites", {"a": 1})])
def test_an_entry_of_other_types_is_made_anew(
    name: str, value: object, folder: Path, store: Path, decoded: list[str]
) -> None:
    load(folder)
    (entry,) = entries(store)
    about, tensors = load_checked(entry)
    save_state({key: tensor.clone() for key, tensor in tensors.items()}, entry, {**about, name: value})
    assert load(folder).classes == ["0", "1", "2"]
    assert len(decoded) == 4
