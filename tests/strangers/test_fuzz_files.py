"""Run folders and model files from anybody: mutated in every way, they cost one line, and nothing outside them."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import LINKS, SECRET, Place, damage, files_in, plant
from fuzz import call, examples, mutated, untouched
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import fedetf
from fedetf.core.state import load_checked, save_state
from fedetf.models.export import export
from fedetf.report.live import LivePage

SETTINGS = {"data.limit": 60, "data.test_limit": 20, "personal.rounds": 1, "engine.name": "serial"}
KINDS = ("table", "text", "signal")


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@examples(150)
@given(data=st.data())
def test_a_model_file(originals: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, originals, "model.safetensors")
        damage(data.draw, place.copy, place.victim)
        with untouched(place.victim):
            call("predict", str(place.copy), str(originals / "picture.png"))


@pytest.mark.slow
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
