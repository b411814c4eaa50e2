"""Errors that reach the user as one line, without a traceback."""

import difflib
import errno
import re
from collections.abc import Iterable
from importlib.util import find_spec

from fedetf.redact import redacted


class UserError(ValueError):
    """Bad input. The message is one line and says what to do; the command line prints it and exits with 2.

    Passwords in addresses are left out of it.
    """

    def __init__(self, message: str):
        super().__init__(redacted(message))


def unknown(kind: str, name: str, known: Iterable[str], also: str = "") -> UserError:
    """An error for a name that does not exist, with the nearest one, all that do, and what else could be given."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {kind} {name!r}; {hint}choose from: {', '.join(names)}{also and f', or {also}'}")


OUT_OF_MEMORY = "there is not enough memory; take fewer --workers, smaller batches or images, or a smaller --model"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's own word for it, or PyTorch's, of a CPU or a GPU."""
    said = any(words in str(error) for words in ("can't allocate memory", "CUDA error: out of memory"))
    return isinstance(error, (MemoryError, OutOfMemory)) or type(error).__name__ == "OutOfMemoryError" or said


LONGEST = 500  # characters of a line that quotes others


def printable(text: str, longest: int = LONGEST) -> str:
    r"""Text from outside as part of one line: control and other invisible characters escaped, its length bounded.

    >>> printable("head\x1b[2J\nround 7: fine")
    'head\\x1b[2J\\nround 7: fine'
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:longest])
    return line if len(text) <= longest else f"{line}…"


# Control characters, halves of characters, and what turns the direction of a text.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(name: str) -> str:
    r"""The name of a class or a site as it can be shown, drawn and written: what a terminal would obey is escaped.

    >>> visible("cat\x1b[2J")
    'cat\\x1b[2J'
    """
    return _UNSEEN.sub(lambda match: match.group().encode("unicode_escape").decode(), name)


def need(extra: str, what: str, *packages: str) -> None:
    """Refuse ``what`` if packages that it needs are not installed, and say which extra brings them.

    >>> need("ray", "engine 'ray'", "no_such_package")
    Traceback (most recent call last):
    fedetf.errors.UserError: engine 'ray' needs no_such_package; install it with: pip install 'fedetf[ray]'
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        raise UserError(f"{what} needs {' and '.join(missing)}; install {them} with: pip install 'fedetf[{extra}]'")


ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EACCES: "make it readable and writable, or choose another folder",
    errno.EPERM: "make it readable and writable, or choose another folder",
    errno.EROFS: "choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def in_words(error: OSError, then: str = "call again: what was done is kept") -> str:
    """What the system refused, where, and what to do."""
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = ADVICE.get(error.errno or 0, "check the path")
    return f"{where}{error.strerror or error}; {advice}, and {then}"


class RunError(RuntimeError):
    """A run that cannot go on, through no fault of the settings' form. One line; the command line exits with 1.

    Passwords in addresses are left out of it.
    """

    def __init__(self, message: str):
        super().__init__(redacted(message))


class OutOfMemory(RunError):  # noqa: N818  # the word that everybody has for it
    """There was not enough memory for a step: on a GPU perhaps because too many workers share it."""


class StepError(RunError):
    """An error inside a step of a client. The message names the client and the round; the cause has the traceback."""
