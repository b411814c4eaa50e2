"""``fedetf.run``, ``resume``, ``compare`` and ``tune`` as people call them from Python: with progress, and Ctrl-C.

On a terminal and in a notebook they show how far they are, on standard error, from the moment they are called. Anywhere
else they are silent. Standard output stays the caller's.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeVar

from rich.console import Console

from fedetf import api
from fedetf.api import Result
from fedetf.comparison import run as comparison
from fedetf.federation import Federation, Listener
from fedetf.files import is_file
from fedetf.report.progress import LiveProgress, LiveRuns, PlainProgress, PlainRuns, make_runs_progress
from fedetf.runs.records import CONFIG
from fedetf.tuning import run as tuning

P = ParamSpec("P")
R = TypeVar("R")


class Loading(Listener):
    """Says that data is loaded, on a terminal, until the first that happens."""

    def __init__(self, console: Console):
        self._status = console.status("loading data")
        self._status.start()

    def features_done(self, done: int, total: int) -> None:
        """The data is there."""
        self.close()

    def started(self, federation: Federation) -> None:
        """The data is there."""
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        self._status.stop()


class NotebookProgress(PlainProgress):
    """One line that is written over again and again: what a notebook shows without widgets."""

    EVERY = 0.5  # seconds

    def __init__(self, stream: TextIO):
        super().__init__(Console(file=stream, force_jupyter=False))
        self._stream, self._length = stream, 0
        self._say("loading data")

    def close(self) -> None:
        """Leave the last line as it is."""
        self._stream.write("\n")

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line.ljust(self._length)}")
        self._stream.flush()
        self._length = len(line)


@contextmanager
def _watching(given: Sequence[Listener] | None) -> Iterator[Sequence[Listener]]:
    """The listeners of a call: its own, or if it gives none what shows a person how far it is."""
    shown = _for_people() if given is None else []
    try:
        yield given or shown
    finally:
        for listener in shown:
            listener.close()


def _for_people() -> Sequence[Loading | LiveProgress | NotebookProgress]:
    console = Console(stderr=True, highlight=False)
    if console.is_jupyter:
        return [NotebookProgress(sys.stderr)]
    return [Loading(console), LiveProgress(console)] if console.is_terminal else []


def _shown(work: Callable[P, Result]) -> Callable[P, Result]:
    """``run`` or ``resume`` with progress, and with a line that says how to go on after Ctrl-C."""
    signature = inspect.signature(work)

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        given = signature.bind_partial(*args, **kwargs).arguments
        with _watching(given.get("listeners")) as listeners:
            try:
                return work(*args, **{**kwargs, "listeners": listeners})  # type: ignore[arg-type]  # both take them
            except KeyboardInterrupt:
                raise KeyboardInterrupt(how_to_go_on(given)) from None

    return call


def how_to_go_on(given: Mapping[str, Any]) -> str:
    """One line about a run that was interrupted, by the arguments of its call."""
    folder = given.get("folder", given.get("out"))
    if folder is None:
        return "nothing was saved; with out='some/folder' a run can be resumed"
    if not is_file(Path(folder) / CONFIG):
        return "nothing was done yet"
    again = [name for name in ("data", "test", "method", "model") if not isinstance(given.get(name), (str, type(None)))]
    arguments = [repr(os.fspath(folder)), *(f"{name}=..." for name in again)]
    return f"what was done is saved; go on with: fedetf.resume({', '.join(arguments)})"


def _shown_runs(work: Callable[P, R]) -> Callable[P, R]:
    """``compare`` and ``tune``, likewise."""
    signature = inspect.signature(work)

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind_partial(*args, **kwargs).arguments
        shown = _runs_for_people() if given.get("progress") is None else None
        try:
            more = {} if shown is None else {"progress": shown}
            return work(*args, **{**kwargs, **more})  # type: ignore[arg-type]  # it takes that
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what is done is kept; the same call goes on with it") from None
        finally:
            if shown is not None:
                shown.close()

    return call


def _runs_for_people() -> LiveRuns | PlainRuns | None:
    console = Console(stderr=True, highlight=False)
    if console.is_jupyter:
        return PlainRuns(Console(file=sys.stderr, force_jupyter=False, highlight=False))
    return make_runs_progress(console) if console.is_terminal else None


run = _shown(api.run)
resume = _shown(api.resume)
compare = _shown_runs(comparison.compare)
tune = _shown_runs(tuning.tune)
