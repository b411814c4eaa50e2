"""The worker's side of messages, in a process of its own."""

import contextlib
import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from fedetf.core.state import State
from fedetf.data.samples import Samples
from fedetf.engines.job import Job
from fedetf.engines.memory import Memory, restore, stored
from fedetf.engines.wire import Message, pack_error, pack_results, read, unpack_steps
from fedetf.engines.worker import Worker
from fedetf.errors import OUT_OF_MEMORY, OutOfMemory, RunError, is_out_of_memory

Images = tuple[Samples, Samples]  # to train on and to test with


class Answering:
    """A worker behind messages: takes packed steps, gives the packed results. An error is a result as well."""

    def __init__(self, job: Job, device: torch.device, images: Callable[[], Images | None] = lambda: None):
        torch.set_num_threads(job.settings.engine.threads)
        self._job, self._device, self._images = job, device, images
        self._worker: Worker | None = None
        self._received, self._known = State(), 0

    def answer(self, message: bytes, sent_model: Callable[[], bytearray]) -> Message:
        """Do some steps; ``sent_model`` gives the packed model that they start from, and is asked for a new one."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                steps, kept, sent = unpack_steps(bytearray(message))
                if sent != self._known:
                    (self._received,), self._known = read(sent_model())[1], sent
                self._worker = self._worker or Worker(self._job, self._device, self._images())
                work = zip(steps, kept, strict=True)
                results = [self._worker.perform(step, self._received, private) for step, private in work]
                warned = [str(w.message) for w in caught if not issubclass(w.category, DeprecationWarning)]
                return pack_results(results, warned)
            except Exception as error:  # it is raised again where the run is
                if is_out_of_memory(error) and not isinstance(error, OutOfMemory):
                    error = OutOfMemory(OUT_OF_MEMORY)  # not of a step, but of the worker itself
                trace = traceback.format_exception(error.__cause__ or error)  # of a step, the user's own error alone
                return pack_error(error, "".join(trace))


def serve(connection: int, job_memory: int, received_memory: int, outbox_memory: int) -> None:
    """The life of a worker process: answer until the owner is gone. The first message says where it works."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = Connection(connection)
    path, *parts = stored(Memory(job_memory))
    sys.path[:] = json.loads(bytes(path))  # the user's own modules are where the owner finds them
    received, outbox = Memory(received_memory).bytes, Memory(outbox_memory).bytes
    answering: Answering | None = None

    def send(message: Message) -> None:
        """Put a message into the outbox and say how long it is; one that is too long follows after that."""
        if message.size <= len(outbox):
            message.write_to(outbox)
        owner.send_bytes(message.size.to_bytes(8, "little"))
        if message.size > len(outbox):
            owner.send_bytes(bytes(message))

    with contextlib.suppress(EOFError, OSError):
        device, handles = torch.device(owner.recv_bytes().decode()), owner.recv_bytes()
        while True:
            message = owner.recv_bytes()
            try:
                answering = answering or Answering(restore(parts), device, lambda: _images(device, handles))
            except Exception as error:  # the user's own code could not be loaded here
                send(pack_error(RunError(f"a worker cannot load the run: {error}"), traceback.format_exc()))
            else:
                send(answering.answer(message, lambda: bytearray(received)))


def _images(device: torch.device, handles: bytes) -> Images | None:
    """The images where the owner has put them on a GPU; None on a CPU, where they are in the job's own memory."""
    if not handles:
        return None
    from fedetf.engines.gpu import seen

    if device.index is not None:  # plain "cuda" is the current one, and torch refuses to choose it
        torch.cuda.set_device(device)
    return seen(handles)
