"""``fedetf predict`` and ``fedetf export``."""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedetf.cli.flags import add_command, add_trust, folder, output
from fedetf.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from fedetf.models.load import Model

Answer = dict[str, Any]  # {"name": path or row, "classes": [{"class": name, "probability": p}, ...]}


def add_to(commands: Any) -> None:
    """Their flags."""
    predict = add_command(
        commands,
        "predict",
        predict_command,
        "what a trained model says of images or rows: classes with probabilities",
        "fedetf predict runs/first --client 2 --top 3 --format csv photo.png",
    )
    _add_model(predict)
    predict.add_argument(
        "inputs",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="files of images, or folders of them; for other kinds a CSV or Parquet file with raw rows",
    )
    predict.add_argument("--format", choices=sorted(FORMATS), help="default: csv for the rows of a file, else table")
    predict.add_argument("--top", metavar="N", type=int, default=1, help="number of classes to show (default: 1)")
    export = add_command(
        commands,
        "export",
        export_command,
        "write a trained model, with its preprocessing and a model card, to a file for use elsewhere",
        "fedetf export runs/first --to model.onnx",
    )
    _add_model(export)
    export.add_argument(
        "--to", metavar="FILE", type=Path, required=True, help="FILE.safetensors, FILE.onnx or FILE.pt2 (torch.export)"
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=folder,
        help="the folder of a run that is done, or a .safetensors file that was exported",
    )
    parser.add_argument(
        "--client",
        metavar="K",
        help="a client's personal model, by its number or its site's name, not the global one",
    )
    add_trust(parser)


def predict_command(options: argparse.Namespace) -> None:
    """``fedetf predict``."""
    if options.top < 1:
        raise UserError("--top is at least 1")
    from fedetf.models.load import load

    model = load(options.folder, options.client, trust_code=options.trust_code)
    top = min(options.top, len(model.classes))
    batches = _images(model, options.inputs) if model.inputs.note is None else _tables(model, options.inputs)
    answers: list[Answer] = []
    for names, probabilities in batches:
        best = probabilities.topk(top)
        for name, values, classes in zip(names, best.values.tolist(), best.indices.tolist(), strict=True):
            named = zip(classes, values, strict=True)
            answers.append({"name": name, "classes": [_named(model.classes[c], p) for c, p in named]})
    what = "image" if model.inputs.note is None else "row" if answers[0]["name"].isdigit() else "input"
    chosen = options.format or ("csv" if what == "row" else "table")
    FORMATS[chosen](answers, what)


def _images(model: "Model", paths: Sequence[Path]) -> Iterator[tuple[list[str], "Tensor"]]:
    """Files of images and their probabilities, some at a time."""
    import torch

    from fedetf.models.load import image_files, read_images

    images = image_files(paths)
    step = model.inputs.at_once
    for start in range(0, len(images), step):
        some = images[start : start + step]
        with torch.no_grad():
            yield [str(path) for path in some], model(read_images(some, model.inputs))


def _tables(model: "Model", paths: Sequence[Path]) -> Iterator[tuple[list[str], "Tensor"]]:
    """The rows of tables and their probabilities."""
    from fedetf.models.load import read_tables

    assert model.inputs.note is not None
    names, frame = read_tables(paths, model.inputs.note)
    for column, count in model.inputs.note.strange(model.inputs.note.read(frame).x).items():
        rows = f"{count} row{'s' if count > 1 else ''}"
        print(f"the column {column!r} holds a category that training has not seen, in {rows}", file=sys.stderr)
    yield names, model.rows(frame)


def _named(name: str, probability: float) -> dict[str, Any]:
    return {"class": name, "probability": round(probability, 6)}


def _rows(answers: Sequence[Answer]) -> list[list[Any]]:
    """One row for each image and class, the likeliest first."""
    return [
        [answer["name"], rank, best["class"], best["probability"]]
        for answer in answers
        for rank, best in enumerate(answer["classes"], start=1)
    ]


def _as_table(answers: Sequence[Answer], what: str) -> None:
    from fedetf.report.tables import percent, plain_table

    shown = [[image, name, percent(probability)] for image, _, name, probability in _rows(answers)]
    output().print(plain_table([what, "class", "probability"], shown, right=["probability"]))


def _as_csv(answers: Sequence[Answer], what: str) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([what, "rank", "class", "probability"])
    writer.writerows(_rows(answers))


def _as_json(answers: Sequence[Answer], what: str) -> None:
    named = [{what: answer["name"], "classes": answer["classes"]} for answer in answers]
    print(json.dumps(named, indent=2, ensure_ascii=False))


FORMATS: dict[str, Callable[[Sequence[Answer], str], None]] = {"table": _as_table, "csv": _as_csv, "json": _as_json}


def export_command(options: argparse.Namespace) -> None:
    """``fedetf export``."""
    from fedetf.models.export import export

    card = export(options.folder, options.to, options.client, trust_code=options.trust_code)
    output().print(f"model: {options.to}\nmodel card: {card}", soft_wrap=True)
