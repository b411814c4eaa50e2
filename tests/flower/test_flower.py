"""The Flower apps give the serial simulator's bits, send no more than the method's upload, and survive bad sites."""

import json
import logging
import math
import re
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from PIL import Image
from sites import (
    SITES,
    Wire,
    assert_ends_as_with,
    assert_same_model,
    make_app,
    no_pauses,
    quick,
    records,
    spoilt_model,
)

import fedetf
from fedetf.config import resolve
from fedetf.core.forms import Sizes, misfit
from fedetf.core.state import load_checked, load_state
from fedetf.engines.steps import Step
from fedetf.errors import RunError, UserError
from fedetf.flower.federate import Federate
from fedetf.flower.messages import Order
from fedetf.flower.site import NodeSettings, Site
from fedetf.flower.states import KeptStates
from fedetf.methods import METHODS, Scope
from fedetf.models.export import export
from fedetf.report.page import write_report

__all__ = ["no_pauses"]  # a fixture for every test here

TRAINED = {"samples", "loss", "images"}
EXTRAS = {  # what a method sends each round beside or instead of the shared model, and once more after the last
    "fednh": ({"classes", "counts", "means"}, set()),
    "fedproto": ({"classes", "prototypes"}, set()),
    "fednova": ({"steps"}, set()),
    "scaffold": ({"steps"}, set()),
    "fedpvr": ({"steps"}, set()),
    "fedfm": ({"classes", "counts", "means"}, set()),
    "fedfa": ({"anchors"}, set()),
    "ccvr": (set(), {"classes", "counts", "means", "covariances"}),
    "spherefed": (set(), {"classes", "sums", "gram"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.pools])
def test_sites_give_the_simulators_bits_and_send_what_the_table_says(method: str, tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", method)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))
    wire.run_server()
    expected = fedetf.run(str(app / "settings.toml"), clients=3, engine="serial", out=tmp_path / "simulated")
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for name in ("personal", "personal_per_client", "personal_curve", "bytes_up"):
        assert result[name] == expected.summary[name], name
    for name in ("general", "general_last5"):  # clients' own models do not come to the server's test set
        assert result[name] == (None if METHODS[method].measures_clients else expected.summary[name]), name

    net = expected.job.build_net().state_dict()
    shared = expected.job.method.scoped(net, Scope.SHARED).keys()
    each_round, at_the_end = EXTRAS.get(method, (set(), set()))
    seen = set()
    for answer in wire.answers:
        kind, content = answer.metadata.message_type, answer.content
        arrays = {name: set(record) for name, record in content.array_records.items()}
        metrics = {name: set(record) for name, record in content.metric_records.items()}
        assert not content.config_records
        seen.add(kind)
        if kind == "train":
            assert arrays == {"upload": shared | each_round}
            assert metrics == {"metrics": TRAINED}
        elif kind == "query.summarise":
            assert (arrays, metrics) == ({"summary": at_the_end}, {})
        elif kind == "query.test":
            assert (arrays, metrics) == ({}, {"metrics": {"measure.accuracy"}})
        else:
            assert arrays == {}
            assert metrics["metrics"] <= {"accuracy", "curve", "epochs"}
    tested = ["query.test"] if METHODS[method].has_global else []
    assert seen == {"train", "query.personalise", *tested, *(["query.summarise"] if at_the_end else [])}
    for k, site in enumerate(SITES):  # the personal model is at the site, and is the simulator's
        kept = next((tmp_path / "kept" / site).rglob("personal.safetensors"))
        model = load_state(tmp_path / "simulated" / "personal" / f"{k}.safetensors")
        assert all(torch.equal(tensor, model[name]) for name, tensor in load_state(kept).items())
        if method == "fedetf":  # it knows all that it takes to be used there
            x = expected.job.dataset.test.x[:5]
            assert torch.equal(fedetf.load(kept)(x), fedetf.load(tmp_path / "simulated", client=k)(x))
            card = export(kept, tmp_path / f"{k}.safetensors")
            assert f"{expected.personal_per_client[k]:.4f}" in card.read_text()
    assert not (tmp_path / "run" / "personal").exists()


def test_pooled_is_refused_since_data_does_not_leave_sites(tmp_path: Path) -> None:
    wire = Wire(make_app(tmp_path / "app", "pooled"), tmp_path / "kept", out=str(tmp_path / "run"))
    with pytest.raises(fedetf.UserError, match=r"^pooled trains on all data in one place, and data does not leave its"):
        wire.run_server()
    assert not (tmp_path / "run").exists()


def test_the_privacy_table_of_the_docs_is_what_the_test_above_saw() -> None:
    table = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
    for method in METHODS:
        _, statistics, at_the_end, _ = rows[method].split(" | ")
        documented = tuple(set(re.findall(r"`(\w+)`", cell)) for cell in (statistics, at_the_end))
        assert documented == EXTRAS.get(method, (set(), set())), method


def test_an_answer_lost_after_the_site_wrote_its_state_applies_the_dual_once(tmp_path: Path) -> None:
    wire = quick(tmp_path, rounds=3, deadline=0.5)

    def lose(request: Message, answer: Message) -> Message | None:
        lost = request.metadata.group_id == "2" and request.metadata.dst_node_id == 102
        return None if lost else answer

    wire.spoil = lose
    wire.run_server()
    assert records(tmp_path)[1]["missing"] == {"2": "no answer within 0.5 s"}
    assert_ends_as_with(tmp_path, [[0, 1, 2], [0, 1], [0, 1, 2]])
    kept = sorted(path.name for path in (tmp_path / "kept" / "rome").rglob("*-*.safetensors"))
    assert kept == [f"{name}.safetensors" for name in ("accepted-00001", "accepted-00003")]  # round 2 did not count


def test_a_node_that_was_started_anew_is_not_waited_for(tmp_path: Path) -> None:
    wire = quick(tmp_path, rounds=2)

    def die(request: Message, answer: Message) -> Message | None:
        if request.metadata.group_id == "1" and request.metadata.dst_node_id == 102:
            wire.lives["rome"] += 1
            return None
        return answer

    wire.spoil = die
    wire.run_server()
    assert records(tmp_path)[0]["missing"] == {"2": "its node was started anew"}
    assert_ends_as_with(tmp_path, [[0, 1], [0, 1, 2]])


def no_metrics(answer: Message) -> Message:
    answer.content["metrics"] = MetricRecord({"samples": 3.5, "loss": 0.0, "images": 1})
    return answer


@pytest.mark.parametrize(
    ("spoil", "where", "why"),
    [
        (lambda a: spoilt_model(a, "head.bias", torch.full((10,), math.nan)), "refused", "holds NaN"),
        (lambda a: spoilt_model(a, "head.bias", torch.zeros(9)), "refused", "has shape"),
        (lambda a: spoilt_model(a, "head.bias", torch.zeros(10).double()), "refused", "has the type torch.float64"),
        (lambda a: spoilt_model(a, "more", torch.zeros(9)), "refused", "besides the model it sends more; this"),
        (
            lambda a: spoilt_model(a, "classes", torch.tensor([1])),
            "refused",
            "sends classes; this method sends nothing",
        ),
        (no_metrics, "refused", "its answer cannot be read: samples is not a count"),
    ],
)
def test_a_spoilt_update_is_left_out_and_its_dual_does_not_count(
    spoil: object, where: str, why: str, tmp_path: Path
) -> None:
    wire = quick(tmp_path, rounds=3)
    wire.spoil = lambda request, answer: (
        spoil(answer) if (request.metadata.group_id, request.metadata.dst_node_id) == ("2", 101) else answer
    )
    wire.run_server()
    assert why in records(tmp_path)[1][where]["1"]
    assert_ends_as_with(tmp_path, [[0, 1, 2], [0, 2], [0, 1, 2]])


SOUND = {  # what a site may send as statistics, by method: FedNH and FedProto each round, CCVR at the end
    "fednh": {"classes": torch.tensor([3]), "counts": torch.tensor([2]), "means": torch.ones(1, 64)},
    "fedproto": {"classes": torch.tensor([3]), "prototypes": torch.ones(1, 64)},
    "ccvr": {
        "classes": torch.tensor([3]),
        "counts": torch.tensor([2]),
        "means": torch.ones(1, 64).double(),
        "covariances": torch.ones(1, 64, 64).double(),
    },
}


@pytest.mark.parametrize(
    ("method", "change", "why"),
    [
        ("fedproto", {"classes": torch.tensor([12])}, "none of 0 to 9"),
        ("fedproto", {"classes": torch.tensor([[1]])}, "do not say which classes"),
        ("fedproto", {"prototypes": torch.zeros(1, 2)}, "prototypes is torch.float32 [1, 2]"),
        ("fedproto", {"prototypes": torch.zeros(1, 64).double()}, "prototypes is torch.float64"),
        ("fedproto", {"prototypes": None}, "it sends classes; this method sends classes, prototypes"),
        ("fedproto", {"head.weight": torch.zeros(10, 64)}, "sends classes, head.weight, prototypes; this"),
        ("fednh", {"head.W": torch.ones(1, 64)}, "sends classes, counts, head.W, means; this"),
        ("fednh", {"counts": None}, "sends classes, means; this"),
        ("fednh", {"counts": torch.tensor([-5])}, "counts has a count below 1"),
        ("fednh", {"means": torch.zeros(1, 64, 64)}, "means is torch.float32 [1, 64, 64]"),
        ("ccvr", {"counts": torch.tensor([0])}, "counts has a count below 1"),
        ("ccvr", {"covariances": None}, "sends classes, counts, means; this"),
        ("ccvr", {"means": torch.ones(1, 64, 64).double()}, "means is torch.float64 [1, 64, 64]"),
    ],
)
def test_statistics_are_what_the_method_sends_or_refused(
    method: str, change: dict[str, torch.Tensor | None], why: str
) -> None:
    kind = METHODS[method]
    rows, sizes = {**kind.uploads, **kind.summaries}, Sizes(10, 64, {})
    assert misfit(SOUND[method], rows, sizes) is None
    spoilt = {name: tensor for name, tensor in {**SOUND[method], **change}.items() if tensor is not None}
    assert why in str(misfit(spoilt, rows, sizes))


@pytest.mark.parametrize("method", ["fedproto", "fednh"])
def test_statistics_that_do_not_fit_are_left_out(method: str, tmp_path: Path) -> None:
    wire = quick(tmp_path, method, rounds=1)
    wire.spoil = lambda request, answer: (
        spoilt_model(answer, "classes", torch.tensor([12])) if request.metadata.dst_node_id == 101 else answer
    )
    wire.run_server()
    assert "none of 0 to 9" in records(tmp_path)[0]["refused"]["1"]


def test_a_site_cannot_reach_the_private_heads_of_others(tmp_path: Path) -> None:
    wire = quick(tmp_path, "fedrep", rounds=2)

    def attack(request: Message, answer: Message) -> Message:
        if (request.metadata.group_id, request.metadata.dst_node_id) != ("1", 101):
            return answer
        spoilt_model(answer, "classes", torch.tensor([0, 1]))
        return spoilt_model(answer, "head.weight", torch.full((10, 64), 7.0))

    wire.spoil = attack
    wire.run_server()
    first, second = records(tmp_path)
    assert "sends classes, head.weight; this method sends nothing" in first["refused"]["1"]
    assert "refused" not in second
    assert_ends_as_with(tmp_path, [[0, 2], [0, 1, 2]])


def test_a_spoilt_personal_answer_is_left_out(tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", "fedetf", 1, model="mlp", limit=60)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))

    def spoil(request: Message, answer: Message) -> Message:
        metrics = answer.content.metric_records["metrics"]
        if request.metadata.message_type == "query.personalise":
            if request.metadata.dst_node_id == 100:
                metrics["accuracy"] = math.nan
            if request.metadata.dst_node_id == 101:
                metrics["curve"] = [0.5]
        return answer

    wire.spoil = spoil
    wire.run_server()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    first, second, third = result["personal_per_client"]
    assert (first, second) == (None, None)
    assert result["personal"] == third


CHOSEN = 'metrics = ["log_loss", "collapse"]\n'  # the last section of the settings is measure.*


def test_sites_send_the_values_of_chosen_metrics(tmp_path: Path) -> None:
    """One number a metric: the simulator's. Neural collapse is of the global model alone."""
    app = make_app(tmp_path / "app", "fedavg", 1, model="mlp", limit=60, more=CHOSEN)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))
    wire.run_server()
    asked = [answer for answer in wire.answers if answer.metadata.message_type == "query.personalise"]
    sent = [answer.content.metric_records["metrics"] for answer in asked]
    assert [set(record) - {"accuracy", "epochs"} for record in sent] == [{"measure.log_loss"}] * 3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    expected = fedetf.run(str(app / "settings.toml"), clients=3, engine="serial")
    assert result["metrics"] == expected.summary["metrics"]
    assert result["recall_per_class"] == expected.summary["recall_per_class"]


def test_a_spoilt_metric_of_a_site_is_left_out(tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", "fedavg", 1, model="mlp", limit=60, more=CHOSEN)
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))

    def spoil(request: Message, answer: Message) -> Message:
        metrics = answer.content.metric_records["metrics"]
        if request.metadata.message_type == "query.personalise":
            if request.metadata.dst_node_id == 100:
                metrics["measure.log_loss"] = math.inf
            if request.metadata.dst_node_id == 101:
                metrics["measure.nc2"] = 0.5
        return answer

    wire.spoil = spoil
    wire.run_server()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [accuracy is None for accuracy in result["personal_per_client"]] == [True, True, False]
    assert result["metrics"]["personal"]["log_loss"] > 0


def test_who_is_not_connected_is_left_out_and_too_few_end_the_run(tmp_path: Path) -> None:
    wire = quick(tmp_path, rounds=1, join=0.01)
    wire.away = lambda name: name == "paris"
    wire.run_server()
    assert records(tmp_path)[0]["missing"] == {"1": "not connected"}
    assert_ends_as_with(tmp_path, [[0, 2]])
    page = write_report([tmp_path / "run"], tmp_path / "page.html").path.read_text()
    for text in ("paris, round 1: not connected", "3 sites. What each of them holds, it alone knows.", "flwr run APP"):
        assert text in page
    assert "alpha = 0.5" not in page
    alone = quick(tmp_path, join=0.01, out=str(tmp_path / "second"), **{"min-sites": 3})
    alone.away = wire.away
    with pytest.raises(RunError, match="2 sites are connected, at least 3 are needed; start the nodes of: paris"):
        alone.run_server()


def test_too_few_sound_updates_end_the_run_before_the_model_changes(tmp_path: Path) -> None:
    wire = quick(tmp_path, rounds=3, **{"min-sites": 3})
    wire.spoil = lambda request, answer: (
        spoilt_model(answer, "head.bias", torch.zeros(9)) if request.metadata.group_id == "2" else answer
    )
    with pytest.raises(RunError, match=r"round 2: every update was refused \(client 0: head.bias has shape"):
        wire.run_server()
    assert len(records(tmp_path)) == 1
    quick(tmp_path).run_server()  # the sites go back to what belongs to round 1
    assert_ends_as_with(tmp_path, [[0, 1, 2]] * 3)


def die_in_round(number: str, tmp_path: Path, rounds: int) -> None:
    wire = quick(tmp_path, rounds=rounds)

    def die(request: Message, answer: Message) -> Message:
        if request.metadata.group_id == number:
            raise ConnectionError("the SuperLink is gone")
        return answer

    wire.spoil = die
    with pytest.raises(ConnectionError):
        wire.run_server()


def test_a_server_that_died_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    die_in_round("3", tmp_path, rounds=4)
    quick(tmp_path).run_server()
    assert_ends_as_with(tmp_path, [[0, 1, 2]] * 4)
    with pytest.raises(UserError, match="is finished; give another"):
        quick(tmp_path).run_server()


def test_sites_can_go_back_to_the_last_checkpoint_but_one(tmp_path: Path) -> None:
    die_in_round("3", tmp_path, rounds=3)
    (tmp_path / "run" / "checkpoints" / "round-00002.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        quick(tmp_path).run_server()
    assert_ends_as_with(tmp_path, [[0, 1, 2]] * 3)


def test_another_setting_or_order_of_sites_is_not_the_same_run(tmp_path: Path) -> None:
    die_in_round("2", tmp_path, rounds=3)
    with pytest.raises(UserError, match=r"the run was begun with sites = \['berlin', 'paris', 'rome'\]"):
        quick(tmp_path, sites="paris, berlin, rome").run_server()
    with pytest.raises(UserError, match="the settings are not those that"):
        quick(tmp_path, noise=1.0).run_server()
    settings = tmp_path / "app" / "settings.toml"
    settings.write_text(settings.read_text().replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(UserError, match="the settings are not those that"):
        quick(tmp_path).run_server()


def test_a_site_that_lost_its_state_takes_no_further_part(tmp_path: Path) -> None:
    wire = quick(tmp_path, rounds=2)

    def wipe(request: Message, answer: Message) -> Message:
        if request.metadata.group_id == "1":
            for path in (tmp_path / "kept" / "rome").rglob("*.safetensors"):
                path.unlink()
        return answer

    wire.spoil = wipe
    wire.run_server()
    assert list(records(tmp_path)[1]["missing"]) == ["2"]


def test_an_error_at_a_site_says_nothing_of_its_data(tmp_path: Path) -> None:
    secret = tmp_path / "data" / "3" / "patient-smith.png"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(b"no image")
    wire = quick(tmp_path, rounds=1)
    wire.nodes[102]["data"] = str(tmp_path / "data")
    wire.run_server()
    failed = [answer for answer in wire.answers if answer.has_error()]
    assert len(failed) == 2  # of its training, and of the test of the global model
    assert {answer.error.reason for answer in failed} == {"the step failed; the log of the site says why"}
    assert not any(answer.has_content() for answer in failed)
    assert "smith" not in (tmp_path / "run" / "rounds.jsonl").read_text()


def test_a_server_without_a_test_set_measures_nothing_and_a_site_may_hold_one_class(tmp_path: Path) -> None:
    for k in range(8):
        path = tmp_path / "data" / "3" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 30 * k).save(path)
    wire = quick(tmp_path, "ccvr", rounds=1, test="")
    wire.nodes[102]["data"] = str(tmp_path / "data")
    with pytest.warns(UserWarning, match="nobody holds the classes"):
        wire.run_server()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["general"], result["missing_updates"], result["epochs_train"]) == (None, 0, 1.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"min-sites": 4}, "min-sites = 4, but there are 3 sites"),
        ({"sites": "berlin, berlin"}, "sites names one twice"),
        ({"shape": "8x8"}, "shape"),
        ({"dead-line": 3}, "unknown setting 'dead_line'; did you mean 'deadline'"),
        ({"classes": "0, 1"}, "classes and shape in pyproject.toml are not those of digits"),
    ],
)
def test_settings_that_cannot_be(config: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        quick(tmp_path, **config).run_server()
    assert not (tmp_path / "run").exists()


def test_two_nodes_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = quick(tmp_path)
    nodes = list(wire.get_nodes())
    monkeypatch.setattr(wire, "get_nodes", lambda: [*nodes, nodes[0]])
    with pytest.raises(RunError, match="two nodes are registered as 'rome'"):
        wire.run_server()


def test_arrays_keep_their_bits_and_shapes() -> None:
    from fedetf.flower.arrays import to_arrays, to_state

    state = {
        "scalar": torch.tensor(3.25),
        "count": torch.tensor(7),
        "known": torch.tensor([True, False]),
        "image": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "wide": torch.randn(3, dtype=torch.float64),
    }
    again = to_state(to_arrays(state))
    assert isinstance(to_arrays(state), ArrayRecord)
    for name, tensor in state.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].shape == tensor.shape
        assert torch.equal(again[name], tensor)


# --- a site's own folder ----------------------------------------------------------------------------------------------


def site_of(tmp_path: Path, data: Path) -> Site:
    federate = Federate.of({"sites": "a, b", "classes": "cat, dog", "shape": "1x8x8", "out": "x"})
    settings = resolve(None, {"data.name": "pets", "data.clients": 2, "model.name": "mlp", "method.name": "fedavg"})
    return Site(federate, settings, 1, NodeSettings(data=str(data), keep=str(tmp_path / "kept")))


def pictures(folder: Path, count: int) -> Path:
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("L", (8, 8), 10 * number).save(folder / kind / f"{number}.png")
    return folder


def test_images_that_changed_since_the_run_began_are_noticed(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data", 5)
    site = site_of(tmp_path, data)
    received = site.job.build_net().state_dict()
    step, order = Step("train", 0, client=1, round=1), Order("0" * 32, 1, 1, 0)
    site.perform(step, order, received)
    site_of(tmp_path, data).perform(step, order, received)
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0
    with pytest.raises(RunError, match="the data are not those that the run began with"):
        site_of(tmp_path, pictures(tmp_path / "data", 6)).perform(step, order, received)
    site_of(tmp_path, tmp_path / "data").perform(step, Order("1" * 32, 1, 1, 0), received)  # another run


@pytest.mark.parametrize(("run", "client"), [("0" * 32, "../../victim"), ("0" * 32, 2), ("../up", 1), ("0" * 32, -1)])
def test_a_server_cannot_name_another_folder(run: str, client: int, tmp_path: Path) -> None:
    site = site_of(tmp_path, pictures(tmp_path / "data", 5))
    with pytest.raises(RunError, match="not the names of a run and a client"):
        site.perform(Step("train", 0, client=1, round=1), Order(run, client, 1, 0), {})
    assert not (tmp_path / "kept").exists()


def test_a_state_that_is_written_too_late_does_not_count(tmp_path: Path) -> None:
    states = KeptStates(tmp_path)
    states.settle(0)
    for number, accepted in ((1, 0), (3, 1), (2, 1), (4, 3)):  # round 2's process ends after that of round 3
        states.settle(accepted)
        states.write(number, {"v": torch.tensor(float(number))})
    assert [states.load(number, True)["v"] for number in (1, 3)] == [1, 3]
    for number in (2, 4):  # not accepted, not accepted yet
        with pytest.raises(RunError, match=f"the private state of round {number} cannot be read"):
            states.load(number, True)
    states.settle(1)  # the server went back to its last checkpoint but one
    assert states.load(1, True)["v"] == 1
    states.settle(4)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["accepted-00003", "accepted-00004"]


def test_a_personal_model_below_the_sites_majority_is_said_there_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that stay at their first values give one class for nearly everything, seldom the most frequent one."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    app = make_app(tmp_path / "app", "fedavg", rounds=1)
    settings = app / "settings.toml"
    settings.write_text(settings.read_text().replace("lr = 0.05", "lr = 0.0"))
    wire = Wire(app, tmp_path / "kept", out=str(tmp_path / "run"))
    wire.run_server()
    kept = sorted((tmp_path / "kept").rglob("personal.safetensors"))
    notes = [load_checked(path)[0] for path in kept]
    low = [note for note in notes if note["accuracy"] < note["majority"]]
    assert low
    said = [line for line in caplog.messages if "worse than always the same answer" in line]
    assert len(said) == len(low)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["majority_per_client"], result["personal_majority"]) == ([], None)
