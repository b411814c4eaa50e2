"""Trained models in use: load, predict, export; encoders of the user's own, and frozen ones that run once."""

import csv
import io
import json
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedetf
from fedetf import UserError, api
from fedetf.cli import main
from fedetf.config import resolve
from fedetf.engines.job import build_net, preparation
from fedetf.features import is_frozen
from fedetf.methods import make_method
from fedetf.models import export
from fedetf.models.export import export as export_model
from fedetf.models.load import Inputs, Model
from fedetf.nn import encoders
from fedetf.nn.encoders import build_encoder, models_for
from fedetf.nn.encoders.densenet import DenseNet

METHODS = ["fedavg", "fedetf", "fedrod", "fednh", "fedrep", "fedproto"]
SMALL = {"data.limit": 150, "personal.rounds": 1, "measure.tensorboard": False}
QUICK = {"clients": 2, "alpha": 1.0, "rounds": 1, "epochs": 1, "engine": "serial"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedetf.Result]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        method: fedetf.run(method=method, model="mlp", out=folder / method, settings=SMALL, **QUICK)
        for method in METHODS
    }


def answer(model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


# --- load -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_loaded_models_reach_the_accuracies_of_the_run(method: str, runs: dict[str, fedetf.Result]) -> None:
    """Raw images in: the global model on the test set, each personal one on its client's test split."""
    result = runs[method]
    data, partition = result.job.dataset, result.partition
    if method != "fedproto":
        model = fedetf.load(result.folder)
        right = answer(model, data.test.x).argmax(1) == data.test.y
        assert right.float().mean().item() == pytest.approx(result.general)
    for client, accuracy in enumerate(result.personal_per_client):
        own = data.train.take(torch.from_numpy(partition.test[client]))
        right = answer(fedetf.load(result.folder, client), own.x).argmax(1) == own.y
        assert right.float().mean().item() == pytest.approx(accuracy)


def test_preprocessing_is_included(runs: dict[str, fedetf.Result]) -> None:
    result = runs["fedavg"]
    x = result.job.dataset.test.x[:9]
    wanted = result.model()((x.float() / 255 - 0.5) / 0.5).softmax(dim=1)
    model = fedetf.load(result.folder)
    torch.testing.assert_close(answer(model, x), wanted.detach())
    assert model.classes == [str(c) for c in range(10)]
    assert not model.training
    with pytest.raises(
        UserError, match=r"takes raw inputs \[n, 1, 8, 8\] torch.uint8, not \[9, 1, 8, 8\] torch.float32"
    ):
        model(x.float())


def test_fedrods_personal_model_has_both_heads(runs: dict[str, fedetf.Result]) -> None:
    result = runs["fedrod"]
    x, net = result.job.dataset.test.x[:9], result.model(client=1)
    with torch.no_grad():
        h = net.encoder((x.float() / 255 - 0.5) / 0.5)
        generic, both = net.head.generic(h), net.head.generic(h) + net.head.private(h)
    got = answer(fedetf.load(result.folder, 1), x)
    torch.testing.assert_close(got, both.softmax(1))
    assert not torch.allclose(got, generic.softmax(1), atol=1e-3)


def test_what_cannot_be_loaded(runs: dict[str, fedetf.Result], tmp_path: Path) -> None:
    folder = runs["fedavg"].folder
    for path, client, message in [
        (tmp_path, None, "is not a run folder"),
        (folder, 7, "has no client 7; clients are 0 to 1"),
        (runs["fedproto"].folder, None, "fedproto has no global model; choose a client's, with --client K"),
        (folder / "model.safetensors", None, "is a file of a run; give the folder"),
    ]:
        with pytest.raises(UserError, match=message):
            fedetf.load(path, client)
    (tmp_path / "broken.safetensors").write_text("nothing")
    with pytest.raises(UserError, match=r"broken.safetensors is damaged: "):
        fedetf.load(tmp_path / "broken.safetensors")


def test_a_run_that_is_not_done(tmp_path: Path) -> None:
    fedetf.run(method="fedavg", model="mlp", out=tmp_path / "run", settings=SMALL, **QUICK)
    (tmp_path / "run/result.json").unlink()
    with pytest.raises(UserError, match="is not done; finish it with: fedetf resume"):
        fedetf.load(tmp_path / "run")


def test_vectors_and_objects_of_python(tmp_path: Path) -> None:
    """Own data, own encoder and own method: files hold no code, so the objects are given again."""

    class Mine(fedetf.Method):
        """FedAvg by another name."""

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 5)), ["a", "b"] * 10)] * 2
    encoder = nn.Linear(5, 4)
    result = fedetf.run(data=data, method=Mine, model=encoder, out=tmp_path / "run", rounds=1, engine="serial")
    with pytest.raises(UserError, match=r"was given its method in Python; load it with fedetf.load\(..., method="):
        fedetf.load(tmp_path / "run")
    with pytest.raises(UserError, match=r"was given its model in Python"):
        fedetf.load(tmp_path / "run", method=Mine)
    with pytest.raises(UserError, match="does not fit the encoder"):
        fedetf.load(tmp_path / "run", method=Mine, model=nn.Linear(5, 3))
    model = fedetf.load(tmp_path / "run", method=Mine, model=encoder)
    x = torch.from_numpy(data[0][0]).float()
    seen = result.job.dataset.note.module()(x.double())  # a model of a run takes what its encoder saw
    torch.testing.assert_close(answer(model, x), result.model()(seen).softmax(1).detach())
    assert model.classes == ["a", "b"]
    (tmp_path / "x.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"takes numbers of shape \(5,\), not images"):
        fedetf.models.load.read_images([tmp_path / "x.png"], model.inputs)


# --- export -----------------------------------------------------------------------------------------------------------


def onnx_answer(path: Path, x: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0])


def assert_same_answers(got: Tensor, wanted: Tensor) -> None:
    """Within 1e-4, of probabilities and, which says more, of their logarithms."""
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(got.log(), wanted.log(), atol=1e-4, rtol=0)


HEADS = {
    "linear": ("fedavg", None),
    "prototype": ("fednh", None),
    "ETF": ("fedetf", None),
    "ETF, personal": ("fedetf", 1),
    "FedRoD, generic": ("fedrod", None),
    "FedRoD, both": ("fedrod", 1),
    "FedProto": ("fedproto", 0),
    "FedRep": ("fedrep", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_head_in_every_format(head: str, runs: dict[str, fedetf.Result], tmp_path: Path) -> None:
    method, client = HEADS[head]
    folder, x = runs[method].folder, runs[method].job.dataset.test.x[:7].contiguous()
    wanted = answer(fedetf.load(folder, client), x)
    for ending in (".safetensors", ".pt2", ".onnx"):
        export_model(folder, tmp_path / f"model{ending}", client)
    assert torch.equal(answer(fedetf.load(tmp_path / "model.safetensors"), x), wanted)
    program = torch.export.load(tmp_path / "model.pt2").module()
    for some, batch in ((wanted, x), (wanted[:1], x[:1])):  # batches of any size
        assert_same_answers(answer(program, batch), some)
        assert_same_answers(onnx_answer(tmp_path / "model.onnx", batch), some)


def untrained(name: str) -> Model:
    """A model of colour images, as a run would begin with it."""
    settings = resolve(None, {"model.name": name, "data.normalize": "imagenet"})
    method, inputs = make_method(settings.method.model_dump()), Inputs((3, 8, 8), torch.uint8)
    net = build_net(settings, method, inputs.example(), 10, None)
    prepare = preparation(settings, net.encoder, inputs.shape, torch.device("cpu"))
    return Model(net, method, False, prepare, inputs, [str(c) for c in range(10)])


COLOURS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8))


@pytest.mark.parametrize("name", models_for("image"))
def test_every_encoder_as_weights(name: str, tmp_path: Path) -> None:
    model, again = untrained(name), untrained(name)
    wanted = answer(model, COLOURS)
    export._safetensors(model, {}, tmp_path / "model.safetensors")
    for tensor in again.net.state_dict().values():
        tensor.zero_()
    again.net.load_state_dict(fedetf.core.state.load_state(tmp_path / "model.safetensors"))
    assert torch.equal(answer(again, COLOURS), wanted)


# Deeper and wider nets are of the same blocks, and to translate each of many layers takes long.
OF_THE_SAME_BLOCKS = {"resnet18": "resnet20", "resnet32": "resnet20", "resnet56": "resnet20", "wrn56_4": "resnet20"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in models_for("image") if name not in OF_THE_SAME_BLOCKS])
def test_every_encoder_in_onnx(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colour images; the program that ONNX is made from is the one that .pt2 holds, and gives the same answers too."""
    few_layers = replace(encoders._MODELS["densenet121"], build=partial(DenseNet, layers=(2, 2, 2, 2)))
    monkeypatch.setitem(encoders._MODELS, "densenet121", few_layers)
    model, programs, traced = untrained(name), [], export._traced
    monkeypatch.setattr(export, "_traced", lambda model: programs.append(traced(model)) or programs[0])
    export._onnx(model, {}, tmp_path / "model.onnx")
    wanted = answer(model, COLOURS)
    assert_same_answers(onnx_answer(tmp_path / "model.onnx", COLOURS), wanted)
    assert_same_answers(onnx_answer(tmp_path / "model.onnx", COLOURS[:1]), wanted[:1])
    assert_same_answers(answer(programs[0].module(), COLOURS), wanted)


@pytest.mark.parametrize(("name", "other"), OF_THE_SAME_BLOCKS.items())
def test_encoders_of_the_same_blocks(name: str, other: str) -> None:
    def kinds(name: str) -> set[type[nn.Module]]:
        return {type(module) for module in untrained(name).net.encoder.modules()}

    assert kinds(name) == kinds(other)


def test_the_model_card(runs: dict[str, fedetf.Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "m.safetensors"
    assert main(["export", str(runs["fedrod"].folder), "--client", "1", "--to", str(target)]) == 0
    assert f"model card: {target}.md" in capsys.readouterr().out.replace("\n", " ")
    card = Path(f"{target}.md").read_text()
    accuracy = runs["fedrod"].personal_per_client[1]
    for text in ("fedrod on digits", "client 1", f"{accuracy:.4f}", '"m.safetensors"', "[n, 1, 8, 8]", "gamma = 1.0"):
        assert text in card
    code = card.split("```python\n")[1].split("```")[0].replace("m.safetensors", str(target))
    space = {"inputs": runs["fedrod"].job.dataset.test.x[:3]}
    exec(code, space)
    assert space["probabilities"].shape == (3, 10)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["runs", "--to", "model.h5"], "unknown kind of file '.h5'"),
        (["nowhere", "--to", "m.onnx"], "there is no folder nowhere; check the path"),
        (["nowhere"], "the following arguments are required: --to"),
    ],
)
def test_export_refuses(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *flags]) == 2
    assert message in capsys.readouterr().err


def test_export_does_not_overwrite(runs: dict[str, fedetf.Result], tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_text("mine")
    with pytest.raises(UserError, match="exists already and is not overwritten"):
        export_model(runs["fedavg"].folder, tmp_path / "m.pt2")


def test_export_takes_an_exported_file_too_and_leaves_nothing_half_done(
    runs: dict[str, fedetf.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = export_model(runs["fedavg"].folder, tmp_path / "m.safetensors")
    again = export_model(tmp_path / "m.safetensors", tmp_path / "new" / "m.safetensors")
    assert again.read_text() == first.read_text()
    assert again.with_suffix("").read_bytes() == first.with_suffix("").read_bytes()

    def full(model: Model, about: export.About, target: Path) -> None:
        target.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setitem(export.WRITERS, ".pt2", full)
    with pytest.raises(OSError, match="no space"):
        export_model(runs["fedavg"].folder, tmp_path / "m.pt2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "m.safetensors.md", "new"]


def test_onnx_is_an_extra(runs: dict[str, fedetf.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedetf.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"install them with: pip install 'fedetf\[export\]'"):
        export_model(runs["fedavg"].folder, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx.md").exists()


# --- predict ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(runs: dict[str, fedetf.Result], tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, runs["fedavg"].job.dataset.test.x, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    return [str(path) for path in paths]


@pytest.mark.parametrize("client", [None, 1])
def test_predict_in_three_formats(
    client: int | None, runs: dict[str, fedetf.Result], pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(runs["fedavg"].folder)
    flags = [] if client is None else ["--client", str(client)]
    wanted = answer(fedetf.load(folder, client), runs["fedavg"].job.dataset.test.x[:3]).topk(2)
    assert main(["predict", folder, *flags, *pictures, "--format", "json", "--top", "2"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [a["image"] for a in answers] == pictures
    classes = [[int(c["class"]) for c in a["classes"]] for a in answers]
    assert classes == wanted.indices.tolist()
    probabilities = [[c["probability"] for c in a["classes"]] for a in answers]
    np.testing.assert_allclose(probabilities, wanted.values, atol=1e-6)
    assert main(["predict", folder, *flags, *pictures, "--format", "csv", "--top", "2"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["image", "rank", "class", "probability"]
    assert [[row[0], int(row[2])] for row in rows[1:]] == [
        [p, c] for p, cs in zip(pictures, classes, strict=True) for c in cs
    ]
    assert main(["predict", folder, *flags, *pictures]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["image", "class", "probability"]


def test_a_folder_stands_for_the_images_in_it(
    runs: dict[str, fedetf.Result], pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "more").mkdir()
    below = shutil.copy(pictures[0], tmp_path / "more" / "z.PNG")
    assert main(["predict", str(runs["fedavg"].folder), str(tmp_path), "--format", "json"]) == 0
    assert [a["image"] for a in json.loads(capsys.readouterr().out)] == [*pictures, str(below)]


def test_images_of_another_size_are_resized(
    runs: dict[str, fedetf.Result], pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Image.open(pictures[0]).resize((16, 16), Image.Resampling.NEAREST).save(pictures[1])
    assert main(["predict", str(runs["fedavg"].folder), *pictures[:2], "--format", "json"]) == 0
    small, large = (a["classes"][0] for a in json.loads(capsys.readouterr().out))
    assert small["class"] == large["class"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "{text}"], "not an image that Pillow knows"),
        (["{run}", "{colour}"], "is in colour, but the model was trained on grey images"),
        (["{run}", "nowhere.png"], "no file 'nowhere.png'"),
        (["{run}", "{empty}"], "there is no image in"),
        (["{run}", "--client", "9", "{text}"], "has no client 9; clients are 0 to 1"),
        (["{run}", "--top", "0", "{text}"], "--top is at least 1"),
        (["{tmp}", "{text}"], "is not a run folder"),
        (["{proto}", "{text}"], "fedproto has no global model"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    runs: dict[str, fedetf.Result],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.png").write_text("no image")
    Image.new("RGB", (8, 8), "red").save(tmp_path / "colour.png")
    places = {"run": runs["fedavg"].folder, "proto": runs["fedproto"].folder, "tmp": tmp_path}
    (tmp_path / "empty").mkdir()
    places |= {"empty": tmp_path / "empty", "text": tmp_path / "text.png", "colour": tmp_path / "colour.png"}
    assert main(["predict", *(text.format(**places) for text in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_grey_images_become_colour_for_a_colour_model(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 77).save(tmp_path / "grey.png")
    x = fedetf.models.load.read_images([tmp_path / "grey.png"], Inputs((3, 8, 8), torch.uint8))
    assert torch.equal(x, torch.full((1, 3, 8, 8), 77, dtype=torch.uint8))


# --- frozen encoders --------------------------------------------------------------------------------------------------


def frozen_encoder() -> nn.Module:
    torch.manual_seed(3)
    return build_encoder("resnet20", (1, 8, 8)).requires_grad_(False)


@pytest.mark.parametrize("method", ["fedavg", "fedetf", "fedrep", "ccvr"])
def test_features_computed_once_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with and without: accuracies, losses, the head, up to rounding."""
    encoder = build_encoder("cnn", (1, 8, 8)).requires_grad_(False)
    options = {**QUICK, "clients": 3, "rounds": 2, "model": encoder, "method": method}
    once = fedetf.run(**options, settings=SMALL)
    monkeypatch.setattr(api, "with_features", lambda job, tick: job)
    each_time = fedetf.run(**options, settings=SMALL)
    assert once.general == each_time.general
    assert once.personal_per_client == each_time.personal_per_client
    assert [r.loss for r in once.rounds] == pytest.approx([r.loss for r in each_time.rounds], rel=1e-5)
    for name, tensor in once.outcome.model.items():
        torch.testing.assert_close(tensor, each_time.outcome.model[name], rtol=1e-4, atol=1e-5)
    assert not any(name.startswith("encoder.") for name in once.outcome.model)
    assert once.outcome.bytes_up < each_time.outcome.bytes_up  # it does not travel either


def test_features_computed_once_cannot_be_augmented() -> None:
    with pytest.raises(UserError, match=r"data\.augment does nothing for a frozen encoder"):
        fedetf.run(clients=3, rounds=1, model=frozen_encoder(), settings={"data.augment": "crop_flip"})


class Recording(nn.Module):
    """A frozen encoder that records every image that goes through it, as do its copies."""

    seen: ClassVar[list[bytes]] = []

    def __init__(self) -> None:
        super().__init__()
        self.inner = frozen_encoder()

    def forward(self, x: Tensor) -> Tensor:
        Recording.seen.extend(image.numpy().tobytes() for image in x)
        return self.inner(x)


def test_every_image_meets_a_frozen_encoder_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "seen", [])
    options = {**QUICK, "rounds": 3, "method": "fedavg", "model": Recording()}
    result = fedetf.run(**options, settings={**SMALL, "data.normalize": "none"})
    images = len(result.job.dataset.train) + len(result.job.dataset.test)
    times = Counter(Counter(Recording.seen).values())
    assert times == {1: images - 2, 2: 2}  # two images went before, to find how long its features are


FACTORY = """
import torch
from torch import nn
from fedetf.nn.encoders import build_encoder

def pretrained():
    encoder = build_encoder("cnn", (1, 8, 8))
    encoder.preprocess = Scale()
    return encoder.requires_grad_(False)

class Scale(nn.Module):
    def forward(self, x):
        return x / 16.0

def trained():
    return pretrained().requires_grad_(True)

def wrong():
    return 3
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["their_encoders:pretrained", "their_encoders.py:trained"])
def test_a_factory_from_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run, resume, load, export and predict know where the encoder comes from; all engines give the same bits."""
    monkeypatch.chdir(tmp_path)
    Path("their_encoders.py").write_text(FACTORY)
    small = [
        "--clients",
        "3",
        "--rounds",
        "2",
        "--epochs",
        "1",
        "--set",
        "data.limit=150",
        "--set",
        "personal.rounds=1",
    ]
    for out, engine in (("a", ["--engine", "serial"]), ("b", ["--workers", "2"])):
        assert main(["run", *small, "--model", name, "--out", out, *engine]) == 0
    for file in ("model.safetensors", "personal/2.safetensors"):
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes()
    wanted = Path("a/model.safetensors").read_bytes()
    for file in ("result.json", "model.safetensors", "checkpoints/round-00002.safetensors"):
        Path("a", file).unlink()
    assert main(["resume", "a", "--trust-code"]) == 0
    assert Path("a/model.safetensors").read_bytes() == wanted
    result = fedetf.resume("a", trust_code=True)
    data = result.job.dataset
    assert is_frozen(result.job.encoder) == name.endswith("pretrained")
    right = answer(fedetf.load("a", trust_code=True), data.test.x).argmax(1) == data.test.y
    assert right.float().mean().item() == pytest.approx(result.general)
    assert main(["export", "a", "--trust-code", "--client", "1", "--to", "m.safetensors"]) == 0
    x = data.test.x[:5]
    assert torch.equal(
        answer(fedetf.load("m.safetensors", trust_code=True), x), answer(fedetf.load("a", 1, trust_code=True), x)
    )
    Image.fromarray(data.test.x[0, 0].numpy()).save("x.png")
    assert main(["predict", "a", "--trust-code", "x.png"]) == 0
    capsys.readouterr()
    assert (
        main(
            [
                "compare",
                *small[2:],
                "--clients",
                "2",
                "--model",
                name,
                "--methods",
                "fedavg",
                "--seeds",
                "7",
                "--no-references",
            ]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuchmodule:make", "nosuchmodule cannot be imported: ModuleNotFoundError"),
        ("their.py:wrong", "their.py:wrong gives int, not a torch.nn.Module"),
        ("their.py:nothing", "there is no 'nothing' in their.py"),
        ("fedetf:__version__", "is not a function that makes an encoder"),
        ("no module:x", "is neither a file FILE.py nor a module"),
    ],
)
def test_factories_that_are_none(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("their.py").write_text(FACTORY)
    assert main(["run", "--model", name]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_an_encoder_prepares_its_own_inputs(tmp_path: Path) -> None:
    """``preprocess`` sees what is stored, in training, in measuring, and in a loaded model."""
    seen = set()

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 8)

        def preprocess(self, x: Tensor) -> Tensor:
            seen.add(x.dtype)
            return x.flatten(1) / 255

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1:] == (64,)
            return self.layer(x)

    encoder = Own()
    result = fedetf.run(model=encoder, method="fedavg", out=tmp_path / "run", settings=SMALL, **QUICK)
    assert seen == {torch.uint8}
    model = fedetf.load(tmp_path / "run", model=encoder)
    test = result.job.dataset.test
    assert (answer(model, test.x).argmax(1) == test.y).float().mean().item() == pytest.approx(result.general)
