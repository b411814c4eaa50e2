"""Whether two runs are the same to the bit, and a small run to ask it of."""

import json
from pathlib import Path

import torch

import fedetf
from fedetf.core.state import load_state
from fedetf.engines.private import PrivateStates
from fedetf.runs.checkpoints import newest

OPTIONS = {
    "dataset": "digits",
    "clients": 5,
    "alpha": 0.3,
    "participation": 0.6,
    "rounds": 2,
    "epochs": 1,
}
WHERE_AND_WHEN = ("seconds", "images_per_second", "placement")  # they may differ between runs that are the same
SMALL = {"data.limit": 300, "data.test_limit": 60, "personal.rounds": 1, "train.batch_size": 16}


def assert_equal(a: fedetf.Result, b: fedetf.Result) -> None:
    assert all(torch.equal(tensor, b.outcome.model[name]) for name, tensor in a.outcome.model.items())
    assert a.personal_per_client == b.personal_per_client
    assert [r.loss for r in a.rounds] == [r.loss for r in b.rounds]
    assert a.general == b.general


def assert_same_run(a: Path, b: Path) -> None:
    """Every tensor of every file, every number but the times."""
    names = [
        {path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors") if "clients/" not in str(path)}
        for folder in (a, b)
    ]
    assert names[0] == names[1]
    for name in names[0]:
        one, other = load_state(a / name), load_state(b / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(tensor, other[key]) for key, tensor in one.items()), name
    kept = [newest(folder / "checkpoints", PrivateStates(folder / "clients")) for folder in (a, b)]
    assert kept[0] is not None
    assert kept[1] is not None
    assert kept[0].clients == kept[1].clients
    states = [PrivateStates(folder / "clients") for folder in (a, b)]
    for each in states:
        each.rounds.update(kept[0].clients)
    for client in kept[0].clients:
        one, other = (each.load(client) for each in states)
        assert one
        assert one.keys() == other.keys()
        assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())
    assert _numbers(a) == _numbers(b)


def _numbers(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return [{k: v for k, v in d.items() if k not in WHERE_AND_WHEN} for d in (*lines, result)]
