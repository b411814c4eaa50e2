"""Real sites for tests: a new app folder, and a grid that carries Flower's messages within one process."""

import json
from collections.abc import Callable, Iterable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from flwr.app import Array, Context, Message, RecordDict
from flwr.common.config import flatten_dict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedetf.api import prepare
from fedetf.config import resolve
from fedetf.core.state import load_state, save_state
from fedetf.federation import Federation
from fedetf.flower.new import new_app

SITES = ["berlin", "paris", "rome"]
QUICK = """epochs = 1
batch_size = 16
lr = 0.05
[personal]
rounds = 1
[engine]
device = "cpu"
[measure]
tensorboard = false
"""
SMALL = (
    """
seed = 3
[data]
name = "digits"
alpha = 0.5
limit = {limit}
test_limit = 40
[model]
name = "{model}"
[method]
name = "{method}"
[train]
rounds = {rounds}
"""
    + QUICK
)


def make_app(
    folder: Path, method: str = "fedetf", rounds: int = 2, model: str = "cnn", limit: int = 90, more: str = ""
) -> Path:
    """An app as `fedetf flower new` makes it, with small settings."""
    new_app(folder, SITES)
    text = SMALL.format(method=method, rounds=rounds, model=model, limit=limit)
    (folder / "settings.toml").write_text(text + more)
    return folder


def carried(message: Message) -> Message:
    """What the other side gets: all of it has been bytes."""
    contents = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
    return inflate_object_from_contents(message.object_id, contents)


class Wire(Grid):
    """Three nodes in this process. Each message goes through the real ClientApp, as bytes in both directions."""

    def __init__(
        self,
        app: Path,
        keep: Path,
        data: Callable[[int], str] = lambda site: "digits",
        names: Sequence[str] = SITES,
        **config: Any,
    ):
        self.names = names
        spec = spec_from_file_location("fedetf_app", app / "fedetf_app.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        self.app, self.server, self.client = app, module.server, module.client
        pyproject = tomllib.loads((app / "pyproject.toml").read_text())
        self.config = {**flatten_dict(pyproject["tool"]["flwr"]["app"]["config"]), **config}
        self.nodes = {100 + k: {"data": data(k), "keep": str(keep / name)} for k, name in enumerate(names)}
        self.answers: list[Message] = []  # all that left a site
        self.spoil: Callable[[Message, Message], Message | None] = lambda request, answer: answer
        self.away: Callable[[str], bool] = lambda name: False
        self.lives = dict.fromkeys(names, 1)  # how often a node was started
        self._open: dict[str, Message] = {}

    def run_server(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower's own process does
        self.server(self, Context(1, 1, {}, RecordDict(), self.config))

    def get_nodes(self) -> Iterable[NodeInfo]:
        there = [(100 + k, name) for k, name in enumerate(self.names) if not self.away(name)]
        known = [
            NodeInfo(node_id=node, name=name, last_activated_at=str(self.lives[name])) for node, name in reversed(there)
        ]
        return [*known, NodeInfo(node_id=7, name="stranger")]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.answers)}-{message.metadata.dst_node_id}"
            names.append(message.metadata.message_id)
            self._open[names[-1]] = carried(message)
            self._open[names[-1]].metadata.__dict__["_message_id"] = names[-1]
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for name in reversed(list(message_ids)):  # whoever is last answers first
            request = self._open.pop(name, None)
            if request is None:
                continue
            node = request.metadata.dst_node_id
            answer = self.client(request, Context(1, node, self.nodes[node], RecordDict(), self.config))
            self.answers.append(answer)
            spoilt = self.spoil(request, carried(answer))
            if spoilt is not None:
                replies.append(spoilt)
        return replies

    def get_node_ids(self) -> Iterable[int]:
        raise NotImplementedError

    create_message = send_and_receive = set_run = run = get_node_ids  # type: ignore[assignment]


def assert_same_model(a: Path, b: Path) -> None:
    """Two run folders end in the same global model, to the bit."""
    left, right = (load_state(folder / "model.safetensors") for folder in (a, b))
    assert left.keys() == right.keys()
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedetf.flower.engine.PAUSE", 0.0)
    monkeypatch.setattr("fedetf.flower.describe.PAUSE", 0.0)


def quick(tmp_path: Path, method: str = "feddyn", rounds: int = 2, **config: object) -> Wire:
    """A federation of small perceptrons, without the personal stage."""
    app = tmp_path / "app"
    if not app.exists():
        make_app(app, method, rounds, model="mlp", limit=60, more="")
        settings = (app / "settings.toml").read_text().replace("[personal]\n", "[personal]\nenabled = false\n")
        (app / "settings.toml").write_text(settings)
    return Wire(app, tmp_path / "kept", **{"out": str(tmp_path / "run"), "min-sites": 1, **config})


def assert_ends_as_with(tmp_path: Path, schedule: list[list[int]]) -> None:
    """The run ended as the serial simulator does with these participants."""
    settings = resolve(str(tmp_path / "app" / "settings.toml"), {"data.clients": 3, "engine.name": "serial"})
    (tmp_path / "expected").mkdir()
    model = Federation(prepare(settings), schedule).run().model
    save_state(model, tmp_path / "expected" / "model.safetensors", {})
    assert_same_model(tmp_path / "run", tmp_path / "expected")


def records(tmp_path: Path) -> list[dict[str, dict[str, str]]]:
    return [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]


def spoilt_model(answer: Message, name: str, tensor: torch.Tensor) -> Message:
    answer.content.array_records["upload"][name] = Array(tensor.numpy())
    return answer
