"""Checkpoints: all that a run needs to go on as if it had never stopped.

The random streams have no position that would have to be saved: each is a function of seed, purpose, round and client.
"""

import dataclasses
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel

from fedetf.core.state import State, load_checked, save_state
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Personal
from fedetf.errors import UserError
from fedetf.federation import Federation
from fedetf.files import UnfitFile, matching, remove
from fedetf.outcome import Round
from fedetf.runs.records import Count, Number, fitting

NAME = re.compile(r"round-\d{5,}\.safetensors")
KEPT = 2  # the newest; the one before the last is there in case that is damaged


@dataclass
class Checkpoint:
    """A run after one of its rounds."""

    server: State  # what clients receive
    own: State  # what the method keeps at the server
    memory: State  # what the server's optimiser remembers
    clients: dict[int, int]  # client -> round of its private state
    records: list[Round]  # the rounds, less the participants, whom the schedule names
    train_seconds: float
    personals: dict[int, Personal] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, federation: Federation) -> "Checkpoint":
        """The run as it is now."""
        server, private = federation.server, federation.private
        return cls(
            server.state, server.own, server.memory, private.rounds, federation.records, federation.train_seconds
        )

    def put_into(self, federation: Federation) -> None:
        """Let a new federation be where this one was."""
        device = federation.engine.device
        server = federation.server
        for saved, current in ((self.server, server.state), (self.own, server.own), (self.memory, server.memory)):
            if _form(saved) != _form(current) or len(self.records) > len(federation.schedule):
                raise UserError("the checkpoint is of another run: its tensors or rounds are not those of config.toml")
            current.update({name: tensor.to(device) for name, tensor in saved.items()})
        server.round = len(self.records)
        federation.private.rounds.update(self.clients)
        federation.train_seconds = self.train_seconds
        for record, participants in zip(self.records, federation.schedule, strict=False):
            federation.records.append(dataclasses.replace(record, participants=participants))
        federation.personals.update(self.personals)

    def save(self, folder: Path) -> None:
        """Write it, and remove those that are older than the last two."""
        tensors = {f"server/{name}": t for name, t in self.server.items()}
        tensors |= {f"own/{name}": t for name, t in self.own.items()}
        tensors |= {f"memory/{name}": t for name, t in self.memory.items()}
        records = [_less_participants(record) for record in self.records]
        about = {"clients": self.clients, "records": records, "train_seconds": self.train_seconds}
        path = folder / f"round-{len(self.records):05d}.safetensors"
        save_state(tensors, path, about)
        for old in _paths(folder)[KEPT:]:
            remove(old)


class CheckpointNote(BaseModel):
    """What a checkpoint's file says besides its tensors."""

    clients: dict[Count, Count]
    records: list[dict[str, Any]]
    train_seconds: Number


class Records(RootModel[list[Round]]):
    """The rounds of a checkpoint."""


def newest(folder: Path, private: PrivateStates) -> Checkpoint | None:
    """The newest checkpoint that is whole, with a warning for each that is not; None if there is none.

    What a run that was cut short could not remove any more is removed: checkpoints older than the last two, and files
    of clients that none needs.
    """
    readable = _whole(folder, private)
    if _paths(folder) and not readable:
        raise UserError(f"no checkpoint in {folder} can be read; to begin anew, remove the folder of the run")
    for old in list(readable)[KEPT:]:
        remove(old)
        del readable[old]
    if readable:
        private.remove_others({pair for checkpoint in readable.values() for pair in checkpoint.clients.items()})
    return next(iter(readable.values()), None)


def files_of_newest(folder: Path, private: PrivateStates) -> list[Path]:
    """The file of the newest checkpoint that is whole, and those of clients that it names; nothing is removed."""
    readable = _whole(folder, private).items()
    return next(([path, *private.files(checkpoint.clients)] for path, checkpoint in readable), [])


def _whole(folder: Path, private: PrivateStates) -> dict[Path, Checkpoint]:
    """The checkpoints that can be used, the newest first, with a warning for each that cannot."""
    readable: dict[Path, Checkpoint] = {}
    for path in _paths(folder):
        try:
            checkpoint = _load(path)
            private.check(checkpoint.clients)
            readable[path] = checkpoint
        except (UnfitFile, OSError) as error:
            warnings.warn(f"{path} cannot be used ({error}); going on from the one before", stacklevel=3)
    return readable


def _load(path: Path) -> Checkpoint:
    about, tensors = load_checked(path)
    parts: dict[str, State] = {"server": {}, "own": {}, "memory": {}}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    note = fitting(CheckpointNote, about, str(path))
    records = fitting(Records, [{**record, "participants": []} for record in note.records], str(path)).root
    return Checkpoint(parts["server"], parts["own"], parts["memory"], note.clients, records, note.train_seconds)


def _paths(folder: Path) -> list[Path]:
    """The checkpoints, the newest first."""
    return matching(folder, NAME)[::-1]


def _form(state: State) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.dtype, *tensor.shape) for name, tensor in state.items()}


def _less_participants(record: Round) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    del fields["participants"]
    return fields
