"""How steps and their results travel as Flower messages. What is not written here does not leave a site."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, MetricRecordValues, RecordDict

from fedetf.engines.steps import Personal, Result, Step, Trained
from fedetf.methods import Rows, Upload
from fedetf.state import State

Metrics = dict[str, MetricRecordValues]

TYPES = {"train": "train", "summarise": "query.summarise", "personalise": "query.personalise"}


@dataclass(frozen=True)
class Order:
    """What the server asks of a site, besides the model to start from."""

    run: str  # which run it is; the same after a restart of the server
    client: int
    round: int
    accepted: int  # the round of the client's last update that the server folded in; 0: none


def to_records(order: Order, received: ArrayRecord) -> RecordDict:
    """A request."""
    return RecordDict({"order": ConfigRecord(dict(vars(order))), "model": received})


def from_records(message: Message) -> tuple[Step, Order, State]:
    """What a site is to do, and the model that it received."""
    kind = next(kind for kind, name in TYPES.items() if message.metadata.message_type.startswith(name))
    order = Order(**message.content.config_records["order"])  # type: ignore[arg-type]  # as Order has them
    step = Step(kind, cost=0, client=order.client, round=order.round)  # type: ignore[arg-type]  # a key of TYPES
    return step, order, to_state(message.content.array_records["model"])


def pack_answer(result: Result) -> RecordDict:
    """All that leaves a site."""
    if isinstance(result, Trained):
        upload = result.upload
        metrics: Metrics = {"samples": upload.samples, "loss": upload.loss, "images": upload.images}
        return RecordDict({"upload": to_arrays(upload.state), "metrics": MetricRecord(metrics)})
    if isinstance(result, Personal):
        personal = {"accuracy": result.accuracy, "curve": result.curve or None, "epochs": result.epochs}
        known: Metrics = {name: value for name, value in personal.items() if value is not None}
        return RecordDict({"metrics": MetricRecord(known)})
    assert isinstance(result, dict)
    return RecordDict({"summary": to_arrays(result)})


def unpack_answer(step: Step, content: RecordDict, device: torch.device) -> Result:
    """What a site sent; whatever is wrong with its form raises an error."""
    if step.kind == "summarise":
        return to_state(content.array_records["summary"], device)
    metrics = content.metric_records["metrics"]
    if step.kind == "personalise":
        accuracy = _number(metrics["accuracy"], 1) if "accuracy" in metrics else None
        curve = [_number(value, 1) for value in metrics.get("curve", [])]  # type: ignore[union-attr]  # or it raises
        return Personal(step.client, accuracy, curve, _number(metrics["epochs"], math.inf), {})
    samples, images = (_count(metrics, name) for name in ("samples", "images"))
    loss = float(metrics["loss"])  # type: ignore[arg-type]  # likewise
    upload = Upload(step.client, samples, to_state(content.array_records["upload"], device), loss, images)
    return Trained(upload, private={})


def misfit(extras: State, rows: Mapping[str, Rows], classes: int, features: int) -> str | None:
    """What is wrong with what a site sent beside or instead of a model; None if it is what the method sends.

    A site that holds nothing sends no statistics. All others send all of them.
    """
    if not extras:
        return None
    if extras.keys() != {"classes", *rows} or not rows:
        sent, agreed = (", ".join(sorted(names)) or "nothing" for names in (extras, {"classes", *rows} if rows else ()))
        return f"besides the model it sends {sent}; this method sends {agreed}"
    held = extras["classes"]
    if held.ndim != 1 or held.dtype != torch.int64 or len(held.unique()) < len(held):
        return "its statistics do not say which classes they are of"
    if len(held) and not 0 <= int(held.min()) <= int(held.max()) < classes:
        return f"its statistics are of a class that is none of 0 to {classes - 1}"
    for name, row in rows.items():
        tensor, form = extras[name], (len(held), *[features] * row.dimensions)
        if tensor.dtype != row.dtype or tuple(tensor.shape) != form:
            return f"{name} is {tensor.dtype} {list(tensor.shape)}, not {row.dtype} {list(form)}"
        if not tensor.is_floating_point() and (tensor < 1).any():
            return f"{name} has a count below 1"
    return None


def to_arrays(state: State) -> ArrayRecord:
    """Tensors as Flower has them."""
    return ArrayRecord({name: Array(tensor.cpu().contiguous().numpy()) for name, tensor in state.items()})


def to_state(arrays: ArrayRecord, device: torch.device | None = None) -> State:
    """And back; with memory of their own."""
    return {name: torch.tensor(array.numpy(), device=device) for name, array in arrays.items()}


def _number(value: Any, most: float) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= most:
        raise ValueError(f"no number from 0 to {most:g}: {value!r}")
    return float(value)


def _count(metrics: Mapping[str, Any], name: str) -> int:
    value = metrics[name]
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is no count: {value!r}")
    return value
