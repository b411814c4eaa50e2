"""What clients keep between rounds: on disk, many clients to a file, read when a client's turn comes."""

import contextlib
import itertools
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fedetf.core.state import State, load_checked, load_state, nbytes
from fedetf.core.vectors import packed
from fedetf.engines.pages import NAME, Page, page_path, round_of, write_page
from fedetf.files import UnfitFile, is_file, make_folder, matching, real_folder, remove, sync

ENOUGH = 32 * 2**20  # bytes of states that make one file
OPEN = 64  # files that stay mapped
OWN_FILE = re.compile(r"\d+-\d{5,}\.safetensors(\.part)?")  # of one client and a round, as version 0.1.0 wrote them

Key = tuple[int, int]  # a client, and the round in which it kept something


class PrivateStates:
    """The private state of every client that has one.

    What is kept in a round goes into files of that round, so that it never overwrites what an earlier checkpoint still
    needs. A file that less than half of its clients need is written anew for these. Without a folder the files are in a
    temporary one, and no checkpoint needs them.
    """

    def __init__(self, folder: Path | None = None):
        self._temporary = folder is None
        self.folder = real_folder(folder or Path(tempfile.mkdtemp(prefix="fedetf-")))
        if self._temporary:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.rounds: dict[int, int] = {}  # client -> round of the state that counts
        self._waiting: dict[int, State] = {}  # by client: not written yet, all of the same round
        self._round, self._bytes = 0, 0  # of what waits
        self._files: dict[Key, Path] = {}
        self._held: dict[Path, int] = {}  # how many states are in each
        self._unsynced: list[Path] = []
        self._last: set[Key] = set()  # what the checkpoints so far need
        self._pages: dict[Path, Page] = {}

    def load(self, client: int) -> State:
        """What a client kept; empty before its first round."""
        if client not in self.rounds:
            return {}
        round = self.rounds[client]
        waits = client in self._waiting and round == self._round
        return dict(self._waiting[client]) if waits else self._read((client, round))

    def keep(self, client: int, round: int, state: State) -> None:
        """Make ``state`` what the client keeps from ``round`` on."""
        if not state:
            return
        if round != self._round:
            self._write()
        self._waiting[client] = packed(
            {name: tensor.cpu() for name, tensor in state.items()}
        )  # not all that it came in
        self._round, self._bytes = round, self._bytes + nbytes(state)
        self.rounds[client] = round
        if self._bytes >= ENOUGH:
            self._write()

    def sync(self) -> None:
        """Wait until all that clients keep is on the disk: a checkpoint that names it may follow."""
        self._write()
        for path in self._unsynced:
            sync(path)
        self._unsynced.clear()

    def checkpoint_written(self) -> None:
        """Remove what neither the new checkpoint nor the one before it needs."""
        now = set(self.rounds.items())
        self._tidy(now | self._last)
        self._last = now

    def check(self, rounds: Mapping[int, int]) -> None:
        """Raise whatever is wrong with the files that a checkpoint names."""
        for path in self.files(rounds):
            load_checked(path)

    def files(self, rounds: Mapping[int, int]) -> list[Path]:
        """The files that hold what a checkpoint names by client and round."""
        return sorted({self._file(key) for key in rounds.items()})

    def remove_others(self, needed: Collection[Key]) -> None:
        """Remove what a run that was cut short left behind; ``needed`` are the (client, round) of its checkpoints."""
        self._last = set(needed)
        kept = {self._file(key) for key in needed}
        for path in (*matching(self.folder, NAME), *matching(self.folder, OWN_FILE)):
            if path not in kept:
                self._remove(path)
        self._files = {key: path for key, path in self._files.items() if path in kept}

    def _file(self, key: Key) -> Path:
        """Where a state is; what was written before this program ran is found by what the files say."""
        if key in self._files:
            return self._files[key]
        client, round = key
        own = self.folder / f"{client}-{round:05d}.safetensors"
        if is_file(own):
            self._note(own, round, [client])
        else:
            self._look_around()
        if key not in self._files:
            raise UnfitFile(f"{self.folder} has no whole file with what client {client} kept in round {round}")
        return self._files[key]

    def _look_around(self) -> None:
        for path in matching(self.folder, NAME):
            if path not in self._held and path.suffix == ".safetensors":
                with contextlib.suppress(UnfitFile):  # whoever needs it misses it
                    self._note(path, round_of(path), Page(path).names)

    def _note(self, path: Path, round: int, clients: Collection[int]) -> None:
        """Remember what is in a file."""
        self._files |= {(client, round): path for client in clients}
        self._held[path] = len(clients)

    def _read(self, key: Key) -> State:
        path = self._file(key)
        if OWN_FILE.fullmatch(path.name):
            return load_state(path)
        if path not in self._pages:
            if len(self._pages) == OPEN:
                self._pages.clear()
            self._pages[path] = Page(path)
        return self._pages[path].state(key[0])

    def _write(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        path = self._new(self._round, self._waiting, sync=False)
        self._waiting, self._bytes = {}, 0
        if self._temporary:
            self._tidy(set(self.rounds.items()))
        else:
            self._unsynced.append(path)

    def _new(self, round: int, states: Mapping[int, State], sync: bool) -> Path:
        """A new file with states of a round."""
        make_folder(self.folder)
        paths = (page_path(self.folder, round, number) for number in itertools.count())
        path = next(path for path in paths if not is_file(path))
        write_page(states, path, sync)
        self._note(path, round, states)
        return path

    def _tidy(self, needed: Iterable[Key]) -> None:
        """Let go of all but the needed states."""
        wanted: dict[Path, list[Key]] = {}
        for key in needed:
            wanted.setdefault(self._file(key), []).append(key)
        for path, number in list(self._held.items()):
            keys = wanted.get(path, [])
            if keys and 2 * len(keys) < number:
                self._new(keys[0][1], {key[0]: self._read(key) for key in keys}, sync=True)
            if 2 * len(keys) < number:
                self._remove(path)
        self._files = {key: self._files[key] for keys in wanted.values() for key in keys}

    def _remove(self, path: Path) -> None:
        self._pages.pop(path, None)
        self._held.pop(path, None)
        remove(path)
