"""The page of runs that go on: made anew whenever a run folder has changed."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from fedetf.errors import UserError
from fedetf.files import stamp
from fedetf.report.groups import Arrangement, arrange
from fedetf.report.page import About, render
from fedetf.runs.commands import COMMAND
from fedetf.runs.read import Problem, Run, gather, is_done, read_run, read_so_far, run_folders
from fedetf.runs.records import CONFIG, ERROR, PARTITION, RESULT, ROUNDS

Stamps = tuple[tuple[int, int] | None, ...]  # of a run folder's files: other content, other stamps


class LivePage:
    """The page about all runs in some folders, and its version.

    One thread calls :meth:`look` again and again; any number of others take :attr:`page` and :meth:`wait` for the next.
    """

    def __init__(self, folders: Sequence[Path]):
        self._folders = folders
        self._stamps: dict[Path, Stamps] | None = None
        self._known: dict[Path, tuple[Stamps, Run]] = {}
        self._news = threading.Condition()
        self.page, self.version = b"", ""

    def look(self) -> None:
        """Make the page anew if anything has changed."""
        stamps = {folder: _stamps(folder) for given in self._there() for folder in _run_folders(given)}
        if stamps == self._stamps:
            return
        page = self._rendered().encode()
        with self._news:
            self.page, self.version = page, hashlib.sha256(page).hexdigest()[:16]
            self._news.notify_all()
        self._stamps = stamps  # what was written meanwhile has other ones, and is seen next time

    def end(self) -> None:
        """There will be no other version, and nobody waits for one."""
        with self._news:
            self.version = ""
            self._news.notify_all()

    def wait(self, version: str, seconds: float) -> str:
        """The version now, empty at the end; it waits so long for another one than ``version``."""
        with self._news:
            self._news.wait_for(lambda: self.version != version, seconds)
            return self.version

    def _there(self) -> list[Path]:
        """The folders that exist: one may be removed and made again."""
        return [folder for folder in self._folders if folder.is_dir()]

    def _rendered(self) -> str:
        runs, left_out = self._gathered()
        if runs:
            arranged = arrange(runs)
            return render(arranged, [*left_out, *arranged.doubles], live=True)
        named = ", ".join(folder.name for folder in self._folders)
        waiting = About("No run yet", [f"Waiting for the first round of a run in {named}."])
        return render(Arrangement([], [""], [], [], {}), left_out, waiting, live=True)

    def _gathered(self) -> tuple[list[Run], list[Problem]]:
        try:
            return gather(self._there(), self._read)
        except UserError:  # no run in any of them
            return [], []

    def _read(self, folder: Path) -> Run:
        """A run, done or not; what has not changed since it was last read is not read again."""
        stamps = _stamps(folder)
        known = self._known.get(folder)
        if known is None or known[0] != stamps:
            read: Callable[[Path], Run] = read_run if is_done(folder) else read_so_far
            known = self._known[folder] = stamps, read(folder)
        return known[1]


def _run_folders(given: Path) -> list[Path]:
    try:
        return list(run_folders(given))
    except (UserError, OSError):  # it is just being removed
        return []


def _stamps(folder: Path) -> Stamps:
    inside = (folder / name for name in (CONFIG, PARTITION, ROUNDS, RESULT, ERROR))
    return tuple(stamp(path) for path in (*inside, folder.parent / COMMAND))
