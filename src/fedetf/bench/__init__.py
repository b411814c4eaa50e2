"""``fedetf bench``: what this machine can do, and how near to it the engines come. Ratios, measured side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fedetf.bench.peers import PEERS
from fedetf.bench.rows import Row
from fedetf.bench.startup import start_up
from fedetf.bench.workload import skewed_job, training_job
from fedetf.core.state import State, WeightedMean
from fedetf.engines.base import Engine
from fedetf.engines.forkserver import cores
from fedetf.engines.job import Job
from fedetf.engines.make import make_engine
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Step, Trained
from fedetf.engines.worker import Worker
from fedetf.errors import RunError, UserError
from fedetf.federation import Federation
from fedetf.methods.fedetf import plain_loss
from fedetf.runs.checkpoints import Checkpoint

# Held while a benchmark measures: whatever else fills the cores of this machine should wait for it.
LOCK = Path(tempfile.gettempdir()) / "fedetf-bench.lock"

Pass = Callable[[], float]  # does a piece of work and returns the seconds it took
Measure = Callable[[float, int], list[Row]]


def bench(
    scale: float = 1.0, repeats: int = 5, say: Callable[[str], object] = bool, peers: bool = False
) -> dict[str, Any]:
    """Measure everything; ``scale`` makes the work smaller, ``say`` is told what is being measured.

    With ``peers``, measure other packages that are installed instead, beside the process engine.
    """
    rows: list[Row] = []
    everything: Sequence[tuple[str, Measure]] = (
        ("training on one core", _one_core),
        ("training on all cores", _all_cores),
        ("the finetuning stage", _finetuning),
        ("what surrounds training", _costs),
        ("ten to ten thousand clients", _clients),
        ("clients of one to a thousand images", _sizes),
        ("start-up", start_up),
    )
    for what, measure in [("other packages", partial(_peers, say))] if peers else everything:
        say(f"measuring {what}")
        rows += measure(scale, repeats)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {cores()} cores, torch {torch.__version__}",
        "rows": [dataclasses.asdict(row) for row in rows],
    }


# --- training ---------------------------------------------------------------------------------------------------------


def _one_core(scale: float, repeats: int) -> list[Row]:
    """FedAvg, ResNet-20, four clients with the same number of whole batches of 128."""
    work = training_job(scale)
    with ExitStack() as stack:
        contestants = {
            "bare loop, NCHW": stack.enter_context(_bare("nchw", scale)),
            "bare loop, channels_last": stack.enter_context(_bare("channels_last", scale)),
            "serial engine": stack.enter_context(_engine(_with(work, name="serial"))),
            "process engine, 1 worker": stack.enter_context(_engine(_with(work, name="processes", workers=1))),
        }
        plain = _with(work, name="processes", workers=1, compile=False)
        contestants["process engine, 1 worker, --no-compile"] = stack.enter_context(_engine(plain))
        seconds = _interleaved(contestants, repeats)
    images, limit = sum(map(len, work.partition.train)), "bare loop, channels_last"
    rows = [_speed(name, images, seconds, limit) for name in contestants]
    one = seconds["process engine, 1 worker"]
    over_nchw = _ratio(seconds["bare loop, NCHW"], one)
    return [*rows, Row("process engine, 1 worker", *_per_second(images, one), over_nchw, "bare loop, NCHW")]


def _all_cores(scale: float, repeats: int) -> list[Row]:
    """The same with 20 skewed clients (α = 0.1); and what several bare loops gain, the limit of the cores."""
    work = skewed_job(scale)
    one, several = "1 worker, 20 skewed clients", f"{cores()} workers, 20 skewed clients"
    engines = {one: {"name": "processes", "workers": 1}, several: {"name": "processes", "workers": cores()}}
    if find_spec("ray") is not None:
        engines["Ray, the same"] = {"name": "ray", "workers": cores()}
    alone, at_once = "1 bare loop, channels_last", f"{cores()} bare loops at once"
    with ExitStack() as stack:
        contestants = {name: stack.enter_context(_engine(_with(work, **e))) for name, e in engines.items()}
        loops = [stack.enter_context(_bare("channels_last", scale)) for _ in range(cores())]
        pool = stack.enter_context(ThreadPoolExecutor(cores()))
        limits = {alone: loops[0], at_once: lambda: max(pool.map(lambda loop: loop(), loops)) / cores()}
        seconds = _interleaved({**contestants, **limits}, max(repeats // 2, 2))
    images = sum(map(len, work.partition.train))
    bare_images = sum(map(len, training_job(scale).partition.train))
    rows = [_speed(name, images, seconds, one) for name in contestants]
    return [*rows, *(_speed(name, bare_images, seconds, alone) for name in limits)]


def _peers(say: Callable[[str], object], scale: float, repeats: int) -> list[Row]:
    """The same 20 skewed clients, by the process engine and by every peer that is installed."""
    if not any(peer.is_installed for peer in PEERS.values()):
        packages = ", ".join(peer.install for peer in PEERS.values())
        raise UserError(f"there is no other package to measure; install some of them beside fedetf: {packages}")
    work, turns, ours = skewed_job(scale), max(repeats // 2, 2), f"fedetf, {cores()} workers"
    with ExitStack() as stack:
        contestants = {ours: stack.enter_context(_engine(_with(work, name="processes", workers=cores())))}
        for name, peer in PEERS.items():
            if not peer.is_installed:
                say(f"{name} is not installed (pip install {peer.install})")
                continue
            for how, label in (("plain", f"{name}, as it comes"), ("tuned", f"{name}, {peer.tuned}")):
                once = stack.enter_context(_program("fedetf.bench.peers", name, how, str(scale), str(turns + 2)))
                try:
                    once()
                except RunError as error:
                    say(f"{label}: does not run here, {error}")
                else:
                    contestants[label] = once
        seconds = _interleaved(contestants, turns)
    images = sum(map(len, work.partition.train))
    return [_speed(name, images, seconds, ours) for name in contestants]


def _bare(layout: str, scale: float) -> AbstractContextManager[Pass]:
    return _program("fedetf.bench.bare", layout, str(scale))


@contextmanager
def _program(*arguments: str) -> Iterator[Pass]:
    """A program that does a pass for each line it is sent, and answers with the seconds."""
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def once() -> float:
            with contextlib.suppress(BrokenPipeError):  # it says nothing more, which is noticed next
                stdin.write("go\n")
                stdin.flush()
            answer = stdout.readline()
            if not answer:
                complaints.seek(0)
                raise RunError((complaints.read().strip().splitlines() or ["without a word"])[-1])
            return float(answer)

        try:
            yield once
        finally:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            stdout.close()


@contextmanager
def _engine(work: Job) -> Iterator[Pass]:
    engine = make_engine(work, PrivateStates())
    state = work.build_net().state_dict()
    clients = range(len(work.partition))

    def once() -> float:
        began = time.perf_counter()
        for _ in engine.train(clients, 1, state):
            pass
        return time.perf_counter() - began

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield once
    finally:
        torch.set_num_threads(before)
        engine.close()


def _interleaved(contestants: dict[str, Pass], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, taking turns so that whatever else the machine does touches all alike; the first is warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, once in contestants.items():
            took = once()
            if turn:
                seconds[name].append(took)
    return seconds


# --- the rest ---------------------------------------------------------------------------------------------------------


def _finetuning(scale: float, repeats: int) -> list[Row]:
    """FedETF's second stage on one client: turns of ETF and projection behind a frozen encoder."""
    work = training_job(scale / 4, clients=1, method__name="fedetf", train__batch_size=64)
    worker = Worker(work, torch.device("cpu"))
    received, turns = worker.job.build_net().state_dict(), 10

    def stage(reuse: bool) -> float:
        client = worker.client(0, 1, received, {}, epochs=1, lr=0.01)
        began = time.perf_counter()
        for _ in range(turns):
            for part in ("head.V", "head.projection"):
                client.train(plain_loss, [part, "head.beta"], lr=0.05, eval_frozen_encoder=reuse)
        return time.perf_counter() - began

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    slow, fast = "second finetuning stage, encoder run in each step", "second finetuning stage, features reused"
    seconds = _interleaved({slow: lambda: stage(False), fast: lambda: stage(True)}, max(repeats // 2, 2))
    torch.set_num_threads(before)
    return [_speed(name, 2 * turns * len(work.partition.train[0]), seconds, slow) for name in (slow, fast)]


def _costs(scale: float, repeats: int) -> list[Row]:
    """Aggregation, broadcast and a checkpoint, as shares of a ResNet-20 round on 2,000 images with all cores."""
    images = 2000
    work = _with(training_job(scale, clients=10, train__rounds=1), name="processes", workers=cores())
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(work, [list(range(10))], private=PrivateStates(Path(folder) / "clients"))
        began = time.perf_counter()
        results = federation.engine.train(range(10), 1, federation.server.state)
        uploads = [result.upload for result in results if isinstance(result, Trained)]
        next(federation.rounds())
        began = time.perf_counter()
        list(federation.engine.train(range(10), 1, federation.server.state))
        per_round = (time.perf_counter() - began) * images / sum(upload.images for upload in uploads)

        def aggregation() -> None:
            mean = WeightedMean()
            for upload in uploads:
                mean.add(upload.state, upload.samples)
            mean.result()

        def checkpoint() -> None:
            federation.private.sync()
            Checkpoint.of(federation).save(Path(folder))

        steps = {
            "aggregation of 10 clients": aggregation,
            "broadcast to all workers": lambda: _broadcast(federation.engine, federation.server.state),
            "checkpoint": checkpoint,
        }
        seconds = {name: statistics.median(_timed(step) for _ in range(2 * repeats)) for name, step in steps.items()}
        federation.engine.close()
    return [Row(name, 1000 * s, "ms", s / per_round, "round of 2,000 images") for name, s in seconds.items()]


def _broadcast(engine: Engine, state: State) -> None:
    """Send a model, and let every worker take it in and look at one image."""
    list(engine.results([Step("evaluate", 1, start=0, stop=1)] * cores(), state, bool))


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _clients(scale: float, _: int) -> list[Row]:
    """Seconds and peak memory of all processes as clients grow, on the same images."""
    rows, counts = [], [10, 100, 1000, 10_000]
    ways = (("10 take part, same batches each", "same", 10), ("all take part, images dealt out", "dealt", 1))
    for how, kind, rounds in ways:
        measured_by_count = {
            K: _in_process(K, kind, max(int(rounds * scale), 1), max(int(20_000 * scale), 10_000)) for K in counts
        }
        first = measured_by_count[counts[0]]
        for K, measured in measured_by_count.items():
            per_image = measured["seconds"] / measured["images"]
            ratio = per_image / (first["seconds"] / first["images"])
            rows.append(Row(f"{K:,} clients, {how}", 1e6 * per_image, "µs/image", ratio, "10 clients"))
            ratio = measured["bytes"] / first["bytes"]
            rows.append(Row(f"{K:,} clients, peak memory", measured["bytes"] / 2**20, "MiB", ratio, "10 clients"))
    return rows


def _sizes(scale: float, _: int) -> list[Row]:
    """What a client costs as it grows, all taking part; as many clients as make up a bounded number of images."""
    most = int(20_000 * scale)
    rows = []
    for size in (1, 10, 100, 1000):
        for K in (count for count in (100, 1000, 10_000) if count == 100 or size * count <= most):
            measured = _in_process(K, str(size), 1, max(most, 2 * size))
            name = f"{K:,} clients of {size:,} image{'' if size == 1 else 's'} each"
            rows.append(Row(f"{name}: a client", 1e3 * measured["seconds"] / K, "ms"))
    return rows


def _in_process(clients: int, kind: str, rounds: int, images: int) -> dict[str, float]:
    program = [sys.executable, "-m", "fedetf.bench.scale", kind, str(clients), str(rounds), str(images)]
    output = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    measured: dict[str, float] = json.loads(output)
    return measured


# --- numbers ----------------------------------------------------------------------------------------------------------


def _with(work: Job, **engine: object) -> Job:
    settings = work.settings.engine.model_copy(update={**engine, "device": "cpu"})
    return dataclasses.replace(work, settings=work.settings.model_copy(update={"engine": settings}))


def _speed(name: str, images: int, seconds: dict[str, list[float]], against: str) -> Row:
    ratio = None if name == against else _ratio(seconds[against], seconds[name])
    return Row(name, *_per_second(images, seconds[name]), ratio, against if ratio else "")


def _per_second(images: int, seconds: Sequence[float]) -> tuple[float, str]:
    return images / statistics.median(seconds), "images/s"


def _ratio(reference: Sequence[float], seconds: Sequence[float]) -> float:
    """How many times as fast: the median over turns, each compared with the reference of the same turn."""
    return statistics.median(a / b for a, b in zip(reference, seconds, strict=True))
