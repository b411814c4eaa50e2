"""Tables of any form, from anybody: data, or one line that says what is wrong with it."""

import contextlib
import io
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from conftest import png
from fuzz import call, examples, mutated, texts, untouched, values
from hypothesis import given
from hypothesis import strategies as st

from fedetf.errors import UserError
from fedetf.tuning.run import _plan
from fedetf.tuning.trials import Trial, Trials

ROWS = 24
NAMES = ["label", "x", "text", "image", "site", "rate", "", "a\nb", "\x1b[2J", "é", "x" * 300]
PICTURE = png(np.zeros((4, 4), np.uint8))


def wav(rate: int, bits: int, samples: bytes) -> bytes:
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, rate, rate, 1, bits)
    return head + struct.pack("<4sI", b"data", len(samples)) + samples


sounds = st.builds(wav, st.sampled_from([0, 1, 100, 8000, 2**32 - 1]), st.sampled_from([0, 8, 16, 64]), st.binary())
encoded = st.sampled_from([PICTURE, PICTURE[:40], b"", b"RIFF"]) | sounds | st.binary(max_size=40)
files = st.none() | st.fixed_dictionaries({"bytes": st.none() | encoded, "path": st.sampled_from([None, "keep", ""])})
signals = st.lists(st.floats(width=32), max_size=6) | st.lists(st.lists(st.floats(-9, 9), max_size=3), max_size=4)
CELLS: dict[str, tuple[Any, Any]] = {
    "numbers": (st.none() | st.floats(), pa.float64()),
    "counts": (st.none() | st.integers(-3, 3), pa.int64()),
    "flags": (st.none() | st.booleans(), pa.bool_()),
    "words": (st.none() | st.sampled_from(["a", "b"]) | texts.map(lambda t: t.encode("utf-8", "replace")), None),
    "nothing": (st.none(), pa.null()),
    "times": (st.none() | st.integers(-(2**60), 2**60), pa.timestamp("us")),
    "large": (st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=99), None),
    "files": (files, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
    "bytes": (st.none() | encoded, pa.binary()),
    "signals": (st.none() | signals, None),
}
FEATURES = ["Image", "Audio", "ClassLabel", "Value", 5, None]


@st.composite
def column(draw: st.DrawFn) -> pa.Array:
    """Cells of one kind, often the same few again and again, as labels and sites are."""
    strategy, kind = CELLS[draw(st.sampled_from(sorted(CELLS)))]
    some = draw(st.lists(strategy, min_size=1, max_size=3))
    cells = [some[i % len(some)] for i in range(ROWS)]
    try:
        return pa.array(cells, kind)
    except (pa.ArrowException, ValueError, TypeError):  # of several kinds
        return pa.array([json.dumps(each, default=str) for each in cells])


@st.composite
def parquet(draw: st.DrawFn) -> bytes:
    """Columns of any kind under any names, with any note of Hugging Face's."""
    names = draw(st.lists(st.sampled_from(NAMES) | st.text(max_size=5), min_size=0, max_size=4))
    table = pa.Table.from_arrays([draw(column()) for _ in names], [name.encode("utf-8", "replace") for name in names])
    if draw(st.booleans()):
        labels = pa.array(["a", "b"] * (ROWS // 2)) if draw(st.booleans()) else pa.array([0, 1] * (ROWS // 2))
        table = pa.Table.from_arrays([*table.columns, labels], [*table.column_names, "label"])
    if draw(st.booleans()):
        note = {
            "info": {"features": {n: {"_type": draw(st.sampled_from(FEATURES)), "names": ["u", "v"]} for n in names}}
        }
        table = table.replace_schema_metadata({"huggingface": json.dumps(mutated(draw, note), default=str)})
    if draw(st.integers(0, 9)) == 0:
        table = table.slice(0, 0)
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=draw(st.sampled_from([5, 100])))
    content = file.getvalue()
    if draw(st.integers(0, 4)):
        return content
    place = draw(st.integers(0, len(content) - 1))
    return content[:place] + draw(st.binary(max_size=5)) + content[place + draw(st.integers(0, 5)) :]


@st.composite
def csv(draw: st.DrawFn) -> bytes:
    """Lines of cells, with the slips that people and programs make."""
    cells = st.sampled_from(["1", "2.5", "a", "", "nan", '"', '"a,b"', "1e999", "1_0", "\x1b[31m", "é", "-"])
    header = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    separator = draw(st.sampled_from([",", ";", "\t", "|"]))
    some = draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), min_size=1, max_size=4))
    lines = [header, *(some[i % len(some)] for i in range(ROWS))]
    if draw(st.integers(0, 3)) == 0:
        lines.append(draw(st.lists(cells, max_size=6)))
    text = draw(st.sampled_from(["\n", "\r\n", "\r"])).join(separator.join(line) for line in lines)
    return text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])), "replace")


SETTINGS = {
    "data.kind": ["table", "text", "signal", "sound", "image"],
    "data.label_column": ["label", "x", "text", "nosuch"],
    "data.column": ["x", "text", "image", "nosuch"],
    "data.leave_out": ["x", "[]", "nosuch"],
    "data.categories": ["x", "rate"],
    "data.rate": ["100", "8000", "1000000"],
    "data.length": ["8", "128"],
    "data.size": ["2"],
}


@pytest.mark.slow
@examples(150)
@given(data=st.data())
def test_any_table_is_data_or_one_line(data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from(["parquet", "csv"]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        victim, work = Path(folder, "victim"), Path(folder, "work")
        for each in (victim, work):
            each.mkdir()
        (victim / "keep").write_bytes(PICTURE)
        patch.chdir(victim)  # where a path of a stranger's table could lead to
        patch.setenv("FEDETF_CACHE", f"{folder}/cache")
        (work / f"train.{ending}").write_bytes(data.draw(parquet() if ending == "parquet" else csv()))
        place = str(data.draw(st.sampled_from([work, work / f"train.{ending}"])))
        line = ["partition", "--dataset", place, "--clients", "2", "--out", f"{folder}/out"]
        for key in data.draw(st.lists(st.sampled_from(sorted(SETTINGS)), max_size=2)):
            line += ["--set", f"{key}={data.draw(st.sampled_from(SETTINGS[key]))}"]
        if data.draw(st.booleans()):
            line = ["flower", "check", place]
        with untouched(victim), untouched(work):
            status, _, _ = call(*line)
        assert status == 0 or not Path(folder, "out").exists()


@examples(100)
@given(data=st.data())
def test_any_file_of_ranges_is_a_plan_or_one_line(data: st.DataObject) -> None:
    tree = {"train": {"lr": {"low": 0.01, "high": 0.1, "log": True}, "momentum": [0.0, 0.9], "batch_size": [8, 16]}}
    changed = mutated(data.draw, {**tree, "methods": {"fedavg": {"train": {"lr": [0.1]}}}})
    try:
        text = tomli_w.dumps(changed)
    except (TypeError, ValueError, AttributeError):  # TOML has no such thing
        text = f"[train]\nlr = {data.draw(values)!r}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "space.toml")
        path.write_bytes(text.encode("utf-8", "replace"))
        with contextlib.suppress(UserError):
            (plan,) = _plan(["fedavg"], None, {"train.rounds": 1}, path, 1, trust_code=False)
            trials = Trials(Path(folder, "journal.jsonl"), "fedavg", "", plan.space, plan.defaults, seed=7)
            trials.add(Trial(0, trials.propose(), "complete", 0.5, 9, {1: 0.5}))
            assert trials.propose().keys() == plan.space.keys()
