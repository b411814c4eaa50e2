"""Raw rows give the same probabilities wherever they go in: predict, fedetf.load, ONNX, torch.export, the estimator."""

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from scipy.io import wavfile

import fedetf
from fedetf import FederatedClassifier, UserError
from fedetf.cli import main
from fedetf.data.frames import from_pandas
from fedetf.models.export import export

HEART = Path(os.environ.get("FEDETF_TEST_DATA", "../shared/data")) / "heart-disease" / "csv"
QUICK = {"rounds": 2, "epochs": 1, "settings": {"train.lr": 0.05, "train.batch_size": 16, "personal.rounds": 1}}


def table(n: int = 90, seed: int = 0) -> pd.DataFrame:
    """Numbers far from 0, a category, missing values, and a label that depends on them."""
    rng = np.random.default_rng(seed)
    weight, size = rng.normal(70_000, 9_000, n), rng.normal(0.002, 0.0005, n)
    colour = rng.choice(["red", "green", "blue"], n)
    label = np.where((weight > 70_000) ^ (colour == "red"), "yes", "no")
    frame = pd.DataFrame({"weight": weight, "size": size, "colour": colour, "label": label})
    frame.loc[::7, "size"] = np.nan
    frame.loc[::11, "colour"] = None
    return frame


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    sites = {"north": table(seed=1), "south": table(seed=2)}
    fedetf.run(method="fedetf", data=sites, out=folder / "run", **QUICK)
    fresh = table(40, seed=3)
    fresh.loc[0, "colour"] = "violet"  # nobody has seen it
    fresh[["colour", "size", "weight"]].to_csv(folder / "rows.csv", index=False)  # in another order
    return folder


def predicted(folder: Path, capsys: pytest.CaptureFixture[str], classes: Sequence[str] = ("no", "yes")) -> np.ndarray:
    assert main(["predict", str(folder / "run"), str(folder / "rows.csv"), "--top", "2"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = {(int(row["row"]), row["class"]): float(row["probability"]) for row in rows}
    return np.array([[found[line, name] for name in classes] for line in range(1, 1 + len(rows) // 2)])


@pytest.mark.slow
def test_the_same_probabilities_everywhere(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = fedetf.load(run / "run").rows(run / "rows.csv").numpy()
    assert np.ptp(expected[:, 0]) > 0.05
    np.testing.assert_allclose(predicted(run, capsys), expected, atol=1e-5)
    export(run / "run", tmp_path / "m.onnx")
    frame = pd.read_csv(run / "rows.csv")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [value.name for value in session.get_inputs()] == ["weight", "size", "colour"]
    frame["colour"] = frame["colour"].fillna("").astype(object)
    (onnx,) = session.run(None, {column: frame[[column]].to_numpy() for column in frame})
    np.testing.assert_allclose(onnx, expected, atol=1e-5)
    export(run / "run", tmp_path / "m.safetensors")
    exported = fedetf.load(tmp_path / "m.safetensors")
    assert np.array_equal(exported.rows(pd.read_csv(run / "rows.csv")).numpy(), expected)
    export(run / "run", tmp_path / "m.pt2")
    raw = exported.inputs.note.read(fedetf.data.own.as_table(run / "rows.csv", "rows")).x
    program = torch.export.load(tmp_path / "m.pt2").module()
    np.testing.assert_allclose(program(raw).detach().numpy(), expected, atol=1e-5)


@pytest.mark.slow
def test_the_code_of_a_table_s_onnx_card_runs_as_it_stands(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pd.read_csv(run / "rows.csv").assign(weight=lambda frame: frame["weight"].round().astype(int))
    rows.to_csv("rows.csv", index=False)  # whole numbers, missing ones and missing words
    card = export(run / "run", tmp_path / "m.onnx").read_text()
    names: dict[str, np.ndarray] = {}
    exec(card.split("```python\n")[1].split("```")[0], names)
    np.testing.assert_allclose(names["probabilities"], fedetf.load(run / "run").rows(rows).numpy(), atol=1e-5)


def test_a_card_lists_no_draw_where_a_column_names_the_sites(tmp_path: Path) -> None:
    both = pd.concat([table(seed=k).assign(where=name) for k, name in enumerate(["north", "south"])])
    fedetf.run(method="fedavg", data=both, site_column="where", out=tmp_path / "run", **QUICK)
    card = export(tmp_path / "run", tmp_path / "m.safetensors").read_text()
    assert 'site_column = "where"' in card
    assert "alpha" not in card
    assert "partition =" not in card


def test_the_estimator_is_the_same_model(tmp_path: Path) -> None:
    train, fresh = pd.concat([table(seed=1), table(seed=2)]), table(30, seed=3).drop(columns="label")
    X, y, site = train.drop(columns="label"), train["label"], ["north"] * 90 + ["south"] * 90
    model = FederatedClassifier(**QUICK, random_state=0, out=tmp_path / "run").fit(X, y, groups=site)
    for group in (None, "south"):
        wanted = model.predict_proba(fresh, group)
        card = model.export(tmp_path / f"{group}.safetensors", group)
        loaded = fedetf.load(tmp_path / f"{group}.safetensors")
        assert loaded.classes == ["no", "yes"]
        np.testing.assert_allclose(loaded.rows(fresh), wanted, atol=1e-5)
        client = None if group is None else 1
        np.testing.assert_allclose(fedetf.load(tmp_path / "run", client).rows(fresh), wanted, atol=1e-5)
    text = card.read_text()
    assert "the personal model of south" in text
    assert "| colour | category, as text | blue, green, red | yes |" in text


@dataclass
class People:
    """What an engineer has: rows with labels and sites, and how they are given to an ONNX file by hand."""

    X: pd.DataFrame | list[str]
    y: list[str]
    sites: list[str]
    inputs: Callable[[], dict[str, np.ndarray]]
    settings: dict[str, str] = field(default_factory=dict)


def of_frame(frame: pd.DataFrame, label: str, sites: list[str]) -> People:
    X = frame.drop(columns=label)
    words = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
    shown = X.assign(**{name: X[name].fillna("").astype(object) for name in words})
    shown = shown.astype({name: float for name in X if name not in words})
    return People(X, list(frame[label]), sites, lambda: {name: shown[[name]].to_numpy() for name in shown})


def of_texts(folder: Path, tokens: bool) -> People:
    """``tokens``: by a tokenizer, which no graph can hold, so that the graph takes its ids, and not bytes."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["Red", "blue", "é1", "sea"], 9)) for _ in range(60)]
    labels, sites = ["yes" if text.count("Red") > 2 else "no" for text in texts], ["north", "south"] * 30
    if not tokens:
        data = [text.encode() for text in texts]
        rows = np.array([list(each) + [0] * (2048 - len(each)) for each in data], np.uint8)
        return People(texts, labels, sites, lambda: {"inputs": rows})
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "Red": 1, "blue": 2, "<unk>": 3}, "<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    made.enable_padding(pad_id=0, pad_token="<pad>", length=256)
    ids = np.array([encoded.ids for encoded in made.encode_batch(texts)], np.int64)
    return People(texts, labels, sites, lambda: {"inputs": ids}, {"data.tokenizer": str(folder / "tokenizer.json")})


def people(what: str, folder: Path) -> People:
    if what == "table":
        both = pd.concat([table(seed=1), table(seed=2)], ignore_index=True)
        return of_frame(both, "label", ["north"] * 90 + ["south"] * 90)
    if what == "heart disease":
        if not HEART.is_dir():
            pytest.skip("needs heart-disease in ../shared/data or $FEDETF_TEST_DATA")
        files = {path.stem: pd.read_csv(path) for path in sorted(HEART.glob("*.csv"))}
        sites = [name for name, frame in files.items() for _ in range(len(frame))]
        return of_frame(pd.concat(files.values(), ignore_index=True), "diagnosis", sites)
    return of_texts(folder, tokens=what == "tokens")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["table", "heart disease", "texts", "tokens"])
def test_the_command_line_python_onnx_and_the_estimator_agree(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = people(what, tmp_path)
    quick = {**QUICK, "settings": {**QUICK["settings"], **given.settings}}
    model = FederatedClassifier(**quick, random_state=0, out=tmp_path / "run").fit(given.X, given.y, given.sites)
    wanted = model.predict_proba(given.X)
    assert np.ptp(wanted[:, 0]) > 0.05
    frame = pd.DataFrame({"text": given.X}) if isinstance(given.X, list) else given.X
    frame.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_allclose(predicted(tmp_path, capsys, model.classes_), wanted, atol=1e-5)
    np.testing.assert_allclose(fedetf.load(tmp_path / "run").rows(tmp_path / "rows.csv"), wanted, atol=1e-5)
    first = model.groups_[0]  # its own model goes by its name
    own = fedetf.load(tmp_path / "run", client=first).rows(tmp_path / "rows.csv")
    np.testing.assert_allclose(own, model.predict_proba(given.X, first), atol=1e-5)
    model.export(tmp_path / "m.onnx")
    (onnx,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, given.inputs())
    np.testing.assert_allclose(onnx, wanted, atol=1e-5)


@pytest.mark.slow
def test_cards_tell_what_is_known(run: Path, tmp_path: Path) -> None:
    text = export(run / "run", tmp_path / "m.onnx").read_text()
    assert "2 sites (north, south)" in text
    assert "alpha" not in text.partition("## Settings")[0]
    assert "what the clients hold out, taken together" in text
    assert "To be filled in" in text
    result = json.loads((run / "run" / "result.json").read_text())
    reached, always = result["per_client"]["general"]["accuracy"], result["majority_per_client"]
    for name, value, majority in zip(("north", "south"), reached, always, strict=True):
        assert f"| general: this model on what {name} held out | {value:.4f} |" in text
        assert f"most frequent class of its training samples, at {name} | {majority:.4f} |" in text
    assert text.index("| weight | number, unit unknown |") < text.index("| size |") < text.index("| colour |")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="size"), "has no column 'size', which the model takes; add it"),
        (lambda f: f.assign(weight=["heavy"] * len(f)), "row 1: 'heavy' in the column 'weight' is not a number"),
        (lambda f: f.assign(size=-1e31), "row 1: -1e+31 in the column 'size' is too large a number for a model"),
    ],
)
def test_rows_that_the_model_cannot_read(change, message: str, run: Path, tmp_path: Path, capsys) -> None:
    change(table(5).drop(columns="label")).to_csv(tmp_path / "bad.csv", index=False)
    assert main(["predict", str(run / "run"), str(tmp_path / "bad.csv")]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(UserError, match=r"not a number|has no column|too large a number"):
        fedetf.load(run / "run").rows(tmp_path / "bad.csv")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["textbag", "transformer", "cnn1d", "mlp", "sound"])
def test_texts_signals_and_sound_in_onnx(name: str, tmp_path: Path) -> None:
    """The graph takes raw bytes, windows and waveforms."""
    rng = np.random.default_rng(0)
    labels = [0, 1] * 15
    if name in ("textbag", "transformer"):
        data = pd.DataFrame({"text": [" ".join(rng.choice(["Red", "blue", "é1"], 9)) for _ in labels], "label": labels})
    elif name == "sound":
        waves = [io.BytesIO() for _ in labels]
        for wave in waves:
            wavfile.write(wave, 8000, rng.normal(0, 0.1, 900).astype(np.float32))
        data = pd.DataFrame({"audio": [wave.getvalue() for wave in waves], "label": labels})
    else:
        data = pd.DataFrame({"signal": [rng.normal(5, 2, (40, 3)).tolist() for _ in labels], "label": labels})
    model = {} if name == "sound" else {"model": name}
    settings = {**QUICK["settings"], "data.length": 512 if name == "sound" else 32, "personal.enabled": False}
    fedetf.run(data=data, clients=2, alpha=10.0, out=tmp_path / "run", rounds=1, epochs=1, settings=settings, **model)
    loaded = fedetf.load(tmp_path / "run")
    raw = loaded.inputs.note.read(from_pandas(data, "data")).x[:7]
    with torch.no_grad():
        expected = loaded(raw).numpy()
    export(tmp_path / "run", tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (onnx,) = session.run(None, {"inputs": raw.numpy()})
    np.testing.assert_allclose(onnx, expected, atol=1e-5)
