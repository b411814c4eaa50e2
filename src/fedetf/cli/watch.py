"""``fedetf watch``."""

import argparse
from pathlib import Path
from typing import Any

from fedetf.cli.flags import add_command, folder
from fedetf.errors import UserError

PORT = 8765


def add_to(commands: Any) -> None:
    """Its flags."""
    watch = add_command(
        commands,
        "watch",
        watch_command,
        "the report as a live page, for browsers on this machine: finished runs, and running ones round by round; "
        "Ctrl-C ends it",
        "fedetf watch runs/compare-digits-1a2b3c4d",
    )
    watch.add_argument(
        "folders", nargs="*", metavar="DIR", type=folder, help="run folders, or folders that hold some (default: runs)"
    )
    watch.add_argument(
        "--port",
        metavar="P",
        type=port,
        default=PORT,
        help=f"where it is served; 0: any that is free (default: {PORT})",
    )


def port(text: str) -> int:
    """A type of flag: the number of a port."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; they are numbers up to 65535")
    return int(text)


def watch_command(options: argparse.Namespace) -> None:
    """``fedetf watch``."""
    from fedetf.report.live import LivePage
    from fedetf.report.serve import keep_current, serving

    for given in options.folders:
        if not given.is_dir():
            raise UserError(
                f"no folder {str(given)!r}; give the --out of a run or a comparison, or the folder above it"
            )
    live = LivePage(options.folders or [Path("runs")])
    live.look()
    with serving(live, options.port) as address:
        print(f"watching {', '.join(map(str, options.folders)) or 'runs'}: {address} (Ctrl-C ends it)", flush=True)
        keep_current(live)
