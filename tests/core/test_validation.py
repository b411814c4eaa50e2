"""A part of each client's training split, held out to choose settings by: who gets it, and what is measured on it."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs
from processes import in_child
from same import assert_same_run
from sites import Wire, assert_same_model, make_app, no_pauses

import fedetf
from fedetf.data.partition import split_parts
from fedetf.federation import Listener
from fedetf.metrics import balanced

__all__ = ["no_pauses"]  # a fixture for every test here

OPTIONS = {"clients": 5, "alpha": 0.3, "rounds": 3, "epochs": 1, "model": "mlp"}
SETTINGS = {"data.validation_fraction": 0.2, "data.limit": 600, "data.test_limit": 60, "personal.rounds": 1}


def test_a_tenth_of_the_training_split_but_nothing_of_nine_samples() -> None:
    sizes = [(1, 1, 0), (9, 9, 0), (10, 9, 1), (19, 18, 1), (20, 18, 2), (100, 90, 10)]  # to train on, of which …
    labels = np.arange(159) % 2
    parts = np.split(np.arange(159), np.cumsum([size for size, _, _ in sizes])[:-1])
    split = split_parts(parts, labels, ["a", "b"], 0.0, seed=1, validation_fraction=0.1)
    assert [(len(a), len(b)) for a, b in zip(split.train, split.validation, strict=True)] == [s[1:] for s in sizes]
    for part, train, held_out in zip(parts, split.train, split.validation, strict=True):
        assert sorted([*train, *held_out]) == part.tolist()
    assert split.counts.sum(axis=1).tolist() == [len(train) for train in split.train]


def test_test_splits_stay_whatever_is_held_out_and_seeds_differ() -> None:
    labels, parts = np.zeros(200, np.int64), [np.arange(100), np.arange(100, 200)]
    plain, held = (split_parts(parts, labels, ["a", "b"], 0.3, 1, fraction) for fraction in (0.0, 0.25))
    assert [test.tolist() for test in plain.test] == [test.tolist() for test in held.test]
    assert not {"validation"} & json.loads(plain.to_json())["clients"][0].keys()  # files of runs without it stay
    assert json.loads(held.to_json())["clients"][1]["validation"] == held.validation[1].tolist()
    other = split_parts(parts, labels, ["a", "b"], 0.3, 2, 0.25)
    assert other.validation[0].tolist() != held.validation[0].tolist()


def test_classes_with_few_samples_do_not_count_but_are_counted() -> None:
    sums = {"correct": torch.tensor([5, 4, 3, 0]), "count": torch.tensor([10, 5, 4, 0])}
    assert balanced(sums) == (pytest.approx((0.5 + 0.8) / 2), 2)
    assert balanced({"correct": torch.tensor([1]), "count": torch.tensor([4])}) == (None, 1)


def test_accuracies_are_those_of_the_models_on_the_held_out_samples(tmp_path: Path) -> None:
    result = fedetf.run(method="fedrep", settings=SETTINGS, out=tmp_path / "run", engine="serial", **OPTIONS)
    data, written = result.job.dataset.train, json.loads((tmp_path / "run" / "result.json").read_text())["validation"]
    held_out = [client["validation"] for client in json.loads((tmp_path / "run/partition.json").read_text())["clients"]]
    x = data.x.float() / 255 * 2 - 1

    def right(client: int | None, rows: list[int]) -> np.ndarray:
        with torch.no_grad():
            return (result.model(client)(x[rows]).argmax(1) == data.y[rows]).numpy()

    pooled = [row for rows in held_out for row in rows]
    y, correct = data.y[pooled].numpy(), right(None, pooled)
    frequent = [c for c in range(10) if (y == c).sum() >= 5]
    assert 0 < len(frequent) < 10
    assert written["classes_left_out"] == 10 - len(frequent)
    assert written["general"] == pytest.approx(np.mean([correct[y == c].mean() for c in frequent]))
    own = [right(k, rows).mean() if rows else None for k, rows in enumerate(held_out)]
    assert written["personal_per_client"] == pytest.approx(own)
    assert written["personal"] == pytest.approx(np.mean([a for a in own if a is not None]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert lines[-1]["validation"] == written["general"]
    assert written["general_last5"] == pytest.approx(np.mean([line["validation"] for line in lines]))


def test_nothing_is_trained_on_them() -> None:
    data = blobs(clients=2, n=40)
    options = {"rounds": 2, "epochs": 1, "model": "mlp", "engine": "serial", "settings": SETTINGS}
    first = fedetf.run(data=data, test=data[0], method="fedavg", **options)
    joined = np.concatenate([x for x, _ in data])
    for held_out in first.partition.validation:
        assert len(held_out) == 5  # of 28 to train on
        joined[held_out] = 1e3
    spoilt = [(x, y) for x, (_, y) in zip(np.split(joined, 2), data, strict=True)]
    again = fedetf.run(data=spoilt, test=data[0], method="fedavg", **options)
    assert all(torch.equal(tensor, again.outcome.model[name]) for name, tensor in first.outcome.model.items())
    assert first.summary["validation"] != again.summary["validation"]


def test_without_a_global_model_only_personal_ones_are_validated() -> None:
    result = fedetf.run(method="fedproto", settings=SETTINGS, engine="serial", **OPTIONS)
    validation = result.summary["validation"]
    assert validation["general"] is validation["general_last5"] is validation["classes_left_out"] is None
    assert 0 <= validation["personal"] <= 1
    assert fedetf.run(method="fedavg", rounds=1, epochs=1, clients=3, model="mlp").summary["validation"] is None


def test_workers_and_a_killed_run_give_the_same_numbers(tmp_path: Path) -> None:
    options = {"method": "ditto", "settings": SETTINGS, **OPTIONS}
    fedetf.run(engine="serial", out=tmp_path / "serial", **options)
    fedetf.run(engine="processes", workers=2, out=tmp_path / "processes", **options)
    assert_same_run(tmp_path / "serial", tmp_path / "processes")

    class Kill(Listener):
        def personal_done(self, personal: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    broken = tmp_path / "broken"
    in_child(lambda: fedetf.run(engine="serial", out=broken, listeners=[Kill()], **options))
    assert not (broken / "result.json").exists()
    fedetf.resume(broken)
    assert_same_run(tmp_path / "serial", broken)


def test_sites_validate_at_home(tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", "fedavg", 2, model="mlp", limit=200)
    text = (app / "settings.toml").read_text().replace("[data]\n", "[data]\nvalidation_fraction = 0.3\n")
    (app / "settings.toml").write_text(text)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))
    wire.run_server()
    expected = fedetf.run(str(app / "settings.toml"), clients=3, engine="serial", out=tmp_path / "simulated")
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    validation = json.loads((tmp_path / "run" / "result.json").read_text())["validation"]
    assert validation == expected.summary["validation"]
    assert validation["general"] is not None
    sent = [a.content for a in wire.answers if a.metadata.message_type == "query.validate"]
    assert len(sent) == 2 * 3
    for content in sent:  # two counts for each class, and nothing else
        assert {name: set(record) for name, record in content.array_records.items()} == {
            "summary": {"count", "correct"}
        }
        assert not content.metric_records


@pytest.mark.parametrize("lie", [[9] * 10, [-1] * 10, [10**9] * 10])
def test_a_site_cannot_count_more_right_than_it_may_hold(lie: list[int], tmp_path: Path) -> None:
    from flwr.app import Array, Message

    app = make_app(tmp_path / "app", "fedavg", 1, model="mlp", limit=200)
    text = (app / "settings.toml").read_text().replace("[data]\n", "[data]\nvalidation_fraction = 0.3\n")
    (app / "settings.toml").write_text(text)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))

    def spoil(request: Message, answer: Message) -> Message:
        if request.metadata.message_type == "query.validate" and request.metadata.dst_node_id == 101:
            counts = answer.content.array_records["summary"]
            counts["correct"] = Array(np.array(lie))
            counts["count"] = Array(np.array(lie if lie[0] > 9 else [1] * 10))
        return answer

    wire.spoil = spoil
    wire.run_server()
    validation = json.loads((tmp_path / "run" / "result.json").read_text())["validation"]
    assert validation["general"] is None or 0 <= validation["general"] <= 1
    others = fedetf.run(str(app / "settings.toml"), clients=3, engine="serial")
    rows = np.concatenate([others.partition.validation[k] for k in (0, 2)])
    counts = np.bincount(others.job.dataset.train.y[rows].numpy(), minlength=10)
    assert validation["classes_left_out"] == (counts < 5).sum()
