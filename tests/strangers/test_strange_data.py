"""Tables, sounds and models of them from anybody: one line, bounded memory, no file that was not meant."""

import json
import resource
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import png
from fuzz import call
from PIL import Image

import fedetf
from fedetf.core.state import load_checked, save_state
from fedetf.data import load_dataset
from fedetf.data.frames import read_frame
from fedetf.data.kinds.signal import resampled, windows_of
from fedetf.errors import UserError
from fedetf.models.export import export
from fedetf.settings import DataSettings

LABELS = ["a", "b"] * 50


def memory() -> int:
    """The most that this process ever took, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- Parquet ----------------------------------------------------------------------------------------------------------


def bomb_of_rows(path: Path) -> None:
    rows = 2_000_000
    pq.write_table(pa.table({f"x{i}": pa.repeat(0.0, rows) for i in range(20)}), path, compression="zstd")


def bomb_of_words(path: Path) -> None:
    """A text of 10 MB, 100,000 times."""
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["z" * 10_000_000]))
    table = pa.table({"text": words})
    with pq.ParquetWriter(path, table.schema, store_schema=False, compression="zstd") as writer:
        writer.write_table(table)


def bomb_of_nothing(path: Path) -> None:
    pq.write_table(pa.table({"label": pa.nulls(50_000_000)}), path)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [bomb_of_rows, bomb_of_words, bomb_of_nothing])
def test_a_small_file_does_not_become_a_large_table(tmp_path: Path, bomb: object) -> None:
    path = tmp_path / "train.parquet"
    bomb(path)  # type: ignore[operator]
    assert path.stat().st_size < 2**20
    before = memory()
    with pytest.raises(UserError, match=r"would take over 2.. MiB, far more than it has"):
        read_frame(path)
    assert memory() - before < 3 * 2**30


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(20_000.0), "word": [f"w{i % 7}" for i in range(20_000)]})
    pq.write_table(table.replace_schema_metadata({"a": "b"}), tmp_path / "t.parquet", row_group_size=3_000)
    read = read_frame(tmp_path / "t.parquet").table
    assert read.equals(table)
    assert read.schema.metadata[b"a"] == b"b"


@pytest.mark.parametrize("as_text", [False, True])
def test_a_table_names_no_pictures_of_this_machine(tmp_path: Path, as_text: bool) -> None:
    mine = tmp_path / "mine.png"
    mine.write_bytes(png(np.zeros((8, 8), np.uint8)))
    cells = [str(mine) if as_text else {"bytes": None, "path": str(mine)}] * 100
    note = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
    table = pa.table({"image": cells, "label": LABELS}).replace_schema_metadata({"huggingface": note})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"names files such as '.*mine.png' instead of holding images"):
        load_dataset(DataSettings(name=str(tmp_path / "train.parquet")), 7)


def same_name_twice(path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(LABELS), pa.array(LABELS)], ["label", "label"]), path)


def without_rows(path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.list_(pa.float32())), "label": pa.array([], pa.string())}), path)


def without_a_name(path: Path) -> None:
    pq.write_table(pa.table({"": np.arange(100.0), "label": LABELS}), path)


def too_wide(path: Path) -> None:
    pq.write_table(pa.table({f"x{i}": [1.0] for i in range(10_001)}), path)


def of_many_channels(path: Path) -> None:
    signals = [[[0.0] * 5000] * 9] * 100
    pq.write_table(pa.table({"signal": signals, "label": LABELS}), path)


def with_a_long_name(path: Path) -> None:
    pq.write_table(pa.table({"x" * 20_000: np.arange(100.0), "label": LABELS}), path)


def with_numbers_as_paths(path: Path) -> None:
    pq.write_table(pa.table({"image": [{"bytes": None, "path": 5}] * 100, "label": LABELS}), path)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (same_name_twice, "has two columns 'label'"),
        (without_rows, "has no rows"),
        (without_a_name, "does not make a table"),
        (too_wide, "has 10,001 columns"),
        (of_many_channels, "does not make a signal (channels)"),
        (with_a_long_name, "does not make a table (name)"),
        (with_numbers_as_paths, "has rows without an image"),
    ],
)
def test_odd_tables_are_one_line(tmp_path: Path, write: object, why: str) -> None:
    path = tmp_path / "train.parquet"
    write(path)  # type: ignore[operator]
    status, _, said = call("partition", "--dataset", str(path), "--clients", "2", "--out", str(tmp_path / "out"))
    assert (status, why in said) == (2, True), said
    assert not (tmp_path / "out").exists()


# --- the cache of decoded images --------------------------------------------------------------------------------------


def class_folder(folder: Path, grey: int) -> Path:
    """Images of one brightness; the folders of their classes are links."""
    for name in ("cat", "dog"):
        real = folder / "real" / name
        real.mkdir(parents=True)
        for i in range(10):
            Image.fromarray(np.full((8, 8), grey + i, np.uint8)).save(real / f"{i}.png")
        (folder / "set").mkdir(exist_ok=True)
        (folder / "set" / name).symlink_to(real)
    return folder / "set"


def test_images_behind_links_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders whose classes are links had the same entry: the second was trained on the first one's images."""
    monkeypatch.setenv("FEDETF_CACHE", str(tmp_path / "cache"))
    for grey in (10, 200):
        dataset = load_dataset(DataSettings(name=str(class_folder(tmp_path / str(grey), grey))), 7)
        assert int(dataset.train.x.min()) >= grey


@pytest.mark.parametrize(
    "planted", [{"classes": 5}, {"classes": []}, {"classes": ["one"]}, {"sites": [1, 2]}, {"held_out": None}]
)
def test_an_entry_that_was_planted_is_made_anew(tmp_path: Path, planted: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDETF_CACHE", str(tmp_path / "cache"))
    settings = DataSettings(name=str(class_folder(tmp_path / "data", 10)))
    first = load_dataset(settings, 7)
    (entry,) = (tmp_path / "cache").glob("*.safetensors")
    about, tensors = load_checked(entry)
    save_state(tensors, entry, {**about, **planted})
    again = load_dataset(settings, 7)
    assert again.classes == first.classes == ["cat", "dog"]
    assert torch.equal(again.train.x, first.train.x)


# --- sounds and signals -----------------------------------------------------------------------------------------------


def wav(rate: int, samples: bytes) -> bytes:
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, rate, rate, 1, 8)
    return head + struct.pack("<4sI", b"data", len(samples)) + samples


def test_the_rate_that_a_sound_claims_takes_no_memory(tmp_path: Path) -> None:
    for name in LABELS[:2]:
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for i in range(20):
            (tmp_path / "sounds" / name / f"{i}.wav").write_bytes(wav(1, bytes(range(256)) * 50))
    before = memory()
    status, _, said = call("partition", "--dataset", str(tmp_path / "sounds"), "--clients", "2")
    assert (status, "1 steps a second cannot be brought to 8000" in said) == (2, True), said
    assert memory() - before < 2**28


def test_rates_that_occur_are_brought_together() -> None:
    assert resampled(np.zeros((1, 100), np.float32), 200, 8000).shape == (1, 4000)
    assert resampled(np.zeros((1, 96_000), np.float32), 96_000, 8000).shape == (1, 8000)


def test_windows_overlap_by_half() -> None:
    recording = np.arange(20, dtype=np.float32).reshape(2, 10)
    assert windows_of(recording, 4)[:, :, 0].tolist() == [[0, 10], [2, 12], [4, 14], [6, 16]]
    assert windows_of(recording, 4)[1].tolist() == [[2, 3, 4, 5], [12, 13, 14, 15]]


# --- models of them ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model of a table with two columns."""
    home = tmp_path_factory.mktemp("model")
    rng = np.random.default_rng(0)
    rows = "".join(f"{x:.3f},{'uv'[i % 2]},{'ab'[int(x > 0)]}\n" for i, x in enumerate(rng.normal(size=60)))
    (home / "rows.csv").write_text(f"x,c,label\n{rows}")
    small = {"personal.enabled": False, "engine.name": "serial", "measure.tensorboard": False}
    fedetf.run(dataset=str(home / "rows.csv"), clients=2, rounds=1, epochs=1, settings=small, out=home / "run")
    export(home / "run", home / "model.safetensors")
    return home


def changed(model: Path, tmp_path: Path, change: object) -> str:
    about, state = load_checked(model / "model.safetensors")
    change(about["inputs"]["columns"])  # type: ignore[operator]
    save_state(state, tmp_path / "model.safetensors", about)
    return str(tmp_path / "model.safetensors")


def test_a_range_without_an_end_is_shown_as_none(model: Path, tmp_path: Path) -> None:
    file = changed(model, tmp_path, lambda columns: columns[0].update(high=None))
    status, _, said = call("export", file, "--to", str(tmp_path / "again.safetensors"))
    assert status == 0, said


@pytest.mark.parametrize("name", ["c", ""])
def test_columns_need_names_of_their_own(model: Path, tmp_path: Path, name: str) -> None:
    file = changed(model, tmp_path, lambda columns: columns[0].update(name=name))
    status, _, said = call("predict", file, str(model / "rows.csv"))
    assert (status, "is damaged" in said) == (2, True), said


def test_large_inputs_are_answered_a_few_at_a_time(model: Path) -> None:
    loaded = fedetf.load(model / "model.safetensors")
    assert loaded.inputs.at_once == 500
    assert type(loaded.inputs)((3, 4700, 4700), torch.uint8).at_once == 1
    frame = read_frame(model / "rows.csv")
    whole = loaded.rows(frame)
    assert whole.shape == (60, 2)
    assert torch.allclose(whole[40:], loaded.rows(frame.part(40, 20)))


def test_rows_keep_their_numbers_in_messages(model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": ["1"] * 560 + ["one"], "c": ["u"] * 561}), tmp_path / "many.parquet")
    status, _, said = call("predict", str(model / "model.safetensors"), str(tmp_path / "many.parquet"))
    assert (status, "many.parquet: row 561: 'one' in the column 'x' is not a number" in said) == (2, True), said


# --- ranges to tune over ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"[train]\nlr = {{low = 0.1, high = 1{'0' * 400}}}", "train.lr takes a list of values"),
        ("[train]\nlr = {low = 0.1, high = nan}", "train.lr takes a list of values"),
        (f"[train]\nlr = [1{'0' * 400}]", "train.lr"),
        ("[methods]\nfedavg = 3", "methods takes a table for each method"),
        ("methods = 3", "methods takes a table for each method"),
        ('[method]\nname = ["os:abort"]', "method.name is the same in all trials"),
        ('[model]\nname = ["os:abort"]', "model.name is the same in all trials"),
    ],
)
def test_a_file_of_ranges_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "space.toml").write_text(text)
    line = ["tune", "--methods", "fedavg", "--space", str(tmp_path / "space.toml"), "--out", str(tmp_path / "out")]
    status, _, said = call(*line)
    assert (status, why in said) == (2, True), said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("link", ["trials", "trials/fedavg-001"])
def test_trials_are_not_written_behind_a_link(tmp_path: Path, link: str) -> None:
    victim, planted = tmp_path / "victim", tmp_path / "out" / link
    victim.mkdir()
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    line = ["tune", "--methods", "fedavg", "--trials", "1", "--trial-rounds", "1", "--clients", "2", "--alpha", "100"]
    status, _, said = call(*line, "--set", "engine.name=serial", "--out", str(tmp_path / "out"))
    assert (status, "is a link; a run folder holds no links" in said) == (2, True), said
    assert not list(victim.iterdir())
