"""The run folder: settings, who held what, every round, checkpoints, models and the result."""

import contextlib
import itertools
import json
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from fedetf.core.state import load_checked, save_state
from fedetf.data import Partition
from fedetf.engines.job import Job
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Personal
from fedetf.errors import UserError
from fedetf.federation import Federation, Listener
from fedetf.files import (
    RECORD,
    UnfitFile,
    append,
    is_file,
    make_folder,
    parse_json,
    read_text,
    real_folder,
    remove,
    write_whole,
)
from fedetf.methods import Server
from fedetf.outcome import Outcome, Round, summary
from fedetf.redact import bare
from fedetf.runs.checkpoints import Checkpoint, files_of_newest, newest
from fedetf.runs.records import CONFIG, PARTITION, RESULT, ROUNDS, SCHEDULE, PersonalNote, fitting, mended_by_resume
from fedetf.settings import Settings

LOCK = ".lock"
CLIENTS = "clients"  # what clients keep between rounds
CLASSIFIERS = "classifiers.safetensors"  # of every client after the last round, where they were measured
OPTIONAL = ("general", "validation", "measures", "completed", "refused", "missing")  # of a round; left out if empty


def default_folder(settings: Settings, what: str) -> Path:
    """``runs/<dataset>-<what>-s<seed>-<time>``; for a run, what is the method. The next of that second is ``…-2``."""
    parts = file_name(settings.data.name), file_name(what), f"s{settings.seed}", time.strftime("%Y%m%d-%H%M%S")
    names = ("-".join(parts) + (f"-{number}" if number > 1 else "") for number in itertools.count(1))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def file_name(name: str) -> str:
    """A dataset's or method's name, which may be a path, as part of a file's name."""
    return re.sub(r"[^\w.=-]+", "-", Path(name).name)


def check_free(path: Path) -> None:
    """Refuse a folder that holds something: nothing is overwritten silently."""
    if path.exists() and (not path.is_dir() or any(map(_is_content, path.iterdir()))):
        go_on = f"; to go on with it: fedetf resume {path}" if is_file(path / CONFIG) else ""
        raise UserError(f"{path} exists already and is not overwritten; give another --out, or remove it{go_on}")


def _is_content(path: Path) -> bool:
    """Whether it is more than what a crash in a first moment can leave."""
    return path.name != LOCK and path.suffix != ".part"


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Make sure that nobody else works in a run folder."""
    if path is None:
        yield
        return
    make_folder(path)
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another process is working in {path}; wait until it is done") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone, or not ours to write to any more
            remove(path / LOCK)
        lock.release()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait until a write is done."""
    if threading.current_thread() is not threading.main_thread():  # signals are not delivered to it anyway
        yield
        return
    delayed: list[int] = []
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    signals = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, lambda number, _: delayed.append(number)) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if delayed:
            signal.raise_signal(delayed[0])


class RunFolder(Listener):
    """Writes a run folder as the run goes on. Files are whole or absent, and rounds.jsonl grows by whole lines."""

    def __init__(self, path: Path, job: Job):
        self.path = path
        self._job = job  # as it was prepared; the federation's may be one over features

    def started(self, federation: Federation) -> None:
        """Write what is known before the first round, or what a run that was cut short had reached."""
        self._federation = federation
        make_folder(self.path)
        if not is_file(self.path / CONFIG):  # another engine may go on with a run, but its settings stay
            self._write(CONFIG, federation.job.settings.to_toml(), private=True)
        make_folder(real_folder(self.path / "checkpoints"))
        self._write(PARTITION, federation.job.partition.to_json())
        self._write(SCHEDULE, json.dumps(federation.schedule))
        self._write(ROUNDS, "".join(map(_line, federation.records)))

    def round_done(self, record: Round, server: Server) -> None:
        """Append the round and, when it is time, write a checkpoint."""
        with undisturbed():
            append(self.path / ROUNDS, _line(record).encode())
            every, over = self._federation.job.settings.engine.checkpoint, self._federation.is_over
            if over and self._federation.measurer.classifiers:
                vectors = {str(client): tensor for client, tensor in self._federation.measurer.classifiers.items()}
                self._save(vectors, CLASSIFIERS)
            if record.round % every == 0 or over:
                private = self._federation.private
                private.sync()
                Checkpoint.of(self._federation).save(self.path / "checkpoints")
                private.checkpoint_written()

    def personal_done(self, personal: Personal) -> None:
        """Keep a client's personal model, if it is here: that of a real site stays there."""
        if not personal.state:
            return
        make_folder(real_folder(self.path / "personal"))
        reached: dict[str, Any] = {"client": personal.client, "accuracy": personal.accuracy, "curve": personal.curve}
        reached |= {"epochs": personal.epochs, **({"measures": personal.measures} if personal.measures else {})}
        reached |= {} if personal.validation is None else {"validation": personal.validation}
        self._save(personal.state, _personal(personal.client), reached, sync=False)

    def finished(self, outcome: Outcome) -> None:
        """Write the final model and, last of all, the result."""
        with undisturbed():
            self._save(outcome.model, "model.safetensors")
            self._write(RESULT, json.dumps(summary(self._federation.job, outcome), indent=2) + "\n", private=True)

    def _save(
        self, state: Mapping[str, Tensor], name: str, more: Mapping[str, Any] | None = None, sync: bool = True
    ) -> None:
        more = more or {}
        save_state(state, self.path / name, {**about_model(self._job, more.get("client")), **more}, sync)

    def _write(self, name: str, text: str, private: bool = False) -> None:
        """Write a text; it is private if it can name folders of this machine."""
        write_whole(self.path / name, text.encode(), private=private)


def about_model(job: Job, client: int | None = None) -> dict[str, Any]:
    """What a model's file says of it, the global one's or a client's: origin, what it takes, names of its classes."""
    settings, x = job.settings, job.dataset.train.x
    origin = {"method": settings.method.name, "model": settings.model.name, "dataset": bare(settings.data.name)}
    note, shape, dtype = job.dataset.note, job.dataset.shape, x.dtype
    if job.dataset.own and client is not None:  # data.fit = "own"
        note = job.dataset.own[client]
        shape, dtype = note.shape, note.dtype
    inputs = {"shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
    read = {} if note is None else {"inputs": note.model_dump(exclude_defaults=True) | {"kind": note.kind}}
    sites = {"sites": job.partition.sites} if job.partition.sites else {}
    plain = note is None and not sites  # a file about images that were dealt out stays as it was, to the byte
    who = {} if plain else {"held_out": job.dataset.held_out, **sites}
    return {**origin, **inputs, **read, **who, "classes": job.dataset.classes}


def check_same_partition(path: Path, partition: Partition) -> None:
    """Refuse to go on with a run on other data than it was begun with."""
    written = path / PARTITION
    with mended_by_resume(written):
        if not is_file(written) or (text := read_text(written, RECORD)) == partition.to_json():
            return
        parse_json(text, str(written))  # a damaged file says nothing about the data
    raise UserError(f"the data are not those that {path} was made with: its {PARTITION} differs")


def last_attempt(path: Path, clients: int, private: PrivateStates) -> Checkpoint | None:
    """How far the run in a folder came; None if not even one round is done."""
    checkpoint = newest(real_folder(path / "checkpoints"), private)
    if checkpoint is not None:
        done = (_personal_done(path, client) for client in range(clients))
        checkpoint.personals = {personal.client: personal for personal in done if personal is not None}
    return checkpoint


def needed_to_go_on(path: Path) -> list[Path]:
    """The files that the run in a folder goes on from, besides its settings; none before the first checkpoint.

    Personal models that are there already are not among them: they can be large, and are made again to the same bits.
    """
    files = files_of_newest(real_folder(path / "checkpoints"), PrivateStates(path / CLIENTS))
    return [*files, *([path / CLASSIFIERS] if files and is_file(path / CLASSIFIERS) else [])]


def _personal_done(path: Path, client: int) -> Personal | None:
    file = path / _personal(client)
    try:
        about, _ = load_checked(file)
        note = fitting(PersonalNote, about, str(file))
        return Personal(client, note.accuracy, note.curve, note.epochs, {}, note.measures, note.validation)
    except (UnfitFile, OSError):  # absent, or cut short when the machine went down: it is made again
        return None


def _personal(client: int) -> str:
    return f"personal/{client}.safetensors"


def _line(record: Round) -> str:
    """A round as rounds.jsonl has it."""
    return json.dumps(round_line(record)) + "\n"


def round_line(record: Round) -> dict[str, Any]:
    """A round as rounds.jsonl has it: what is empty is left out."""
    line = dict(vars(record))
    del line["trained"]  # all participants, once the round is done
    if record.completed is not None:
        line["completed"] = _there(vars(record.completed))
    optional = {name: line.pop(name) for name in OPTIONAL}
    return {**line, **_there(optional)}


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value or value == 0}
