"""Who started whom. A test signals only what it has started itself: it finds it from there, never by name."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from fedetf.cli import main
from fedetf.engines import forkserver


def children(pid: int) -> list[int]:
    """The living processes that a process has started."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def command(pid: int) -> str:
    """How a process was called; nothing if it has ended."""
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout


def in_child(work: Callable[[], object], then: Callable[[int], object] = bool) -> int:
    """Run ``work`` in a fork of this process, ``then`` here with its pid; returns the status it ended with."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    then(pid)
    return os.waitpid(pid, 0)[1]


class Forked:
    """``fedetf …`` in a fork of this process, which need not import torch once more; it is used like a ``Popen``."""

    def __init__(self, *arguments: str, before: Callable[[], object] = bool):
        self._said, path = tempfile.mkstemp()
        Path(path).unlink()
        self._process = multiprocessing.get_context("fork").Process(target=self._work, args=(arguments, before))
        self._process.start()
        self.pid = self._process.pid

    def _work(self, arguments: Sequence[str], before: Callable[[], object]) -> None:
        os.dup2(self._said, 2)
        sys.stderr, sys.stdout = os.fdopen(2, "w"), os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background is told to ignore it
        forkserver._running = None  # that of the tests
        warnings.resetwarnings()  # which are errors in tests
        before()
        status = main(list(arguments))
        sys.stderr.flush()
        os._exit(status)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self.returncode is not None, "it goes on"
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Nothing, and what it said to standard error."""
        self.wait(timeout)
        return None, os.pread(self._said, 2**20, 0).decode()
