"""How much faster the working tree is than an earlier commit, side by side and taking turns.

    python benchmarks/faster.py OLD [--dataset D] [--turns N]      OLD: b3ca864^ is the last commit of version 0.1.0

Two things: the seconds from the command to the first training step on all images of a dataset, of a second call, when
caches are there; and what a client with two images costs, of ten thousand that all take part.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from same_bits import checkout, python

# A method that notes when its first client begins to train.
METHOD = """
import os, time
from pathlib import Path
import fedetf

class Noting(fedetf.Method):
    def local(self, client):
        Path(os.environ["FEDETF_NOTE"]).touch()
        time.sleep(3600)
"""


def first_step(tree: Path, dataset: str, folder: Path) -> float:
    """Seconds from the command to the first step; the run is ended there."""
    note, method = folder / "note", folder / "noting.py"
    method.write_text(METHOD, "utf-8")
    note.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "FEDETF_NOTE": str(note)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every call would compile everything again
    command = [sys.executable, "-m", "fedetf", "run", "--dataset", dataset, "--method", f"{method}:Noting"]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        process = subprocess.Popen(
            [*command, "--model", "resnet20", "--out", f"{out}/run"],
            env=environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not note.exists():
            if process.poll() is not None:
                raise SystemExit(f"the run on {tree} ended with status {process.returncode}")
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        os.killpg(process.pid, signal.SIGKILL)  # its workers end with it
        process.wait()
    return seconds


def small_client(tree: Path) -> float:
    """Milliseconds for a client of two images."""
    measured = json.loads(python(tree, "-m", "fedetf.bench.scale", "dealt", "10000", "1", "20000"))
    return 2000 * measured["seconds"] / measured["images"]


def compared(name: str, unit: str, measure: Callable[[Path], float], trees: list[Path], turns: int) -> None:
    """Print both and their ratio: the median over turns, in each of which both were measured."""
    values = [[measure(tree) for tree in trees] for _ in range(turns)]
    old, new = (statistics.median(column) for column in zip(*values, strict=True))
    ratio = statistics.median(before / after for before, after in values)
    print(f"{name}: {old:.2f} -> {new:.2f} {unit}, {ratio:.1f} times as fast")


def main() -> None:
    """Measure both things of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("--dataset", metavar="D", default="cifar10")
    parser.add_argument("--turns", metavar="N", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        trees = [checkout(commit, stack) for commit in (options.old, None)]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for tree in trees:
            first_step(tree, options.dataset, folder)  # the first call
        start = "to the first training step, second call"
        compared(start, "s", lambda tree: first_step(tree, options.dataset, folder), trees, options.turns)
        compared("a client of two images", "ms", small_client, trees, options.turns)


if __name__ == "__main__":
    main()
