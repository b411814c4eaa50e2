"""What clients keep between rounds: on disk, one file for each client, read when the client's turn comes."""

import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path

from fedetf.core.state import State, load_checked, load_state, save_state
from fedetf.files import make_folder, matching, real_folder, remove, sync

NAME = re.compile(r"\d+-\d{5,}\.safetensors(\.part)?")  # a client, and a round


class PrivateStates:
    """The private state of every client that has one.

    A file's name tells the client and the round, so that what a client keeps never overwrites what an earlier
    checkpoint still needs. Without a folder they live in a temporary one, and only the last of each client.
    """

    def __init__(self, folder: Path | None = None):
        self._temporary = folder is None
        self.folder = real_folder(folder or Path(tempfile.mkdtemp(prefix="fedetf-")))
        if self._temporary:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.rounds: dict[int, int] = {}  # client -> round of the file that counts
        self._unsynced: list[Path] = []
        self._replaced: list[Path] = []  # since the last checkpoint, which may still need them
        self._stale: list[Path] = []  # needed by the checkpoint before that only

    def load(self, client: int) -> State:
        """What a client kept; empty before its first round."""
        return load_state(self._path(client, self.rounds[client])) if client in self.rounds else {}

    def keep(self, client: int, round: int, state: State) -> None:
        """Make ``state`` what the client keeps from ``round`` on."""
        if not state:
            return
        make_folder(self.folder)
        path = self._path(client, round)
        save_state(state, path, {"client": client, "round": round}, sync=False)
        if client in self.rounds:
            self._replaced.append(self._path(client, self.rounds[client]))
        self.rounds[client] = round
        if self._temporary:
            self._remove(self._replaced)
        else:
            self._unsynced.append(path)

    def sync(self) -> None:
        """Wait until all that clients keep is on the disk: a checkpoint that names it may follow."""
        for path in self._unsynced:
            sync(path)
        self._unsynced.clear()

    def checkpoint_written(self) -> None:
        """Remove the files that neither the new checkpoint nor the one before it needs."""
        self._remove(self._stale)
        self._stale, self._replaced = self._replaced, self._stale

    def check(self, rounds: Mapping[int, int]) -> None:
        """Raise whatever is wrong with the files that a checkpoint names."""
        for path in self.files(rounds):
            load_checked(path)

    def files(self, rounds: Mapping[int, int]) -> list[Path]:
        """The files that a checkpoint names by client and round."""
        return [self._path(client, round) for client, round in rounds.items()]

    def remove_others(self, needed: Collection[tuple[int, int]]) -> None:
        """Remove what a run that was cut short left behind; ``needed`` are the (client, round) of its checkpoints."""
        kept = {self._path(client, round).name for client, round in needed}
        for path in matching(self.folder, NAME):
            if path.name not in kept:
                remove(path)

    def _path(self, client: int, round: int) -> Path:
        return self.folder / f"{client}-{round:05d}.safetensors"

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            remove(path)
        paths.clear()
