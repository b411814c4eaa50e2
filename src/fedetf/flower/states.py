"""What clients keep between rounds, when they are real sites: it stays there, and the server knows its round."""

import re
from pathlib import Path

from fedetf.core.state import State, load_checked, save_state
from fedetf.engines.private import PrivateStates
from fedetf.errors import RunError
from fedetf.files import is_file, matching, move, remove

PENDING, ACCEPTED = (re.compile(rf"{kind}-\d{{5,}}\.safetensors") for kind in ("round", "accepted"))
KEPT = 2  # accepted states: the server may go back to its last checkpoint but one


class RoundsOnly(PrivateStates):
    """The server's side: of which round a client's private state is, and nothing of its content."""

    def __init__(self) -> None:
        self.rounds: dict[int, int] = {}

    def load(self, client: int) -> State:
        """It is not here."""
        return {}

    def keep(self, client: int, round: int, state: State) -> None:
        """The client's update of ``round`` was folded in: what it kept then counts from now on."""
        self.rounds[client] = round

    def sync(self) -> None:
        """A site has written its state before it answers."""

    def checkpoint_written(self) -> None:
        """A site clears up by itself."""

    def check(self, rounds: object) -> None:
        """A site checks its own."""

    def remove_others(self, needed: object) -> None:
        """A site clears up by itself."""


class KeptStates:
    """A site's side: one file a round, ``round-*``, that counts only when the server says that it accepted that round.

    It then becomes ``accepted-*``. So a crash, a lost answer, a refused update or a process that writes too late leaves
    the site where the server believes it to be.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def load(self, accepted: int, needed: bool) -> State:
        """What was kept in the round ``accepted``; if the method keeps something, it must be there."""
        path = self._path("accepted", accepted)
        if accepted == 0 or (not needed and not is_file(path)):
            return {}
        try:
            return load_checked(path)[1]
        except Exception as error:  # absent, or whatever a damaged file can do to the libraries that read it
            raise RunError(
                f"the private state of round {accepted} cannot be read ({error}); bring {path} back, or begin a new run"
            ) from error

    def write(self, round: int, state: State) -> None:
        """Keep ``state`` until it is known whether it counts."""
        if state:
            save_state(state, self._path("round", round), {"round": round})

    def settle(self, accepted: int) -> None:
        """Remove older rounds that were not accepted, and all but the last two that were. What is newer stays."""
        pending, counts = self._path("round", accepted), self._path("accepted", accepted)
        if is_file(pending):
            move(pending, counts)
        refused = [path for path in matching(self.folder, PENDING) if path < pending]
        counted = [path for path in matching(self.folder, ACCEPTED) if path <= counts]
        for path in refused + counted[:-KEPT]:
            remove(path)

    def _path(self, kind: str, round: int) -> Path:
        return self.folder / f"{kind}-{round:05d}.safetensors"
