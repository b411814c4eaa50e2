"""Tables of four hospitals for tests, each with columns of its own: made ones, and the heart-disease files if there."""

import json
import os
from pathlib import Path

import numpy as np
from sites import QUICK, assert_same_model

import fedetf

HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
REAL = Path(os.environ.get("FEDETF_TEST_DATA", "../shared/data")) / "heart-disease" / "csv"
SETTINGS = (
    """
seed = 3
[data]
name = "hospitals"
label_column = "diagnosis"
fit = "{fit}"
[method]
name = "{method}"
[model]
name = "{model}"
[train]
rounds = 2
"""
    + QUICK
)


def hospital(path: Path, seed: int, empty: str = "", absent: str = "") -> None:
    """A table whose label depends on its numbers and a category; a column may be empty, or not there at all."""
    rng = np.random.default_rng(seed)
    n = 30 + 10 * seed
    age, chol = rng.normal(50 + 5 * seed, 9, n).round(1), rng.normal(200, 30, n).round()
    pain = np.array(["mild", "sharp", f"only {path.stem}"])[rng.integers(0, 3, n)]
    sick = np.where(age + 5 * (pain == "sharp") + rng.normal(0, 3, n) > 55, "yes", "no")
    table = {"age": age, "chol": chol, "pain": pain, "diagnosis": sick}
    shown = {name: [""] * n if name == empty else cells for name, cells in table.items() if name != absent}
    rows = [shown, *zip(*shown.values(), strict=True)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))


def write_hospitals(folder: Path) -> Path:
    """A file for each; one has an empty column, one an empty category, and one lacks a column."""
    folder.mkdir()
    differences = [{}, {"empty": "chol"}, {"empty": "pain"}, {"absent": "chol"}]
    for seed, (name, what) in enumerate(zip(HOSPITALS, differences, strict=True)):
        hospital(folder / f"{name}.csv", seed, **what)
    return folder


def assert_as_simulated(folder: Path, data: Path, app: Path, out: Path) -> fedetf.api.Result:
    """The simulator gets the same global model from the same files, to the bit."""
    files = {name: data / f"{name}.csv" for name in HOSPITALS}
    simulated = folder / f"simulated-{out.name}"
    expected = fedetf.run(str(app / "settings.toml"), data=files, engine="serial", out=simulated, trust_code=True)
    assert_same_model(out, simulated)
    return expected


def assert_same_personal(folder: Path, rows: Path, out: Path, expected: fedetf.api.Result) -> None:
    """The personal models that the sites have kept are the simulator's."""
    assert json.loads((out / "result.json").read_text())["personal_per_client"] == expected.personal_per_client
    run = json.loads((out / "flower.json").read_text())["run"]
    for k, name in enumerate(HOSPITALS):
        kept = folder / "kept" / name / run / str(k) / "personal.safetensors"
        there = fedetf.load(kept, trust_code=True).rows(rows)
        here = fedetf.load(folder / f"simulated-{out.name}", client=k, trust_code=True).rows(rows)
        assert (there == here).all()
