"""``fedetf flower``."""

import argparse
from typing import Any

from fedetf.cli.flags import Parser, add_command, add_set, assigned, folder, output, words
from fedetf.errors import UserError, need


def add_to(commands: Any) -> None:
    """Its commands and their flags."""
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
    check = add_command(
        inner,
        "check",
        check_command,
        "look at a site's data before the first round: what there is, what cannot be read, what does not fit",
        "fedetf flower check /srv/images --app my-app",
    )
    check.add_argument("data", metavar="DATA", help="as in --node-config: a CSV or Parquet file, or a folder")
    check.add_argument("--app", metavar="DIR", type=folder, help="the app's folder, with what the sites agreed on")
    add_set(check, "without --app, a setting that the app would have, such as data.label_column")


def new_command(options: argparse.Namespace) -> None:
    """``fedetf flower new``."""
    from fedetf.flower.new import new_app

    for path in new_app(options.folder, options.sites):
        print(path)
    print(f"what to do next: {options.folder / 'README.md'}")


def check_command(options: argparse.Namespace) -> None:
    """``fedetf flower check``."""
    need("flower", "fedetf flower check", "flwr")
    from rich.console import Console
    from rich.text import Text

    from fedetf.config import resolve
    from fedetf.flower.check import check_data
    from fedetf.report.tables import plain_table

    given = assigned(options)
    if given and options.app:
        raise UserError(f"what is agreed on is in {options.app / 'settings.toml'}; leave out --set, or --app")
    with Console(stderr=True).status(Text(f"looking at {options.data}")):  # seen on a terminal only
        checked = check_data(options.data, options.app, resolve(None, given))
    console = output()
    console.print(
        f"{options.data}: {checked.samples:,} samples of the kind {checked.kind}", soft_wrap=True, markup=False
    )
    classes = [[name, f"{count:,}"] for name, count in checked.counts.items()]
    console.print(plain_table(["class", "samples"], classes, right=["samples"]))
    if checked.columns:
        console.print(plain_table(checked.columns[0], checked.columns[1:], right=["missing"]))
    for line in [*checked.notes, *checked.problems]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if checked.problems:
        raise UserError(f"{options.data} is not ready for a round; fix the problems listed above")
    print("ready" if options.app else "readable; give --app to see whether it fits the federation")
