"""Checkpoints: all that a run needs to go on as if it had never stopped.

The random streams have no position that would have to be saved: each is a function of seed, purpose, round and client.
"""

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Personal
from fedetf.errors import UserError
from fedetf.federation import Federation, Round
from fedetf.state import State, load_checked, save_state

KEPT = 2  # so many of the newest; the one before the last is there in case that is damaged


@dataclass
class Checkpoint:
    """A run after one of its rounds."""

    server: State  # what clients receive
    own: State  # what the server keeps to itself
    clients: dict[int, int]  # client -> round of its private state
    records: list[dict[str, Any]]  # the rounds, less the participants, whom the schedule names
    train_seconds: float
    personals: dict[int, Personal] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, federation: Federation) -> "Checkpoint":
        """The run as it is now."""
        records = [_less_participants(record) for record in federation.records]
        server, private = federation.server, federation.private
        return cls(server.state, server.own, private.rounds, records, federation.train_seconds)

    def put_into(self, federation: Federation) -> None:
        """Let a new federation be where this one was."""
        device = federation.engine.device
        federation.server.state.update({name: tensor.to(device) for name, tensor in self.server.items()})
        federation.server.own.update({name: tensor.to(device) for name, tensor in self.own.items()})
        federation.server.round = len(self.records)
        federation.private.rounds.update(self.clients)
        federation.train_seconds = self.train_seconds
        for record, participants in zip(self.records, federation.schedule, strict=False):
            by_client = {
                name: {int(client): why for client, why in record.get(name, {}).items()}
                for name in ("refused", "missing")
            }
            federation.records.append(Round(**{**record, "participants": participants, **by_client}))
        federation.personals.update(self.personals)

    def save(self, folder: Path) -> None:
        """Write it, and remove those that are older than the last two."""
        tensors = {f"server/{name}": t for name, t in self.server.items()}
        tensors |= {f"own/{name}": t for name, t in self.own.items()}
        about = {"clients": self.clients, "records": self.records, "train_seconds": self.train_seconds}
        path = folder / f"round-{len(self.records):05d}.safetensors"
        save_state(tensors, path, about)
        for old in _paths(folder)[KEPT:]:
            old.unlink()


def newest(folder: Path, private: PrivateStates) -> Checkpoint | None:
    """The newest checkpoint that is whole, with a warning for each that is not; None if there is none.

    What a run that was cut short could not remove any more is removed: checkpoints older than the last two, and files
    of clients that none needs.
    """
    found: dict[Path, Checkpoint] = {}
    paths = _paths(folder)
    for path in paths:
        try:
            checkpoint = _load(path)
            private.check(checkpoint.clients)
            found[path] = checkpoint
        except Exception as error:  # whatever a damaged file can do to the libraries that read it
            reason = str(error).split("\n")[0]
            warnings.warn(f"{path} is damaged ({reason}); going on from the one before", stacklevel=2)
    if paths and not found:
        raise UserError(f"no checkpoint in {folder} can be read; to begin anew, remove the folder of the run")
    for old in list(found)[KEPT:]:
        old.unlink()
        del found[old]
    if found:
        private.remove_others({pair for checkpoint in found.values() for pair in checkpoint.clients.items()})
    return next(iter(found.values()), None)


def _load(path: Path) -> Checkpoint:
    about, tensors = load_checked(path)
    parts: dict[str, State] = {"server": {}, "own": {}}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        parts[part][name] = tensor
    clients = {int(client): round for client, round in about["clients"].items()}
    return Checkpoint(parts["server"], parts["own"], clients, about["records"], about["train_seconds"])


def _paths(folder: Path) -> list[Path]:
    """The checkpoints, the newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def _less_participants(record: Round) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    del fields["participants"]
    return fields
