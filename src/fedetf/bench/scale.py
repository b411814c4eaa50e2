"""Seconds and peak memory of a run with K clients, in a process of its own: ``python -m fedetf.bench.scale``."""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from fedetf.bench.workload import dataset, job
from fedetf.data.partition import Partition
from fedetf.engines.forkserver import fork_server
from fedetf.engines.private import PrivateStates
from fedetf.federation import Federation
from fedetf.files import read_text
from fedetf.runs.folder import RunFolder


def deal(clients: int, each: int | None, images: int) -> Partition:
    """The same images for any number of clients.

    Either dealt out, so that a client of ten thousand holds two; or every client holds ``each`` of them, whoever else
    does.
    """
    order = np.random.default_rng(0).permutation(images)
    if each is not None:
        parts = [np.sort(np.take(order, range(each * k, each * (k + 1)), mode="wrap")) for k in range(clients)]
    else:
        parts = [np.sort(part) for part in np.array_split(order, clients)]
    classes = [str(c) for c in range(10)]
    counts = np.stack([np.bincount(part % 10, minlength=10) for part in parts])
    empty = [np.empty(0, np.int64)] * clients
    return Partition(parts, empty, counts, classes)


def measure(clients: int, how: str, rounds: int, images: int) -> dict[str, float]:
    """Run FedAvg with a small CNN; batches are as many and as large for any number of clients.

    ``how``: ``"dealt"``, all taking part; ``"same"``, ten taking part with 256 images each; or a number of images that
    each client holds, all taking part.
    """
    settings = {"method__name": "fedavg", "model__name": "cnn", "train__epochs": 1, "personal__enabled": False}
    each = {"dealt": None, "same": 256}[how] if how in ("dealt", "same") else int(how)
    taking_part = 10 if how == "same" else clients
    work = job(
        dataset(images, 16),
        deal(clients, each, images),
        **settings,
        train__batch_size=2 if how == "dealt" else 32,
        train__rounds=rounds,
        measure__every=rounds,
    )
    rng = np.random.default_rng(1)
    schedule = [[0, 1], *(sorted(rng.choice(clients, taking_part, replace=False).tolist()) for _ in range(rounds))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        federation = Federation(work, schedule, [RunFolder(path, work)], PrivateStates(path / "clients"))
        watch = PeakMemory()
        federation.run()
        peak = watch.stop()
    later = federation.records[1:]  # the first round starts the workers
    seconds = sum(record.seconds for record in later)
    return {"seconds": seconds, "images": sum(record.images for record in later), "bytes": peak}


class PeakMemory(threading.Thread):
    """The most memory that this process, the fork server and its workers held together; what they share counts once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._peak, self._done = 0, threading.Event()
        self.start()

    def run(self) -> None:
        """Look twice a second: looking itself takes time."""
        while not self._done.wait(0.5):
            self._peak = max(self._peak, sum(map(_proportional_size, self._processes())))

    def stop(self) -> float:
        """The peak in bytes; NaN where the system does not tell."""
        self._done.set()
        self.join()
        return self._peak or float("nan")

    @staticmethod
    def _processes() -> list[str]:
        group = os.getpgid(fork_server().pid)
        everybody = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [str(os.getpid()), *(pid for pid in everybody if _group(int(pid)) == group)]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _proportional_size(pid: str) -> int:
    try:
        lines = read_text(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    how, *numbers = sys.argv[1:]
    clients, rounds, images = map(int, numbers)
    sys.stdout.write(json.dumps(measure(clients, how, rounds, images)) + "\n")
