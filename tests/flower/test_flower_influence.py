"""One site cannot take over a run: what it may claim and send is bounded, and what it says cannot forge a log."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, Error, Message
from sites import Wire, assert_ends_as_with, make_app, no_pauses, quick, records, spoilt_model

from fedetf.core.state import load_state
from fedetf.engines.steps import Trained
from fedetf.errors import RunError, UserError
from fedetf.flower.arrays import numbers
from fedetf.flower.bounds import SampleBound
from fedetf.flower.federate import Federate
from fedetf.methods import Upload
from fedetf.settings import TrainSettings

__all__ = ["no_pauses"]  # a fixture for every test here

PARIS = 101
Spoil = Callable[[Message], Message]


def spoil_paris(wire: Wire, spoil: Spoil, kind: str = "train", number: str | None = None) -> None:
    """Paris lies, in one round or in all."""

    def changed(request: Message, answer: Message) -> Message:
        asked = request.metadata
        meant = asked.dst_node_id == PARIS and asked.message_type == kind and number in (None, asked.group_id)
        return spoil(answer) if meant else answer

    wire.spoil = changed


def claims(**metrics: float) -> Spoil:
    def spoil(answer: Message) -> Message:
        answer.content.metric_records["metrics"].update(metrics)
        return answer

    return spoil


def assert_finite(run: Path) -> None:
    assert all(torch.isfinite(tensor).all() for tensor in load_state(run / "model.safetensors").values())


@pytest.mark.parametrize(
    ("method", "spoil", "why"),
    [
        ("fedavg", claims(samples=2**62), "it reports 4611686018427387904 samples, at most"),
        ("fedavg", claims(images=2**62), "it reports to have trained on 4611686018427387904 images, which is too many"),
        ("fedavg", lambda a: spoilt_model(a, "head.bias", torch.full((10,), 3e38)), "times as long as the model"),
        ("fedproto", lambda a: spoilt_model(a, "prototypes", torch.full((3, 64), 3e38)), "its statistics have the"),
        ("fednh", lambda a: spoilt_model(a, "means", torch.full((3, 64), 3e38)), "its statistics have the length"),
        ("fednh", lambda a: spoilt_model(a, "counts", torch.full((3,), 2**62)), "its counts are of more samples than"),
    ],
)
def test_a_site_that_claims_or_sends_too_much_is_left_out(method: str, spoil: Spoil, why: str, tmp_path: Path) -> None:
    def three_classes(answer: Message) -> Message:
        for name in ("classes", "counts", "means", "prototypes"):
            if name in answer.content.array_records["upload"]:
                array = numbers(name, answer.content.array_records["upload"][name])
                answer.content.array_records["upload"][name] = Array(np.ascontiguousarray(array[:3]))
        return spoil(answer)

    wire = quick(tmp_path, method, rounds=2)
    spoil_paris(wire, three_classes, number="1")
    wire.run_server()
    first, second = records(tmp_path)
    assert why in first["refused"]["1"]
    assert first["refused"]["1"].isprintable()
    assert "refused" not in second
    assert_finite(tmp_path / "run")
    if method == "fedavg":
        assert_ends_as_with(tmp_path, [[0, 2], [0, 1, 2]])


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("running_var", -1.0, "holds negative variances"),
        ("num_batches_tracked", 2**62, "counts what training on"),
        ("num_batches_tracked", -1, "counts what training on"),
    ],
)
def test_the_statistics_of_batch_norm_are_those_that_training_makes(
    name: str, value: float, why: str, tmp_path: Path
) -> None:
    make_app(tmp_path / "app", "fedavg", 1, model="cnn", limit=60)
    wire = quick(tmp_path)

    def spoil(answer: Message) -> Message:
        upload = answer.content.array_records["upload"]
        target = next(tensor for tensor in upload if tensor.endswith(name))
        upload[target] = Array(np.full_like(numbers(target, upload[target]), value))
        return answer

    spoil_paris(wire, spoil)
    wire.run_server()
    assert why in records(tmp_path)[0]["refused"]["1"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("means", 3e38, "its statistics have the length"),
        ("covariances", 3e38, "its statistics have the length"),
        ("covariances", 1e308, "its statistics have the length inf"),
        ("counts", 2**62, "its counts are of more samples than"),
    ],
)
def test_summaries_cannot_spoil_the_finished_model(
    name: str,
    value: float,
    why: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    wire = quick(tmp_path, "ccvr", rounds=1)

    def spoil(answer: Message) -> Message:
        summary = answer.content.array_records["summary"]
        summary[name] = Array(np.full_like(numbers(name, summary[name]), value))
        return answer

    spoil_paris(wire, spoil, kind="query.summarise")
    with pytest.warns(UserWarning, match="nobody holds the classes"):
        wire.run_server()
    assert_finite(tmp_path / "run")
    assert why in caplog.text


def test_control_characters_of_names_and_reasons_stay_out_of_logs_and_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    make_app(tmp_path / "app", "fedavg", 3, model="mlp", limit=60)
    wire = quick(tmp_path)

    def spoil(request: Message, answer: Message) -> Message:
        if request.metadata.dst_node_id != PARIS:
            return answer
        if request.metadata.group_id == "1":
            return spoilt_model(answer, "x\x1b[2J\nround 7: accuracy 1.0\u202e", torch.zeros(1))
        if request.metadata.group_id == "2":
            return Message(Error(2, "\x1b]0;owned\x07\n" + 1000 * "x"), reply_to=request)
        return spoilt_model(answer, "head\x9b.bias" * 100, torch.full((10,), math.nan))

    wire.spoil = spoil
    wire.run_server()
    said = [list({**line.get("refused", {}), **line.get("missing", {})}.values()) for line in records(tmp_path)]
    assert "sends x\\x1b[2J\\nround 7: accuracy 1.0\\u202e; this" in said[0][0]
    assert "failed: \\x1b]0;owned\\x07\\nxxx" in said[1][0]
    assert all(why.isprintable() and len(why) < 1000 for (why,) in said)
    assert all(record.getMessage().isprintable() for record in caplog.records)


# --- the bound on samples ---------------------------------------------------------------------------------------------


def federate(**more: int) -> Federate:
    return Federate.of({"sites": "a,b,c", "classes": "0,1", "shape": "1x8x8", "out": "x", **more})


def trained(samples: int, images: int = 0) -> Trained:
    return Trained(Upload(0, samples, {}, 0.5, images), {})


def test_ten_times_the_median_of_the_first_round_and_the_same_after_a_restart(tmp_path: Path) -> None:
    bound = SampleBound(tmp_path, federate(), TrainSettings(epochs=3))
    bound.find([0, 40, 2**62, 0, 30])  # sites that hold nothing do not count
    bound.find([1, 1, 1])
    again = SampleBound(tmp_path, federate(), TrainSettings(epochs=3))
    for each in (bound, again):
        assert each.excess(trained(400)) is None
        assert "it reports 401 samples, at most 400 are allowed; if that is right, set max-samples" in str(
            each.excess(trained(401))
        )
    assert again.excess(trained(10, 100 * 3 * 10)) is None
    assert "trained on 3001 images, which is too many for its 10 samples" in str(again.excess(trained(10, 3001)))
    given = SampleBound(
        tmp_path, federate(**{"max-samples": 500}), TrainSettings(epochs=3)
    )  # the setting wins over what was found
    assert given.excess(trained(500)) is None
    assert given.excess(trained(501)) is not None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"max-samples": 0}', '{"max-samples": 9.5}', '{"max-samples": true}']
)
def test_a_damaged_bound_is_said_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "bounds.json").write_text(text)
    with pytest.raises(UserError, match=r"bounds.json is damaged.*; set max-samples in pyproject.toml"):
        SampleBound(tmp_path, federate(), TrainSettings(epochs=3))


def test_a_server_that_was_started_again_has_the_bound_of_the_first_round(tmp_path: Path) -> None:
    wire = quick(tmp_path, "fedavg", rounds=3)

    def die(request: Message, answer: Message) -> Message:
        if request.metadata.group_id == "2":
            raise ConnectionError("the SuperLink is gone")
        return answer

    wire.spoil = die
    with pytest.raises(ConnectionError):
        wire.run_server()
    found = json.loads((tmp_path / "run" / "bounds.json").read_text())["max-samples"]
    again = quick(tmp_path)
    again.spoil = lambda request, answer: claims(samples=found + request.metadata.dst_node_id - PARIS)(answer)
    again.run_server()  # berlin claims one less than the bound, paris the bound, rome one more
    for line in records(tmp_path)[1:]:
        assert line["refused"] == {
            "2": f"it reports {found + 1} samples, at most {found} are allowed; if that is right, set max-samples in "
            "pyproject.toml"
        }


def test_a_bound_that_was_given_holds_in_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"round 1: every update was refused \(client 0: it reports \d+ samples"):
        quick(tmp_path, "fedavg", **{"max-samples": 1}).run_server()
    assert not (tmp_path / "run" / "bounds.json").exists()
