"""A real deployment for tests: one SuperLink and its SuperNodes as processes, with TLS and registered keys."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedetf.flower.keys import make_keys, make_site_key

PATIENCE = 500.0  # seconds; a loaded machine is slow, and an answer that is lost with the link costs a deadline of 150
BIN = Path(sys.executable).parent


def wait_for(what: Callable[[], object], name: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, f"waited in vain for: {name}"
        time.sleep(0.2)


class Deployment:
    """What some hospitals and a server would start, on loopback.

    A site's data are in ``data/<site>`` of the folder, and ``kept/<site>`` is where it keeps what stays with it.
    """

    def __init__(self, folder: Path, sites: Sequence[str], suffix: str = "", more: str = "", path: str = ""):
        """``suffix``: of the sites' data, ``.csv``; ``more``: what a site says of itself; ``path``: for imports."""
        self.folder, self.sites, self.suffix, self.more = folder, sites, suffix, more
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "NO_COLOR": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")])),
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        make_keys(folder / "keys", sites)
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
        site = f'data="{self.folder}/data/{name}{self.suffix}" keep="{self.folder}/kept/{name}" {self.more}'
        where = ("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()))
        return self.start(name, "flower-supernode", *where, "--node-config", site, *how)

    def start_site(self, name: str) -> subprocess.Popen[bytes]:
        key = ("--auth-supernode-private-key", f"keys/{name}")
        return self.start_node(name, "--root-certificates", "keys/ca.crt", *key)

    def join(self) -> dict[str, subprocess.Popen[bytes]]:
        """Register the sites' keys and start their nodes."""
        register = ("supernode", "register")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.flwr(*register, f"keys/{name}.pub", "--name", name), self.sites))
        return {name: self.start_site(name) for name in self.sites}

    def joined(self) -> bool:
        """Whether every site's node has got through."""
        return all("SuperNode ID" in self.log(name) for name in self.sites)

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

    def close(self) -> None:
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
