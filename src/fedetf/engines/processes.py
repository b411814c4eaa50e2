"""The process engine: persistent workers with one thread each, on the cores and the GPUs of this machine."""

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedetf.core.state import State, nbytes
from fedetf.engines.base import Engine, Tick
from fedetf.engines.dispatch import in_order
from fedetf.engines.forkserver import fork_server
from fedetf.engines.job import Job
from fedetf.engines.memory import Memory, flatten, restore, store, stored
from fedetf.engines.placement import Placement
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Result, Step
from fedetf.engines.wire import pack_model, pack_steps, unpack_results
from fedetf.errors import OutOfMemory

CPU = torch.device("cpu")
BUFFERED = 32 * 2**20  # bytes of results that may wait for their turn
TOGETHER = 4 * 2**20  # bytes of results that make one message


@dataclass(frozen=True, eq=False)
class Hand:
    """A worker as its engine sees it."""

    number: int  # of all that may be there; it says on which device it is
    line: Connection
    outbox: Memory  # where it puts its results

    def close(self) -> None:
        """Let go of it, which ends it."""
        self.line.close()
        self.outbox.close()


class ProcessEngine(Engine):
    """Steps run in worker processes. Images and the received model are in memory that all of them see.

    A worker whose device has no memory left is let go, and the others do its steps.
    """

    def __init__(self, job: Job, private: PrivateStates, placement: Placement):
        super().__init__(job, private)
        self._placement = placement
        self._numbers = set(range(placement.workers or 1))  # of the workers that there can be
        self._job = store([json.dumps(sys.path).encode(), *flatten(job)])
        _use_shared_images(job, restore(stored(self._job)[1:]))
        self._on_gpu: dict[torch.device, Any] = {}  # the images, once for each GPU
        self._received: Memory | None = None
        self._sent = 0  # how many models have been sent
        self._idle: list[Hand] = []
        self._busy: dict[Connection, tuple[Hand, int, Sequence[Step]]] = {}  # who does what: the steps from a place on
        self._again: list[tuple[int, Sequence[Step]]] = []  # of workers that were let go

    @property
    def device(self) -> torch.device:
        """The CPU: uploads come through memory that all processes see."""
        return CPU

    @property
    def placement(self) -> dict[str, Any]:
        """How many workers are on each device by now."""
        return self._placement.to_json(sorted(self._numbers))

    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """On as many workers as there are."""
        self._broadcast(received)
        return in_order(self, steps, *window(len(self._numbers), len(steps), received, tick))

    def close(self) -> None:
        """End the workers, whatever they are doing, and free the memory."""
        self._end_workers()
        self._on_gpu.clear()
        self._job.close()
        if self._received is not None:
            self._received.close()

    # --- the crew, see dispatch.Crew ---

    def has_room(self) -> bool:
        """Whether a worker is free, or another can be started."""
        return bool(self._idle) or len(self._busy) < len(self._numbers)

    def give(self, place: int, steps: Sequence[Step]) -> None:
        """Send steps to a free worker."""
        message = pack_steps(steps, [self.private.load(step.client) for step in steps], self._sent)
        hand = self._free_worker()
        self._busy[hand.line] = hand, place, steps
        with contextlib.suppress(OSError):  # a worker that died is noticed in take
            hand.line.send_bytes(bytes(message))

    def take(self) -> tuple[int, list[Result] | None]:
        """Wait for the next worker that is done, or dead."""
        while True:
            line = wait(list(self._busy))[0]
            assert isinstance(line, Connection)
            hand, place, steps = self._busy.pop(line)
            try:
                size = int.from_bytes(line.recv_bytes(), "little")
                whole = size <= len(hand.outbox.bytes)
                message = bytearray(hand.outbox.bytes[:size]) if whole else bytearray(line.recv_bytes())
            except (EOFError, OSError):
                hand.close()
                return place, None
            self._idle.append(hand)
            try:
                results = unpack_results(message)
            except OutOfMemory:
                if len(self._numbers) == 1:
                    raise
                self._do_without(hand)
                self._again.append((place, steps))
                results = None
            if self._again and self.has_room():
                self.give(*self._again.pop())
            if results is not None:
                return place, results

    def _do_without(self, hand: Hand) -> None:
        """Let go of a worker for which there is no memory."""
        self._idle.remove(hand)
        hand.close()
        if len(self._numbers) == self._placement.workers:
            device = self._placement.device(hand.number)
            warnings.warn(
                f"{device} has not enough memory for so many workers; going on with fewer (result.json says how many)",
                stacklevel=2,
            )
        self._numbers.remove(hand.number)

    def _free_worker(self) -> Hand:
        while self._idle:
            hand = self._idle.pop()
            if not hand.line.poll():
                return hand
            hand.close()  # it has nothing to say, so this is its end
        assert self._received is not None
        number = min(self._numbers - {hand.number for hand, _, _ in self._busy.values()})
        outbox = Memory.new(max(len(self._received.bytes), TOGETHER) + 2**16)
        descriptors = [self._job.descriptor, self._received.descriptor, outbox.descriptor]
        try:
            line = fork_server().fork(descriptors)
        except OSError:  # the fork server died in this very moment; there will be another
            line = fork_server().fork(descriptors)
        device = self._placement.device(number)
        with contextlib.suppress(OSError):
            line.send_bytes(str(device).encode())
            line.send_bytes(self._images_on(device))
        return Hand(number, line, outbox)

    def _images_on(self, device: torch.device) -> bytes:
        """Where a worker finds the images on a GPU; nothing for a CPU."""
        if device.type == "cpu":
            return b""
        from fedetf.engines.gpu import OnGPU

        if device not in self._on_gpu:
            self._on_gpu[device] = OnGPU(self.job.dataset, device)
        handles: bytes = self._on_gpu[device].handles()
        return handles

    def _end_workers(self) -> None:
        for hand in (*self._idle, *(hand for hand, _, _ in self._busy.values())):
            hand.close()
        self._idle.clear()
        self._busy.clear()
        self._again.clear()

    def _broadcast(self, received: State) -> None:
        message = pack_model(received)
        if self._received is None or message.size > len(self._received.bytes):
            self._end_workers()  # those that know the old memory only
            if self._received is not None:
                self._received.close()
            self._received = Memory.new(message.size + message.size // 4 + 4096)
        message.write_to(self._received.bytes)
        self._sent += 1


def _use_shared_images(job: Job, twin: Job) -> None:
    """Let the job's own images be those in shared memory, so that there is one copy of them."""
    for mine, theirs in ((job.dataset.train, twin.dataset.train), (job.dataset.test, twin.dataset.test)):
        mine.x.set_(theirs.x)  # type: ignore[call-overload]  # torch's stubs lack it


def window(workers: int, steps: int, received: State, tick: Tick) -> tuple[int, Tick, int]:
    """How many steps may be begun before the first of them is done, and how many make one message.

    Few enough results wait for their turn, and every worker gets several messages, so that all end at the same time.
    """
    size = max(nbytes(received), 1)
    together = min(steps // (8 * workers), TOGETHER // size)
    return max(4 * workers, BUFFERED // size), tick, max(together, 1)
