"""The Ray engine: the same workers as actors, on as many machines as a cluster has."""

import logging
import os
import re
import socket
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # these three are read when it is imported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns about a change of its own
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")  # of 41 s each: its own 20 take a quarter of an hour

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from fedetf.core.state import State
from fedetf.engines.base import Engine, Tick
from fedetf.engines.dispatch import in_order
from fedetf.engines.forkserver import KEEP_MEMORY
from fedetf.engines.job import Job
from fedetf.engines.memory import flatten, restore
from fedetf.engines.placement import Placement
from fedetf.engines.private import PrivateStates
from fedetf.engines.processes import CPU, window
from fedetf.engines.serving import Answering
from fedetf.engines.steps import Result, Step
from fedetf.engines.wire import pack_model, pack_steps, unpack_results
from fedetf.errors import UserError
from fedetf.redact import public_address, redacted

PATIENCE = 3.0  # seconds without a result after which the cluster is looked at
Bytes = NDArray[np.uint8]


class RayEngine(Engine):
    """Steps run in Ray actors. Images and the received model are put into the object store once.

    An actor or a node that is lost takes its step with it; another actor does the step again. What clients keep stays
    with the driver, so that nothing of the run is lost with a node.
    """

    def __init__(self, job: Job, private: PrivateStates, placement: Placement, address: str | None):
        super().__init__(job, private)
        self._placement, self._asked = placement, placement.workers
        if not ray.is_initialized():
            _connect(address, placement.workers)
        self._job = ray.put([np.frombuffer(part, np.uint8) for part in flatten(job)])
        self._received: Any = None  # reference to the model that the current steps start from
        self._sent = 0
        self._limit = 1
        self._idle: list[Any] = []
        self._seen: set[Any] = set()  # actors that have answered, and so have a core
        self._busy: dict[Any, tuple[Any, int]] = {}  # reference to the result -> actor, place of its steps

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return CPU

    @property
    def placement(self) -> dict[str, Any]:
        """As many actors as the cluster had room for last."""
        return self._placement.to_json(range(self._limit))

    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """On as many actors as the cluster has cores by now."""
        self._received = ray.put(np.frombuffer(bytes(pack_model(received)), np.uint8))
        self._sent += 1
        self._limit = self._workers()
        return in_order(self, steps, *window(self._limit, len(steps), received, tick))

    def close(self) -> None:
        """End the actors. Ray itself stays for the next run, and ends with the program."""
        for actor in (*self._idle, *(actor for actor, _ in self._busy.values())):
            ray.kill(actor)
        self._idle.clear()
        self._busy.clear()

    # --- the crew, see dispatch.Crew ---

    def has_room(self) -> bool:
        """Whether an actor is free, or another can be started."""
        return bool(self._idle) or len(self._busy) < self._limit

    def give(self, place: int, steps: Sequence[Step]) -> None:
        """Send steps to a free actor."""
        actor = self._idle.pop() if self._idle else self._new_actor()
        message = pack_steps(steps, [self.private.load(step.client) for step in steps], self._sent)
        self._busy[actor.answer.remote(bytes(message), self._received)] = actor, place

    def _new_actor(self) -> Any:
        device = self._placement.devices[0]
        needs = {"num_gpus": self._share()} if device.type == "cuda" else {}
        return _Actor.options(**needs).remote(sys.path, self._job, str(device))  # type: ignore[attr-defined]  # Ray's

    def take(self) -> tuple[int, list[Result] | None]:
        """Wait for the next actor that is done, or lost."""
        done: list[Any] = []
        while not done:
            done, _ = ray.wait(list(self._busy), num_returns=1, timeout=PATIENCE)
            homeless = None if done else self._homeless()
            if homeless is not None:
                actor, place = self._busy.pop(homeless)
                ray.kill(actor)
                return place, None
        actor, place = self._busy.pop(done[0])
        try:
            message = ray.get(done[0])
        except ray.exceptions.RayError:
            self._limit = self._workers()  # the cores of a lost node are lost with it
            while self._idle:
                ray.kill(self._idle.pop())  # some may have been lost with it too; new ones are sure to live
            return place, None
        self._idle.append(actor)
        self._seen.add(actor)
        return place, unpack_results(bytearray(message))

    def _homeless(self) -> Any:
        """A step whose actor waits for a core that the cluster has lost, if there is one; another must do it."""
        self._limit = self._workers()
        if len(self._busy) + len(self._idle) <= self._limit:
            return None
        return next((step for step, (actor, _) in self._busy.items() if actor not in self._seen), None)

    def _workers(self) -> int:
        most = int(self._total("CPU"))
        if self._placement.devices[0].type == "cuda":
            most = min(most, int(self._total("GPU") / self._share() + 1e-6))
        return max(min(self._asked or most, most), 1)

    def _share(self) -> float:
        """What part of a GPU an actor asks for: so much that all of them have room, and no more than one."""
        gpus = self._total("GPU")
        return min(1.0, gpus / self._asked) if self._asked and gpus else 1.0

    @staticmethod
    def _total(kind: str) -> float:
        """What the living nodes of the cluster have of something."""
        return float(sum(node["Resources"].get(kind, 0) for node in ray.nodes() if node["Alive"]))


@ray.remote(num_cpus=1, runtime_env={"env_vars": KEEP_MEMORY})
class _Actor:
    """A worker in the cluster."""

    def __init__(self, path: list[str], job: list[Bytes], device: str):
        sys.path += [place for place in path if place not in sys.path]  # the user's own modules, where they are shared
        self._answering = Answering(restore(job), torch.device(device))

    def answer(self, message: bytes, received: Bytes) -> bytes:
        """Do some steps."""
        return bytes(self._answering.answer(message, lambda: bytearray(received)))


def _connect(address: str | None, workers: int | None) -> None:
    """Join the cluster at an address, or start Ray here. Whatever Ray raises meanwhile is the user's to fix."""
    here: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        _knock(address or "")
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    except Exception as error:  # Ray has no common class for them: a version mismatch is a plain RuntimeError
        ray.shutdown()  # it may be half way in, and would pass for initialised next time
        raise UserError(_complaint(error, address)) from None


def _knock(address: str) -> None:
    """See that somebody listens at an address: Ray itself finds out after minutes, with warnings of its own."""
    place = re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address)
    if place:
        socket.create_connection((place[1].strip("[]"), int(place[2])), timeout=10).close()


def _complaint(error: Exception, address: str | None) -> str:
    """Ray's error, which may have many lines, in one, and what to do."""
    reason = textwrap.shorten(str(error) or type(error).__name__, 400, placeholder=" …").rstrip(".")
    if address is None:
        return f"Ray does not start here: {reason}; fix that, or use --engine processes"
    shown = public_address(address)
    advice = "give engine.address the HOST:PORT of a running cluster, or leave it out to start Ray here"
    if "Version mismatch" in reason:
        advice = "install the cluster's versions here"
    return f"no Ray cluster to work with at {shown!r}: {redacted(reason.replace(address, shown))}; {advice}"
