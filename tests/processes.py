"""Who started whom. A test signals only what it has started itself: it finds it from there, never by name."""

import os
import subprocess
import traceback
from collections.abc import Callable


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
