"""The command line: parse, call, print. What is slow to import is imported by the command that needs it."""

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from fedetf import __version__
from fedetf.cli import (
    bench,
    compare,
    demo,
    diagnose,
    flower,
    lists,
    partition,
    report,
    reproduce,
    run,
    tune,
    use,
    watch,
)
from fedetf.cli.flags import LINE, Parser
from fedetf.errors import OUT_OF_MEMORY, RunError, StepError, UserError, in_words, is_out_of_memory, printable
from fedetf.files import BAD_NAMES
from fedetf.interruption import forget, listen
from fedetf.redact import redacted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 done, 1 failed, 2 bad input, 130 interrupted."""
    listen()
    _print_any_name()
    try:
        options = build_parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            options.command(options)
        sys.stdout.flush()  # a full disk behind it shows here, not when Python ends
    except UserError as error:
        return _fail(error, 2)
    except RunError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as interrupt:
        _say("interrupted" if not interrupt.args else f"interrupted; {interrupt}")
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        _discard_output()
    except OSError as error:
        _discard_output()
        return _fail(RunError(in_words(error)), 2 if error.errno in BAD_NAMES else 1)
    except Exception as error:
        if is_out_of_memory(error):
            return _fail(RunError(OUT_OF_MEMORY), 1)
        if os.environ.get("FEDETF_DEBUG"):
            raise
        return _fail(RunError(f"{UNEXPECTED} ({type(error).__name__}: {error})"), 1)
    finally:
        forget()
    return 0


UNEXPECTED = "fedetf met something that it does not know; FEDETF_DEBUG=1 shows where, please report it"


def _print_any_name() -> None:
    """Print names that are not text too, and do without a stream that was closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before we began
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let nothing more go to standard output, which cannot take it, not even what is still to be flushed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be there any more to read it
        print(text, file=sys.stderr)


def _fail(error: Exception, status: int) -> int:
    if isinstance(error, StepError) and error.__cause__ is not None:
        _say(redacted("".join(traceback.format_exception(error.__cause__)).rstrip()))
    _say(f"error: {printable(' '.join(redacted(str(error)).split()), LINE)}")
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(printable(redacted(f"warning: {message}"), LINE))


def build_parser() -> argparse.ArgumentParser:
    """The commands and their flags."""
    parser = Parser(
        prog="fedetf",
        description="Federated learning on data that differs from client to client, built around FedETF.",
        epilog="example: fedetf run --dataset digits --method fedetf --clients 10 --alpha 0.05 --rounds 5",
    )
    parser.add_argument("--version", action="version", version=f"fedetf {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    for command in (demo, run, compare, tune, reproduce, report, watch, partition, diagnose, use, flower, bench, lists):
        command.add_to(commands)
    return parser
