"""Many clients' states in one file, of which each can be read alone."""

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedetf.core.state import State, save_state
from fedetf.files import TENSORS, UnfitFile, checked

NAME = re.compile(r"kept-(\d{5,})-\d+\.safetensors(\.part)?")  # a round, and a number


def page_path(folder: Path, round: int, number: int) -> Path:
    """The name of a file with what clients kept in a round."""
    return folder / f"kept-{round:05d}-{number}.safetensors"


def round_of(path: Path) -> int:
    """The round in a file's name."""
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def write_page(states: Mapping[int, State], path: Path, sync: bool) -> None:
    """Write the states of some clients; a crash never leaves half a file."""
    tensors = {f"{client}/{name}": tensor for client, state in states.items() for name, tensor in state.items()}
    save_state(tensors, path, {"round": round_of(path)}, sync)


class Page:
    """Such a file, mapped into memory: what is read of it is what is asked for."""

    def __init__(self, path: Path):
        self._path = path
        self.names: dict[int, list[str]] = {}  # of the tensors of each client
        try:
            self._file = safe_open(checked(path, TENSORS), framework="pt")
            for name in self._file.keys():  # noqa: SIM118  # it is no dict
                self.names.setdefault(int(name.partition("/")[0]), []).append(name)
        except (SafetensorError, TypeError, ValueError) as error:
            raise UnfitFile(f"{path} is damaged: {str(error).splitlines()[0]}") from None

    def state(self, client: int) -> State:
        """What one client kept."""
        try:
            return {name.partition("/")[2]: self._file.get_tensor(name) for name in self.names[client]}
        except SafetensorError as error:
            raise UnfitFile(f"{self._path} is damaged: {str(error).splitlines()[0]}") from None
