"""Errors that reach the user as one line, without a traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The message is one line and says what to do; the command line prints it and exits with 2."""


def unknown(kind: str, name: str, known: Iterable[str], also: str = "") -> UserError:
    """An error for a name that does not exist, with the nearest one, all that do, and what else could be given."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {kind} {name!r}; {hint}choose from: {', '.join(names)}{also and f', or {also}'}")


LONGEST = 500  # characters of a line that quotes others


def printable(text: str) -> str:
    r"""Text from outside as part of one line: control and other invisible characters escaped, its length bounded.

    >>> printable("head\x1b[2J\nround 7: fine")
    'head\\x1b[2J\\nround 7: fine'
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:LONGEST])
    return line if len(text) <= LONGEST else f"{line}…"


class RunError(RuntimeError):
    """A run that cannot go on, through no fault of the settings' form. One line; the command line exits with 1."""


class StepError(RunError):
    """An error inside a step of a client. The message names the client and the round; the cause has the traceback."""
