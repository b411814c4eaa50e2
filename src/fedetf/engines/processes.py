"""The process engine: persistent workers with one thread each, on the cores of this machine."""

import contextlib
import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait

import torch

from fedetf.core.state import State, nbytes
from fedetf.engines.base import Engine, Tick
from fedetf.engines.dispatch import in_order
from fedetf.engines.forkserver import fork_server
from fedetf.engines.job import Job
from fedetf.engines.memory import Memory, flatten, restore, store, stored
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Result, Step
from fedetf.engines.wire import pack, pack_error, pack_result, pack_step, unpack, unpack_result, unpack_step
from fedetf.engines.worker import Worker
from fedetf.errors import RunError

CPU = torch.device("cpu")
BUFFERED = 64 * 2**20  # bytes of results that may wait for their turn


class ProcessEngine(Engine):
    """Steps run in worker processes. Images and the received model are in memory that all of them see."""

    def __init__(self, job: Job, private: PrivateStates, workers: int):
        super().__init__(job, private)
        self._workers = workers
        self._job = store([json.dumps(sys.path).encode(), *flatten(job)])
        _use_shared_images(job, restore(stored(self._job)[1:]))
        self._received: Memory | None = None
        self._sent = 0  # how many models have been sent
        self._idle: list[Connection] = []
        self._busy: dict[Connection, int] = {}  # -> the place of the step

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return CPU

    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """On as many workers as there are."""
        self._broadcast(received)
        return in_order(self, steps, window(self._workers, received), tick)

    def close(self) -> None:
        """End the workers, whatever they are doing, and free the memory."""
        self._end_workers()
        self._job.close()
        if self._received is not None:
            self._received.close()

    # --- the crew, see dispatch.Crew ---

    def has_room(self) -> bool:
        """Whether a worker is free, or another can be started."""
        return bool(self._idle) or len(self._busy) < self._workers

    def give(self, place: int, step: Step) -> None:
        """Send a step to a free worker."""
        message = pack_step(step, self.private.load(step.client), self._sent)
        worker = self._free_worker()
        self._busy[worker] = place
        with contextlib.suppress(OSError):  # a worker that died is noticed in take
            worker.send_bytes(message)

    def take(self) -> tuple[int, Result | None]:
        """Wait for the next worker that is done, or dead."""
        worker = wait(list(self._busy))[0]
        assert isinstance(worker, Connection)
        place = self._busy.pop(worker)
        try:
            message = worker.recv_bytes()
        except (EOFError, OSError):
            worker.close()
            return place, None
        self._idle.append(worker)
        return place, unpack_result(message)

    def _free_worker(self) -> Connection:
        while self._idle:
            worker = self._idle.pop()
            if not worker.poll():
                return worker
            worker.close()  # it has nothing to say, so this is its end
        assert self._received is not None
        descriptors = [self._job.descriptor, self._received.descriptor]
        try:
            return fork_server().fork(descriptors)
        except OSError:  # the fork server died in this very moment; there will be another
            return fork_server().fork(descriptors)

    def _end_workers(self) -> None:
        for worker in (*self._idle, *self._busy):
            worker.close()
        self._idle.clear()
        self._busy.clear()

    def _broadcast(self, received: State) -> None:
        message = pack({}, received=received)
        if self._received is None or len(message) + 8 > len(self._received.bytes):
            self._end_workers()  # those that know the old memory only
            if self._received is not None:
                self._received.close()
            self._received = Memory.new(len(message) + len(message) // 4 + 4096)
        self._received.bytes[:8] = len(message).to_bytes(8, "little")
        self._received.bytes[8 : 8 + len(message)] = message
        self._sent += 1


def _use_shared_images(job: Job, twin: Job) -> None:
    """Let the job's own images be those in shared memory, so that there is one copy of them."""
    for mine, theirs in ((job.dataset.train, twin.dataset.train), (job.dataset.test, twin.dataset.test)):
        mine.x.set_(theirs.x)  # type: ignore[call-overload]  # torch's stubs lack it


def window(workers: int, received: State) -> int:
    """How many steps may be begun before the first of them is done, so that few enough results wait for their turn."""
    return max(4 * workers, BUFFERED // max(nbytes(received), 1))


# --- the worker's side ------------------------------------------------------------------------------------------------


class Answering:
    """A worker behind messages: takes a packed step, gives the packed result. An error is a result as well."""

    def __init__(self, job: Job):
        torch.set_num_threads(job.settings.engine.threads)
        self._job = job
        self._worker: Worker | None = None
        self._received, self._known = State(), 0

    def answer(self, message: bytes, sent_model: Callable[[], bytes]) -> bytes:
        """Do a step; ``sent_model`` gives the packed model that it starts from, and is asked when that is a new one."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                step, private, sent = unpack_step(message)
                if sent != self._known:
                    self._received, self._known = unpack(sent_model())[1]["received"], sent
                self._worker = self._worker or Worker(self._job, CPU)
                result = self._worker.perform(step, self._received, private)
                warned = [str(w.message) for w in caught if not issubclass(w.category, DeprecationWarning)]
                return pack_result(result, warned)
            except Exception as error:  # it is raised again where the run is
                return pack_error(error, traceback.format_exc())


def serve(connection: int, job_memory: int, received_memory: int) -> None:
    """The life of a worker process: answer until the owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = Connection(connection)
    path, *parts = stored(Memory(job_memory))
    sys.path[:] = json.loads(bytes(path))  # the user's own modules are where the owner finds them
    received = Memory(received_memory).bytes
    answering: Answering | None = None

    def sent_model() -> bytes:
        return bytes(received[8 : 8 + int.from_bytes(received[:8], "little")])

    with contextlib.suppress(EOFError, OSError):
        while True:
            message = owner.recv_bytes()
            try:
                answering = answering or Answering(restore(parts))
            except Exception as error:  # the user's own code could not be loaded here
                owner.send_bytes(pack_error(RunError(f"a worker cannot load the run: {error}"), traceback.format_exc()))
            else:
                owner.send_bytes(answering.answer(message, sent_model))
