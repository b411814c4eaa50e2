"""Models for use elsewhere: weights as safetensors, ONNX, or a ``torch.export`` program, each with a model card.

The graphs of the last two hold the preprocessing: they take what :class:`fedetf.models.load.Model` takes.
"""

import io
import json
import logging
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomli_w
import torch
from torch import nn

from fedetf.core.state import save_state
from fedetf.errors import UserError, unknown
from fedetf.files import make_folder, move, naming, write_whole
from fedetf.methods import Method
from fedetf.models.load import Model, SavedModel, load_saved
from fedetf.redact import bare

INPUT, OUTPUT = "inputs", "probabilities"

About = dict[str, Any]  # what a file says of itself: classes, inputs, settings


def export(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    client: int | str | None = None,
    *,
    method: type[Method] | None = None,
    model: nn.Module | None = None,
    trust_code: bool = False,
) -> Path:
    """Write a model of a run folder to a file, and a model card beside it.

    Parameters
    ----------
    folder, client, method, model, trust_code:
        As for :func:`fedetf.load`; ``folder`` may be a ``.safetensors`` file as well.
    to:
        A new file. Its ending says what it becomes: ``.safetensors`` (weights, for :func:`fedetf.load`), ``.onnx``
        (needs the extra ``fedetf[export]``) or ``.pt2`` (for ``torch.export.load``).

    Returns
    -------
    The model card, ``to`` with ``.md`` at its end.

    Examples
    --------
    >>> import fedetf
    >>> from fedetf.models.export import export
    >>> tmp = getfixture("tmp_path")
    >>> result = fedetf.run(method="fedavg", clients=3, rounds=1, epochs=1, out=tmp / "run")
    >>> export(tmp / "run", tmp / "model.safetensors").name
    'model.safetensors.md'
    >>> fedetf.load(tmp / "model.safetensors").classes[:3]
    ['0', '1', '2']
    """
    target = Path(to)
    if target.suffix not in WRITERS:
        raise unknown("kind of file", target.suffix or target.name, WRITERS)
    card = target.with_name(target.name + ".md")
    for path in (target, card):
        if path.exists():
            raise UserError(f"{path} exists already and is not overwritten; give another --to, or remove it")
    file, model_ready = load_saved(Path(folder), client, method, model, trust_code)
    make_folder(target.parent)
    origin = file.about.model_dump(include={"method", "model", "dataset", "shape", "dtype", "classes"})
    about = {**origin, "settings": file.settings.portable(), "client": file.client, "accuracy": file.accuracy}
    with TemporaryDirectory(dir=target.parent, prefix=".export-") as temporary, naming(target):  # whole or not at all
        part = Path(temporary) / target.name
        write_whole(Path(temporary) / card.name, model_card(model_ready, file, target).encode())
        WRITERS[target.suffix](model_ready, about, part)
        # The model's own file last: of a large ONNX model there is a file of weights as well.
        for written in sorted(Path(temporary).iterdir(), key=lambda path: path == part):
            move(written, target.parent / written.name)
    return card


def _safetensors(model: Model, about: About, target: Path) -> None:
    """The weights, encoder included, with all that :func:`fedetf.load` needs to know."""
    save_state(model.net.state_dict(), target, about)


def _program(model: Model, about: About, target: Path) -> None:
    """A ``torch.export`` program for batches of any size."""
    content = io.BytesIO()  # PyTorch's own way to a file ends the whole process when the disk is full
    torch.export.save(_traced(model), content, extra_files={"fedetf.json": json.dumps(about)})
    write_whole(target, content.getvalue())


def _onnx(model: Model, about: About, target: Path) -> None:
    """An ONNX graph for batches of any size."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {' and '.join(missing)}; install them with: pip install 'fedetf[export]'")
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)  # it tells what it does step by step
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations between the libraries' own parts
            program = torch.onnx.export(
                _traced(model), input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    program.model.metadata_props["fedetf"] = json.dumps(about)
    program.save(str(target))


def _traced(model: Model) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own internals
        return torch.export.export(model, (model.inputs.example(2),), dynamic_shapes=({0: batch},))


WRITERS: dict[str, Callable[[Model, About, Path], None]] = {
    ".safetensors": _safetensors,
    ".onnx": _onnx,
    ".pt2": _program,
}

HOW_TO_LOAD = {
    ".safetensors": """import fedetf

model = fedetf.load("{name}")
probabilities = model(inputs)  # a torch tensor, as below""",
    ".onnx": """import onnxruntime

session = onnxruntime.InferenceSession("{name}")
(probabilities,) = session.run(None, {{"inputs": inputs}})  # a NumPy array, as below""",
    ".pt2": """import torch

model = torch.export.load("{name}").module()
probabilities = model(inputs)  # a torch tensor, as below""",
}


def model_card(model: Model, file: SavedModel, target: Path) -> str:
    """What a reader of the file must know, as Markdown: origin, accuracy, inputs, classes, how to load it."""
    settings, shape = file.settings, ", ".join(map(str, model.inputs.shape))
    method, encoder, portable = bare(settings.method.name), bare(settings.model.name), settings.portable()
    portable["method"]["name"], portable["model"]["name"] = method, encoder
    held = f"{settings.data.clients} clients ({settings.data.describe()})"
    whose = "the global model" if file.client is None else f"the personal model of client {file.client}"
    kind = "uint8 images, pixels 0 to 255, not normalised" if model.inputs.are_images else "float32 numbers"
    of = "general: final global model on the test set"
    if file.client is not None:
        of = "personal: this model on the client's own test split"
    accuracy = "-" if file.accuracy is None else f"{file.accuracy:.4f}"
    return f"""# {method} on {bare(settings.data.name)}: {whose}

Made by federated learning with fedetf: {held}, {settings.train.rounds} rounds, encoder `{encoder}`, seed
{settings.seed}.

| accuracy | fraction |
|---|---|
| {of} | {accuracy} |

## Load it

```python
{HOW_TO_LOAD[target.suffix].format(name=target.name)}
```

- inputs: `[n, {shape}]`, {kind}. The preprocessing is part of the model.
- outputs: probabilities `[n, {len(model.classes)}]`, in the order of the classes.

## Classes

{", ".join(f"{number}: {name}" for number, name in enumerate(model.classes))}

## Settings

```toml
{tomli_w.dumps(portable).strip()}
```
"""
