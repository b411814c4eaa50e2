"""Run folders and model files from anybody: mutated in every way, they cost one line, and nothing outside them."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import tomllib
import torch
from fuzz import call, examples, mutated, untouched
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import fedetf
from fedetf.core.state import load_checked, save_state
from fedetf.files import UnfitFile
from fedetf.models.export import export
from fedetf.report.live import LivePage

SETTINGS = {"data.limit": 60, "data.test_limit": 20, "personal.rounds": 1, "engine.name": "serial"}
SECRET = "words-of-the-victim"
KINDS = ("table", "text", "signal")
LINKS = ("file", "folder", "fifo", "zero", "nowhere")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is done, one that is not, an exported model, a picture."""
    home = tmp_path_factory.mktemp("originals")
    options = {"method": "ditto", "model": "mlp", "clients": 2, "rounds": 2, "epochs": 1, "settings": SETTINGS}
    fedetf.run(out=home / "done", **options)
    shutil.copytree(home / "done", home / "cut")
    shutil.rmtree(home / "cut/personal")
    (home / "cut/result.json").unlink()
    (home / "cut/model.safetensors").unlink()
    export(home / "done", home / "model.safetensors")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(home / "picture.png")
    for kind in KINDS:
        trained_on_rows(home, kind)
    return home


def trained_on_rows(home: Path, kind: str) -> None:
    """The exported model of a small table of a kind."""
    rng = np.random.default_rng(0)
    cells = {
        "table": lambda i: {"x": rng.normal() if i % 5 else None, "c": "uvw"[i % 3]},
        "text": lambda i: {"text": f"words of the kind {'ab'[i % 2]} and others"},
        "signal": lambda i: {"signal": (rng.normal(size=(20, 2)) + i % 2).tolist()},
    }[kind]
    pq.write_table(
        pa.Table.from_pylist([{**cells(i), "label": "ab"[i % 2]} for i in range(40)]), home / f"{kind}.parquet"
    )
    settings = {"personal.enabled": False, "engine.name": "serial", "data.length": 16, "measure.tensorboard": False}
    run = {"clients": 2, "rounds": 1, "epochs": 1, "alpha": 100.0, "settings": settings}
    fedetf.run(method="fedavg", dataset=str(home / f"{kind}.parquet"), out=home / kind, **run)
    export(home / kind, home / f"{kind}.safetensors")


def damage(draw: st.DrawFn, path: Path, victim: Path) -> None:
    """Do something to a file."""
    kind = draw(st.sampled_from(["content", "content", "content", "cut", "bytes", "link", "folder", "gone"]))
    content = path.read_bytes()
    if kind == "content" and not rewritten(draw, path):
        kind = "bytes"
    if kind == "cut":
        path.write_bytes(content[: draw(st.integers(0, len(content)))])
    elif kind == "bytes":
        place = draw(st.integers(0, max(0, len(content) - 1)))
        path.write_bytes(content[:place] + draw(st.binary(min_size=1, max_size=9)) + content[place + 1 :])
    elif kind != "content":
        path.unlink()
        if kind == "folder":
            path.mkdir()
        if kind == "link":
            plant(draw(st.sampled_from(LINKS)), path, victim)


def rewritten(draw: st.DrawFn, path: Path) -> bool:
    """Change what a file says; False if an earlier damage left nothing that could be read."""
    try:
        REWRITERS.get(path.suffix, rewrite_text)(draw, path)
    except (UnfitFile, json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def plant(what: str, path: Path, victim: Path) -> None:
    """Put a link, or something that is no file, in the place of a file."""
    if what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to({"file": victim / "keep", "folder": victim, "zero": "/dev/zero", "nowhere": "/no/such"}[what])


def rewrite_json(draw: st.DrawFn, path: Path) -> None:
    path.write_text(json.dumps(mutated(draw, json.loads(path.read_text()))), "utf-8", errors="surrogatepass")


def rewrite_lines(draw: st.DrawFn, path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = mutated(draw, lines)
    text = "\n".join(json.dumps(line) for line in (changed if isinstance(changed, list) else [changed]))
    path.write_text(text, "utf-8", errors="surrogatepass")


def rewrite_toml(draw: st.DrawFn, path: Path) -> None:
    tree = mutated(draw, tomllib.loads(path.read_text()))
    try:
        path.write_text(tomli_w.dumps(tree), "utf-8")
    except (TypeError, ValueError, AttributeError):  # TOML has no such thing
        path.write_text("[" * 3000)


def rewrite_tensors(draw: st.DrawFn, path: Path) -> None:
    """What a file says of itself, or its tensors, with a checksum that is right."""
    about, state = load_checked(path)
    if draw(st.booleans()):
        changed = mutated(draw, about)
        about = changed if isinstance(changed, dict) else {"it": changed}
        about.pop("check", None)
    else:
        name = draw(st.sampled_from(sorted(state)))
        state[name] = draw(st.sampled_from(ODD))(state[name])
    try:
        save_state(state, path, about)
    except (ValueError, TypeError, UnicodeEncodeError):  # what JSON cannot hold
        path.write_bytes(b"")


def rewrite_text(draw: st.DrawFn, path: Path) -> None:
    path.write_text(draw(st.text()), "utf-8", errors="replace")


ODD: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.double(),
    lambda t: t.flatten(),
    lambda t: t.new_zeros(3, 3),
    lambda t: torch.full_like(t.float(), float("nan")),
    lambda t: torch.zeros(0),
    lambda t: t.bool(),
]
REWRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".json": rewrite_json,
    ".jsonl": rewrite_lines,
    ".toml": rewrite_toml,
    ".safetensors": rewrite_tensors,
}


class Place:
    """A damaged copy, and a victim beside it."""

    def __init__(self, folder: str, originals: Path, name: str):
        self.victim, self.copy = Path(folder, "victim"), Path(folder, name)
        (self.victim / "below").mkdir(parents=True)
        (self.victim / "keep").write_text(f"{SECRET}\n")
        if (originals / name).is_dir():
            shutil.copytree(originals / name, self.copy, ignore=shutil.ignore_patterns("tensorboard"))
        else:
            shutil.copy(originals / name, self.copy)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@examples(120)
@given(data=st.data())
def test_a_finished_run(originals: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, "done")
        for _ in range(data.draw(st.integers(1, 2))):
            damage(data.draw, data.draw(st.sampled_from(files_in(place.copy))), place.victim)
        command = data.draw(st.sampled_from(["report", "predict", "personal", "export", "resume"]))
        run, picture = str(place.copy), str(originals / "picture.png")
        line = {
            "report": ["report", run, "--out", f"{folder}/page.html"],
            "predict": ["predict", run, picture],
            "personal": ["predict", run, "--client", "1", picture],
            "export": ["export", run, "--to", f"{folder}/out.safetensors"],
            "resume": ["resume", run],
        }[command]
        with untouched(place.victim):
            call(*line)
        page = Path(folder, "page.html")
        assert not page.is_file() or SECRET not in page.read_text("utf-8")


@examples(80)
@given(data=st.data())
def test_a_run_that_was_cut_short(originals: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, "cut")
        damage(data.draw, data.draw(st.sampled_from(files_in(place.copy))), place.victim)
        if data.draw(st.booleans()):  # where temporaries and folders of the run are to be
            name = data.draw(
                st.sampled_from(
                    [
                        "rounds.jsonl.part",
                        "result.json.part",
                        "model.safetensors.part",
                        "personal",
                        "tensorboard",
                        ".lock",
                    ]
                )
            )
            if not (place.copy / name).exists():
                plant(data.draw(st.sampled_from(LINKS)), place.copy / name, place.victim)
        if data.draw(st.integers(0, 3)) == 0:
            name = data.draw(st.sampled_from(["clients", "checkpoints"]))
            shutil.rmtree(place.copy / name, ignore_errors=True)
            (place.copy / name).symlink_to(place.victim)
        with untouched(place.victim):
            call("resume", str(place.copy))


@examples(150)
@given(data=st.data())
def test_a_model_file(originals: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, "model.safetensors")
        damage(data.draw, place.copy, place.victim)
        with untouched(place.victim):
            call("predict", str(place.copy), str(originals / "picture.png"))


@examples(150)
@given(data=st.data())
def test_a_model_of_rows(originals: Path, data: st.DataObject) -> None:
    """Its note on inputs says what columns, words, windows and rates there are."""
    kind = data.draw(st.sampled_from(KINDS))
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, f"{kind}.safetensors")
        about, state = load_checked(place.copy)
        changed = mutated(data.draw, about["inputs"])
        about |= {"inputs": changed}
        if data.draw(st.booleans()):  # a shape that fits a note with another length
            about["shape"] = [*about["shape"][:-1], changed.get("length") if isinstance(changed, dict) else 1]
        try:
            save_state(state, place.copy, about)
        except (ValueError, TypeError, UnicodeEncodeError):  # what JSON cannot hold
            return
        with untouched(place.victim):
            if data.draw(st.booleans()):
                call("predict", str(place.copy), str(originals / f"{kind}.parquet"))
            else:
                call("export", str(place.copy), "--to", f"{folder}/again.safetensors")


@examples(80)
@given(data=st.data())
def test_a_folder_that_is_watched(originals: Path, data: st.DataObject) -> None:
    """The live page is made of whatever is there, again and again."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, data.draw(st.sampled_from(["done", "cut"])))
        live = LivePage([place.copy.parent / place.copy.name])
        live.look()
        for _ in range(data.draw(st.integers(1, 2))):
            damage(data.draw, data.draw(st.sampled_from(files_in(place.copy))), place.victim)
            with untouched(place.victim):
                live.look()
            assert SECRET.encode() not in live.page
