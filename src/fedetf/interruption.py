"""Ctrl-C, SIGTERM and the end of a terminal: a command ends soon after, wherever the signal found it.

Python raises KeyboardInterrupt in whatever runs at that moment. In the callback of a weak reference or in ``__del__``
the exception is printed and dropped; in the middle of a clean-up it may come out as another error. So the signal is
noted as well: the round loop looks at the note, and an error that follows an interruption is not reported as one.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

_noted = False


def listen() -> None:
    """Take these signals as interruptions from now on; one that the system was told to ignore stays ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError):  # not in the main thread, where nobody sends signals
                signal.signal(number, _interrupt)


def _interrupt(number: int, _: Any) -> NoReturn:
    """Note it, and end. SIGTERM once more, as ``timeout`` sends it, does not disturb the end; Ctrl-C once more does."""
    global _noted
    _noted = True
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def forget() -> None:
    """The command has ended: what this process does next was not interrupted."""
    global _noted
    _noted = False


def check() -> None:
    """End here if an interruption was noted, whatever became of its exception."""
    if _noted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def saying(how_to_go_on: str) -> Iterator[None]:
    """Let an interruption say how to go on, also one that came out as another error."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_go_on) from None
    except Exception:
        if _noted:
            raise KeyboardInterrupt(how_to_go_on) from None
        raise
