"""The command line: parse, call, print. What is slow to import is imported by the command that needs it."""

import argparse
import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from fedetf import __version__
from fedetf.cli import bench, compare, diagnose, flower, lists, partition, report, reproduce, run, use
from fedetf.cli.flags import Parser
from fedetf.errors import RunError, StepError, UserError
from fedetf.redact import redacted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 done, 1 failed, 2 bad input, 130 interrupted."""
    with contextlib.suppress(ValueError):  # not in the main thread, where nobody sends signals
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        options = build_parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            options.command(options)
    except UserError as error:
        return _fail(error, 2)
    except RunError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as interrupt:
        print("interrupted" if not interrupt.args else f"interrupted; {interrupt}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
    return 0


def _interrupt(*_: Any) -> NoReturn:
    """SIGTERM is taken like Ctrl-C."""
    raise KeyboardInterrupt


def _fail(error: Exception, status: int) -> int:
    if isinstance(error, StepError) and error.__cause__ is not None:
        print(redacted("".join(traceback.format_exception(error.__cause__))), end="", file=sys.stderr)
    print(f"error: {error}", file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(redacted(f"warning: {message}"), file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """The commands and their flags."""
    parser = Parser(
        prog="fedetf",
        description="Federated learning on data that differs from client to client, built around FedETF.",
        epilog="example: fedetf run --dataset digits --method fedetf --clients 10 --alpha 0.05 --rounds 5",
    )
    parser.add_argument("--version", action="version", version=f"fedetf {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    for command in (run, compare, reproduce, report, partition, diagnose, use, flower, bench, lists):
        command.add_to(commands)
    return parser
