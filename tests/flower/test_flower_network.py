"""One SuperLink and three SuperNodes as real processes, with TLS and registered keys; some of them are killed."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image
from sites import SITES, assert_same_model, make_app

from fedetf.api import prepare_own
from fedetf.config import resolve
from fedetf.core.state import load_state, save_state
from fedetf.data import Samples, load_dataset, load_share, make_partition
from fedetf.federation import Federation
from fedetf.flower.keys import make_keys, make_site_key

PATIENCE = 500.0  # seconds; a loaded machine is slow, and an answer that is lost with the link costs a deadline of 150
BIN = Path(sys.executable).parent


def wait_for(what: Callable[[], object], name: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, f"waited in vain for: {name}"
        time.sleep(0.2)


class Deployment:
    """What three hospitals and a server would start, on loopback."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "NO_COLOR": "1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        make_keys(folder / "keys", SITES)
        make_site_key(folder / "keys", "stranger")
        (folder / "home").mkdir()
        connection = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{folder}/keys/ca.crt"\n'
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "server"\n[superlink.server]\n{connection}'
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start_link(self) -> subprocess.Popen[bytes]:
        tls = (
            "--ssl-ca-certfile",
            "keys/ca.crt",
            "--ssl-certfile",
            "keys/server.crt",
            "--ssl-keyfile",
            "keys/server.key",
        )
        more = ("--enable-supernode-auth", "--database", "flower.db", "--disable-runtime-dependency-installation")
        before = self.log("link").count("Uvicorn running")
        link = self.start("link", "flower-superlink", "--port", str(self.port), *tls, *more)
        wait_for(lambda: self.log("link").count("Uvicorn running") > before, "the SuperLink")
        return link

    def start_node(self, name: str, *how: str) -> subprocess.Popen[bytes]:
        site = f'data="{self.folder}/data/{name}" keep="{self.folder}/kept/{name}"'
        where = ("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()))
        return self.start(name, "flower-supernode", *where, "--node-config", site, *how)

    def start_site(self, name: str) -> subprocess.Popen[bytes]:
        key = ("--auth-supernode-private-key", f"keys/{name}")
        return self.start_node(name, "--root-certificates", "keys/ca.crt", *key)

    def rejoin(self, name: str) -> None:
        """Start a node again, as often as it takes: it is refused as long as its first life counts as alive."""
        ends, before = time.monotonic() + PATIENCE, self.log(name).count("SuperNode ID")
        while time.monotonic() < ends:
            node = self.start_site(name)
            wait_for(lambda: node.poll() is not None or self.log(name).count("SuperNode ID") > before, name)  # noqa: B023  # used at once
            if node.poll() is None:
                return
            time.sleep(2)
        pytest.fail(f"{name} does not come back")

    def flwr(self, *arguments: str) -> str:
        command = ["flwr", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """End all that was started here, and what that has started: all of them know this folder as their home."""
        mark = f"FLWR_HOME={self.folder}/home".encode()
        for _ in range(20):
            ours = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)]
            if not ours:
                break
            for process in ours:
                kill_quietly(process)
            time.sleep(0.2)
        for child in self.processes:
            child.wait()


def die_with_parent() -> None:
    """Even if these tests are killed, nothing stays behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # ended meanwhile, or not ours
        return b""


def kill_quietly(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    started = Deployment(tmp_path)
    try:
        yield started
    finally:
        started.end()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds its processes in /proc")
@pytest.mark.timeout(1500)
def test_real_processes_with_tls_and_keys(deployment: Deployment, tmp_path: Path) -> None:
    folder, data = tmp_path, tmp_path / "data"
    apps = {method: make_app(folder / method, method, rounds) for method, rounds in (("fedetf", 2), ("feddyn", 3))}
    for method, app in apps.items():
        config = (app / "pyproject.toml").read_text().replace('test = "digits"', f'test = "{data}/test"')
        config = config.replace('out = "run"', f'out = "run-{method}"').replace("deadline = 600.0", "deadline = 150.0")
        (app / "pyproject.toml").write_text(config)
    off = "[personal]\nenabled = false\n"
    text = (apps["feddyn"] / "settings.toml").read_text().replace("[personal]\nrounds = 1\n", off)
    (apps["feddyn"] / "settings.toml").write_text(text)

    # Three registered sites join; one with an unknown key and one without TLS get nowhere.
    link = deployment.start_link()
    with ThreadPoolExecutor() as pool:
        register = ("supernode", "register")
        list(pool.map(lambda name: deployment.flwr(*register, f"keys/{name}.pub", "--name", name), SITES))
    nodes = {name: deployment.start_site(name) for name in SITES}
    strangers = {
        "stranger": deployment.start_site("stranger"),
        "plain": deployment.start_node("plain", "--insecure", "--max-retries", "2"),
    }
    wait_for(lambda: all("SuperNode ID" in deployment.log(name) for name in SITES), "the sites")
    for name, node in strangers.items():
        wait_for(lambda: node.poll() is not None, name)  # noqa: B023  # used at once
        assert node.returncode != 0
        assert "SuperNode ID" not in deployment.log(name)
    assert online(deployment) == 3

    # FedETF, two rounds and the personal stage.
    deployment.flwr("run", "fedetf")
    wait_for((folder / "run-fedetf" / "result.json").exists, "FedETF")
    expected = expected_run(apps["fedetf"], data, [[0, 1, 2]] * 2, folder / "expected-fedetf")
    assert_same_model(folder / "run-fedetf", folder / "expected-fedetf")
    result = json.loads((folder / "run-fedetf" / "result.json").read_text())
    assert {name: result[name] for name in expected} == expected
    kept = sorted(path.relative_to(folder).parts[1] for path in folder.rglob("personal.safetensors"))
    assert kept == SITES  # each at its site, none at the server
    assert not (folder / "run-fedetf" / "personal").exists()

    # FedDyn: a node dies in round 2 and comes back, then the SuperLink dies in round 3.
    earlier = deployment.log("rome").count("ROUND 2]")  # FedETF's
    deployment.flwr("run", "feddyn")
    out = folder / "run-feddyn"
    wait_for(lambda: deployment.log("rome").count("ROUND 2]") > earlier, "round 2 at rome")
    deployment.kill(nodes["rome"])
    deployment.rejoin("rome")
    wait_for(lambda: len(lines(out)) >= 2, "round 2 without rome")
    assert list(lines(out)[1]["missing"]) == ["2"]
    wait_for(lambda: deployment.log("berlin").rpartition("ROUND 3]")[2].count("Received"), "round 3 at berlin")
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
