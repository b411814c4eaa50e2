"""How steps and their results travel as Flower messages. What is not written here does not leave a site.

What arrives is checked at both ends; a RunError says in one line what is wrong with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, MetricRecordValues, RecordDict

from fedetf.core.server import Upload
from fedetf.core.state import State
from fedetf.engines.steps import Personal, Result, Scored, Step, Trained
from fedetf.errors import RunError, printable
from fedetf.files import parse_json
from fedetf.flower.arrays import to_arrays, to_state
from fedetf.metrics import Accuracy, Values

Metrics = dict[str, MetricRecordValues]
R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)

TYPES = {"train": "train"} | {kind: f"query.{kind}" for kind in ("summarise", "personalise", "validate", "test")}
MOST_EPOCHS = 1e6  # of a personal stage
ACCURACY = Accuracy.name
MEASURE = "measure."  # before the names of what is measured on a site's test split


@dataclass(frozen=True)
class Order:
    """What the server asks of a site, besides the model to start from."""

    run: str  # which run it is; the same after a restart of the server
    client: int
    round: int
    accepted: int  # the round of the client's last update that the server folded in; 0: none


def to_records(order: Order, received: ArrayRecord, inputs: str | None = None) -> RecordDict:
    """A request; ``inputs`` says how they are prepared, where the sites were asked."""
    records = RecordDict({"order": ConfigRecord(dict(vars(order))), "model": received})
    if inputs is not None:
        records["inputs"] = ConfigRecord({"json": inputs})
    return records


def inputs_of(message: Message) -> Any:
    """How inputs are prepared, as the request says; None if it does not."""
    if "inputs" not in message.content:
        return None
    text = _record(message.content, "inputs", ConfigRecord).get("json")
    if not isinstance(text, str):
        raise RunError("it holds no inputs")
    return parse_json(text, "the server's note on inputs")


def from_records(message: Message) -> tuple[Step, Order, State]:
    """What a site is to do, and the model that it received."""
    kinds = {name: kind for kind, name in TYPES.items()}
    kind = kinds.get(message.metadata.message_type)
    if kind is None or not message.has_content():
        raise RunError(f"not a step of fedetf: {message.metadata.message_type}")
    order = _order(_record(message.content, "order", ConfigRecord))
    step = Step(kind, cost=0, client=order.client, round=order.round)  # type: ignore[arg-type]  # a key of TYPES
    return step, order, to_state(_record(message.content, "model", ArrayRecord))


def pack_answer(result: Result) -> RecordDict:
    """All that leaves a site."""
    if isinstance(result, Trained):
        upload = result.upload
        metrics: Metrics = {"samples": upload.samples, "loss": upload.loss, "images": upload.images}
        if upload.distance is not None:
            metrics["distance"] = upload.distance
        return RecordDict({"upload": to_arrays(upload.state), "metrics": MetricRecord(metrics)})
    if isinstance(result, Personal):
        personal = {"accuracy": result.accuracy, "curve": result.curve or None, "epochs": result.epochs}
        return _numbers({**personal, "validation": result.validation}, result.measures)
    if isinstance(result, Scored):
        return _numbers({}, result.values)
    assert isinstance(result, dict)
    return RecordDict({"summary": to_arrays(result)})


def _numbers(metrics: Mapping[str, Any], measures: Values) -> RecordDict:
    """What a site tells in numbers; what it does not have is left out."""
    measured = {f"{MEASURE}{name}": value for name, value in measures.items()}
    known = {name: value for name, value in {**metrics, **measured}.items() if value is not None}
    return RecordDict({"metrics": MetricRecord(known)})


def unpack_answer(step: Step, content: RecordDict, device: torch.device, most: int) -> Result:
    """What a site sent, if its arrays have at most ``most`` bytes."""
    if step.kind in ("summarise", "validate"):
        return _tensors(content, "summary", device, most)
    metrics = _record(content, "metrics", MetricRecord)
    if step.kind == "personalise":
        names = ("accuracy", "validation")
        accuracy, validation = (_number(metrics, name, 1) if name in metrics else None for name in names)
        given = metrics.get("curve", [])
        if not isinstance(given, list):
            raise RunError("its curve is not a list")
        curve = [_checked(value, "curve", 1) for value in given]
        epochs = _number(metrics, "epochs", MOST_EPOCHS)
        return Personal(step.client, accuracy, curve, epochs, {}, _measures(metrics), validation)
    if step.kind == "test":
        values = _measures(metrics)
        return Scored(step.client, {**values, ACCURACY: _checked(values[ACCURACY], ACCURACY, 1)} if values else {})
    samples, images = (_count(metrics, name) for name in ("samples", "images"))
    loss = metrics.get("loss")
    if not isinstance(loss, float):
        raise RunError("it sends no loss")
    distance = _number(metrics, "distance", math.inf) if "distance" in metrics else None
    sent = _tensors(content, "upload", device, most)
    return Trained(Upload(step.client, samples, sent, loss, images, distance), private={})


def _order(record: ConfigRecord) -> Order:
    given = dict(record)
    if given.keys() != {field.name for field in fields(Order)} or not all(
        type(given[field.name]) is field.type for field in fields(Order)
    ):
        raise RunError("its order is not one of this version of fedetf")
    return Order(**given)  # type: ignore[arg-type]  # just checked


def _tensors(content: RecordDict, name: str, device: torch.device, most: int) -> State:
    arrays = _record(content, name, ArrayRecord)
    size = arrays.count_bytes()
    if size > most:
        raise RunError(f"its {name} has {size} bytes, which is more than the method sends")
    return to_state(arrays, device)


def _record(content: RecordDict, name: str, kind: type[R]) -> R:
    record = content.get(name)
    if not isinstance(record, kind):
        raise RunError(f"it holds no {name}")
    return record


def _measures(metrics: MetricRecord) -> Values:
    values: Values = {}
    for name, value in metrics.items():
        if name.startswith(MEASURE):
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise RunError(f"its {printable(name)} is not a number")
            values[name.removeprefix(MEASURE)] = float(value)
    return values


def _number(metrics: MetricRecord, name: str, most: float) -> float:
    return _checked(metrics.get(name), name, most)


def _checked(value: Any, name: str, most: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= most:  # NaN is neither
        raise RunError(f"its {name} is not a number from 0 to {most:g}")
    return float(value)


def _count(metrics: MetricRecord, name: str) -> int:
    value = metrics.get(name)
    if type(value) is not int or value < 0:
        raise RunError(f"{name} is not a count")
    return value
