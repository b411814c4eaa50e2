"""Models for use elsewhere: weights as safetensors, ONNX, or a ``torch.export`` program, each with a model card.

The graphs of the last two hold the preprocessing: they take what :class:`fedetf.models.load.Model` takes.
"""

import io
import json
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fedetf.core.state import save_state
from fedetf.data.kinds import TableNote
from fedetf.data.kinds.subwords import Subwords
from fedetf.errors import UserError, need, unknown
from fedetf.files import make_folder, move, naming, write_whole
from fedetf.methods import Method
from fedetf.models.card import model_card
from fedetf.models.columns import with_named_columns
from fedetf.models.load import Model, SavedModel, load_saved

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
    _check_new(target)
    return write_export(*load_saved(Path(folder), client, method, model, trust_code), target)


def _check_new(target: Path) -> Path:
    """The path of the card, if the file is of a kind that can be written, and both are new."""
    if target.suffix not in WRITERS:
        raise unknown("kind of file", target.suffix or target.name, WRITERS)
    card = target.with_name(target.name + ".md")
    for path in (target, card):
        if path.exists():
            raise UserError(f"{path} exists already and is not overwritten; give another --to, or remove it")
    return card


def write_export(file: SavedModel, model_ready: Model, target: Path) -> Path:
    """Write a model to a new file, and its card, whose path is returned."""
    card = _check_new(target)
    make_folder(target.parent)
    origin = file.about.model_dump(exclude={"settings", "client", "accuracy"}, exclude_defaults=True)
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
    need("export", "ONNX", "onnx", "onnxscript")
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
    if not isinstance(model.inputs.note, TableNote):
        program.save(str(target))
        return
    import onnx

    named = with_named_columns(program.model_proto, model.inputs.note, INPUT)
    onnx.checker.check_model(named)
    write_whole(target, named.SerializeToString())


class OnIds(nn.Module):
    """A model of texts less its tokenizer, which no graph can hold: ids ``[n, tokens]`` in, probabilities out."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Probabilities ``[n, classes]``."""
        return self.model.logits_of_prepared(ids).softmax(dim=1)


def _traced(model: Model) -> torch.export.ExportedProgram:
    traced: nn.Module = model
    example = model.inputs.example(2)
    if isinstance(model.prepare, Subwords):
        traced, example = OnIds(model), model.prepare(example)
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own internals
        return torch.export.export(traced, (example,), dynamic_shapes=({0: batch},))


WRITERS: dict[str, Callable[[Model, About, Path], None]] = {
    ".safetensors": _safetensors,
    ".onnx": _onnx,
    ".pt2": _program,
}
