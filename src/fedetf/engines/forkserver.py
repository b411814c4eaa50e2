"""Where worker processes come from: a process that has imported everything and forks itself when it is asked to.

A worker made so is there at once, and clean: it has none of the threads and locks that forking the user's own process
would copy, nor does it run the user's script again as multiprocessing does. Everything dies with its owner, however
that ends. Only the standard library is imported here, so that the slow imports of both processes can go side by side.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

# Workers allocate and free the same large tensors in every step. By default each goes back to the system and comes
# again as fresh pages, which costs more than many a layer; with these, glibc keeps them.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
# Until a worker says more. The last is for torch.compile, which would start processes of its own.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1"
)

PROGRAM = "import sys; sys.path[:] = {path!r}; from fedetf.engines.forkserver import serve_forks; serve_forks({socket})"


class ForkServer:
    """The owner's end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            program = PROGRAM.format(path=sys.path, socket=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD, **KEEP_MEMORY},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the owner alone
            )
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Of the process; its workers are in its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def fork(self, descriptors: Sequence[int]) -> Connection:
        """A new worker that has the open files ``descriptors``; returns the connection to it."""
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._socket, [b"fork"], [theirs.fileno(), *descriptors])
        except OSError:
            mine.close()
            self._process.wait()  # its socket closes a moment before it can be seen that it is dead
            raise
        return Connection(mine.detach())

    def close(self) -> None:
        """End it and all of its workers."""
        atexit.unregister(self.close)
        self._socket.close()
        self._process.wait()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_running: ForkServer | None = None


def fork_server() -> ForkServer:
    """The one of this process; it is started when it is first wanted, and again if it died."""
    global _running
    if _running is not None and not _running.alive:
        _running.close()
        _running = None
    _running = _running or ForkServer()
    return _running


def serve_forks(descriptor: int) -> None:
    """The life of the process: fork for each message, and end everything when the owner is gone."""
    from fedetf.engines.serving import serve

    owner = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a worker ended
    while True:
        message, descriptors, _, _ = socket.recv_fds(owner, 4, 8)
        if not message:
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            owner.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(*descriptors)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
