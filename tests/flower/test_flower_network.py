"""One SuperLink and three SuperNodes as real processes, with TLS and registered keys; some of them are killed."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from deployment import Deployment, wait_for
from PIL import Image
from sites import SITES, assert_same_model, make_app

from fedetf.api import prepare_own
from fedetf.config import resolve
from fedetf.core.state import load_state, save_state
from fedetf.data import Samples, load_dataset, load_share, make_partition
from fedetf.federation import Federation


def write_images(folder: Path, samples: Samples) -> None:
    for k, (x, y) in enumerate(zip(samples.x, samples.y.tolist(), strict=True)):
        path = folder / str(y) / f"{k:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[0].numpy()).save(path)


def expected_run(app: Path, data: Path, schedule: list[list[int]], out: Path) -> dict[str, object]:
    """What the serial simulator makes of the same images, with the given participants."""
    settings = resolve(str(app / "settings.toml"), {"engine.name": "serial"})
    classes = [str(c) for c in range(10)]
    shares = [load_share(data / name, classes, (1, 8, 8), settings.data)[0] for name in (*SITES, "test")]
    *pairs, test = [(samples.x, samples.y.numpy()) for samples in shares]
    federation = Federation(prepare_own(settings, pairs, test, None, None), schedule)
    outcome = federation.run()
    out.mkdir()
    save_state(outcome.model, out / "model.safetensors", {})
    return {"general": outcome.general, "personal_per_client": outcome.personal}


def lines(folder: Path) -> list[dict[str, object]]:
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    settings = resolve(None, {"data.clients": 3, "data.alpha": 0.5, "data.limit": 150, "data.test_limit": 40})
    dataset = load_dataset(settings.data, 3)
    partition = make_partition(dataset.train.y.numpy(), dataset.classes, settings.data, 3)
    for k, name in enumerate(SITES):
        share = sorted([*partition.train[k], *partition.test[k]])
        write_images(tmp_path / "data" / name, dataset.train.take(torch.tensor(share)))
    write_images(tmp_path / "data" / "test", dataset.test)
    write_images(tmp_path / "data" / "stranger", dataset.test)
    with closing(Deployment(tmp_path, SITES)) as started:
        yield started


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds its processes in /proc")
@pytest.mark.timeout(1500)
def test_real_processes_with_tls_and_keys(deployment: Deployment, tmp_path: Path) -> None:
    folder, data = tmp_path, tmp_path / "data"
    apps = {method: make_app(folder / method, method, rounds) for method, rounds in (("fedetf", 1), ("feddyn", 3))}
    for method, app in apps.items():
        config = (app / "pyproject.toml").read_text().replace('test = "digits"', f'test = "{data}/test"')
        config = config.replace('out = "run"', f'out = "run-{method}"').replace("deadline = 600.0", "deadline = 150.0")
        (app / "pyproject.toml").write_text(config)
    off = "[personal]\nenabled = false\n"
    text = (apps["feddyn"] / "settings.toml").read_text().replace("[personal]\nrounds = 1\n", off)
    (apps["feddyn"] / "settings.toml").write_text(text)

    # Three registered sites join; one with an unknown key and one without TLS get nowhere.
    link = deployment.start_link()
    nodes = deployment.join()
    strangers = {
        "stranger": deployment.start_site("stranger"),
        "plain": deployment.start_node("plain", "--insecure", "--max-retries", "2"),
    }
    wait_for(deployment.joined, "the sites")
    for name, node in strangers.items():
        wait_for(lambda: node.poll() is not None, name)  # noqa: B023  # used at once
        assert node.returncode != 0
        assert "SuperNode ID" not in deployment.log(name)
    assert online(deployment) == 3

    # FedETF, a round and the personal stage.
    deployment.flwr("run", "fedetf")
    wait_for((folder / "run-fedetf" / "result.json").exists, "FedETF")
    expected = expected_run(apps["fedetf"], data, [[0, 1, 2]], folder / "expected-fedetf")
    assert_same_model(folder / "run-fedetf", folder / "expected-fedetf")
    result = json.loads((folder / "run-fedetf" / "result.json").read_text())
    assert {name: result[name] for name in expected} == expected
    kept = sorted(path.relative_to(folder).parts[1] for path in folder.rglob("personal.safetensors"))
    assert kept == SITES  # each at its site, none at the server
    assert not (folder / "run-fedetf" / "personal").exists()

    # FedDyn: a node dies in round 2 and comes back, then the SuperLink dies in round 3.
    deployment.flwr("run", "feddyn")
    out = folder / "run-feddyn"
    wait_for(lambda: "ROUND 2]" in deployment.log("rome"), "round 2 at rome")
    deployment.kill(nodes["rome"])
    deployment.rejoin("rome")
    wait_for(lambda: len(lines(out)) >= 2, "round 2 without rome")
    assert list(lines(out)[1]["missing"]) == ["2"]

    def has_its_message(name: str) -> bool:
        """One that is just being handed over when the link dies would hold up the site's next answers."""
        _, asked, then = deployment.log(name).partition("ROUND 3]")
        return "Received" in then or (name == "rome" and not asked)  # which may be back too late for this round

    wait_for(lambda: all(map(has_its_message, SITES)), "round 3 at the sites")
    deployment.kill(link)
    deployment.start_link()
    deployment.flwr("run", "feddyn")  # the nodes come back by themselves
    wait_for((out / "result.json").exists, "FedDyn")
    assert [line.get("missing", {}) != {} for line in lines(out)] == [False, True, False]
    expected_run(apps["feddyn"], data, [[0, 1, 2], [0, 1], [0, 1, 2]], folder / "expected-feddyn")
    assert_same_model(out, folder / "expected-feddyn")
    kept_duals = load_state(next((folder / "kept" / "rome").rglob("accepted-00001.safetensors")))
    assert any(tensor.any() for tensor in kept_duals.values())


def online(deployment: Deployment) -> int:
    listed = json.loads(deployment.flwr("supernode", "list", "--format", "json"))
    return sum(node["status"] == "online" for node in listed["nodes"])
