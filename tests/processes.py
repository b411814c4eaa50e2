"""Who started whom. A test signals only what it has started itself: it finds it from there, never by name."""

import subprocess


def children(pid: int) -> list[int]:
    """The living processes that a process has started."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def command(pid: int) -> str:
    """How a process was called; nothing if it has ended."""
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
