"""``fedetf flower``."""

import argparse
from typing import Any

from fedetf.cli.flags import Parser, add_command, folder, words


def add_to(commands: Any) -> None:
    """Its one command, and that one's flags."""
    text = "real sites on Flower (pip install 'fedetf[flower]')"
    flower = commands.add_parser("flower", help=text, description=text, epilog="example: fedetf flower new my-app")
    inner = flower.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    new = add_command(
        inner,
        "new",
        new_command,
        "make an app folder for server and sites, with a README that gives the commands",
        "fedetf flower new my-app --sites berlin,paris,rome",
    )
    new.add_argument("folder", metavar="DIR", type=folder, help="a new folder")
    new.add_argument(
        "--sites",
        metavar="A,B",
        type=words,
        default=["site-a", "site-b", "site-c"],
        help="the names of the sites (default: site-a,site-b,site-c)",
    )


def new_command(options: argparse.Namespace) -> None:
    """``fedetf flower new``."""
    from fedetf.flower.new import new_app

    for path in new_app(options.folder, options.sites):
        print(path)
    print(f"what to do next: {options.folder / 'README.md'}")
