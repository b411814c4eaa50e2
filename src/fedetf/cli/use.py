"""``fedetf predict`` and ``fedetf export``."""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedetf.cli.flags import add_command, add_trust, folder, output
from fedetf.errors import UserError

BATCH = 256  # images in memory at a time

Answer = dict[str, Any]  # {"image": path, "classes": [{"class": name, "probability": p}, ...]}


def add_to(commands: Any) -> None:
    """Their flags."""
    predict = add_command(
        commands,
        "predict",
        predict_command,
        "what a trained model sees in images: classes with probabilities",
        "fedetf predict runs/first --client 2 --top 3 --format csv photo.png",
    )
    _add_model(predict)
    predict.add_argument("images", metavar="IMAGE", type=Path, nargs="+", help="files of images, or folders of them")
    predict.add_argument("--format", choices=sorted(FORMATS), default="table", help="default: table")
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
    import torch

    from fedetf.models.load import image_files, load, read_images

    model = load(options.folder, options.client, trust_code=options.trust_code)
    top = min(options.top, len(model.classes))
    answers: list[Answer] = []
    images = image_files(options.images)
    for start in range(0, len(images), BATCH):
        paths = images[start : start + BATCH]
        with torch.no_grad():
            best = model(read_images(paths, model.inputs)).topk(top)
        for path, probabilities, classes in zip(paths, best.values.tolist(), best.indices.tolist(), strict=True):
            named = zip(classes, probabilities, strict=True)
            answers.append({"image": str(path), "classes": [_named(model.classes[c], p) for c, p in named]})
    FORMATS[options.format](answers)


def _named(name: str, probability: float) -> dict[str, Any]:
    return {"class": name, "probability": round(probability, 6)}


def _rows(answers: Sequence[Answer]) -> list[list[Any]]:
    """One row for each image and class, the likeliest first."""
    return [
        [answer["image"], rank, best["class"], best["probability"]]
        for answer in answers
        for rank, best in enumerate(answer["classes"], start=1)
    ]


def _as_table(answers: Sequence[Answer]) -> None:
    from fedetf.report.tables import percent, plain_table

    shown = [[image, name, percent(probability)] for image, _, name, probability in _rows(answers)]
    output().print(plain_table(["image", "class", "probability"], shown, right=["probability"]))


def _as_csv(answers: Sequence[Answer]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "probability"])
    writer.writerows(_rows(answers))


def _as_json(answers: Sequence[Answer]) -> None:
    print(json.dumps(answers, indent=2, ensure_ascii=False))


FORMATS: dict[str, Callable[[Sequence[Answer]], None]] = {"table": _as_table, "csv": _as_csv, "json": _as_json}


def export_command(options: argparse.Namespace) -> None:
    """``fedetf export``."""
    from fedetf.models.export import export

    card = export(options.folder, options.to, options.client, trust_code=options.trust_code)
    output().print(f"model: {options.to}\nmodel card: {card}", soft_wrap=True)
