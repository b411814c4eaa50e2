"""What the commands share: flags, the settings they make, and standard output."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedetf.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedetf.settings import Settings

Command = Callable[[argparse.Namespace], None]
UNLIMITED = 100_000  # characters of a line that goes to no terminal
LINE = 4_000  # characters of a message: all settings of a section have room in it
ANY_SETTING = "any setting, for example --set train.lr=0.1; wins over flags; see: fedetf list settings"


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are those of every other bad input."""

    def error(self, message: str) -> NoReturn:
        """One line and status 2, like every other bad input."""
        raise UserError(f"{message}; see: {self.prog} --help")


def add_command(commands: Any, name: str, function: Command, text: str, example: str) -> argparse.ArgumentParser:
    """A command with its line in ``fedetf --help`` and an example in its own help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function)
    return parser


def add_source(parser: argparse.ArgumentParser) -> None:
    """The preset or file to start from."""
    parser.add_argument("source", nargs="?", metavar="PRESET|FILE.toml", help="settings to start from")
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The consent to run code that a file names."""
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="run code (FILE.py:NAME) that a file names; what you type here needs no such consent",
    )


def folder(text: str) -> Path:
    """A type of flag: a folder's path."""
    if not text:
        raise argparse.ArgumentTypeError("the folder's name is empty")
    return Path(text)


def words(text: str) -> list[str]:
    """A type of flag: words separated by commas."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError("no value given")
    return words


def number(text: str) -> float:
    """A type of flag: a number, whole or not."""
    return int(text) if text.strip().isdecimal() else float(text)


def several_values(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type of flag that takes one value, or several separated by commas."""

    def parse(text: str) -> Any:
        values = [kind(word) for word in words(text)]
        return values[0] if len(values) == 1 else values

    parse.__name__ = kind.__name__  # what argparse calls it in its messages
    return parse


def add_data_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Which data, and who holds what."""
    kind = several_values if several else _itself
    flags = parser.add_argument_group("data")
    flags.add_argument(
        "--dataset",
        metavar="D",
        type=kind(str),
        help="a name (fedetf list datasets), a CSV or Parquet file, a folder, or a hub id",
    )
    flags.add_argument("--clients", metavar="K", type=kind(int), help="number of clients to deal the data out to")
    flags.add_argument(
        "--alpha",
        metavar="A",
        type=kind(float),
        help="how alike the clients are: 100 much the same, 1 a little different, 0.05 very different (the "
        "concentration of the Dirichlet draws)",
    )
    flags.add_argument(
        "--site-column", metavar="C", type=kind(str), help="the column that names each sample's site; each is a client"
    )


def add_training_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """What is trained, and how."""
    kind = several_values if several else _itself
    flags = parser.add_argument_group("training")
    flags.add_argument(
        "--model",
        metavar="X",
        type=kind(str),
        help="the network before the classifier: see fedetf list models, or package.module:factory for your own",
    )
    flags.add_argument(
        "--participation", metavar="R", type=kind(float), help="share of the clients that take part in each round"
    )
    flags.add_argument("--rounds", metavar="T", type=kind(int), help="communication rounds")
    flags.add_argument(
        "--epochs", metavar="E", type=kind(number), help="local epochs a round; may be a part of one, such as 0.5"
    )
    add_engine_flags(flags)
    flags.add_argument(
        "--device", metavar="D", help="cpu, cuda, mps, auto (the default), or several GPUs: cuda:0,cuda:1"
    )
    flags.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="speed up the training step also by torch.compile, or not at all (default: fused kernels for ResNets on a "
        "CPU)",
    )


def add_engine_flags(flags: argparse._ActionsContainer) -> None:
    """Where it runs."""
    flags.add_argument(
        "--engine",
        metavar="ENGINE",
        help="where client steps run: serial, processes, ray, auto (processes on several CPU cores); same results",
    )
    flags.add_argument(
        "--workers", metavar="N", type=int, help="number of workers side by side (default: one for each core)"
    )


def _itself(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return kind


def add_judging(parser: argparse.ArgumentParser) -> None:
    """What tables are judged by."""
    parser.add_argument(
        "--metric", metavar="NAME", default="accuracy", help="what tables show and rank by; see: fedetf list metrics"
    )
    parser.add_argument(
        "--against",
        metavar="METHOD",
        help="compare all others with this method, seed by seed (default: fedetf, or the first)",
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    """The seed."""
    parser.add_argument("--seed", metavar="S", type=int, help="seed of every random draw")


def add_out(parser: argparse.ArgumentParser, out: str) -> None:
    """The folder to write to, and any other setting."""
    parser.add_argument("--out", metavar="DIR", type=folder, help=out)
    add_set(parser)


def add_set(parser: argparse.ArgumentParser, text: str = ANY_SETTING) -> None:
    """Any other setting."""
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help=text,
    )


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, by dotted key."""
    from fedetf.config import SHORT, from_short

    flags = {name: getattr(options, name, None) for name in SHORT}
    return {**from_short(flags), **assigned(options)}


def assigned(options: argparse.Namespace) -> dict[str, Any]:
    """What ``--set`` says, by dotted key."""
    from fedetf.config import parse_assignment

    return dict(parse_assignment(text) for text in options.assignments)


def chosen_settings(options: argparse.Namespace) -> "Settings":
    """The complete settings: the preset, and what the flags say."""
    from fedetf.config import resolve

    return resolve(options.source, given_settings(options), options.trust_code)


def start_workers_early(engine: str | None) -> None:
    """Let the process that makes workers import torch while this one does the same; call it before that begins."""
    from fedetf.engines.forkserver import cores, fork_server

    if engine == "processes" or (engine in (None, "auto") and cores() > 1):
        fork_server()


def output() -> "Console":
    """Standard output for tables; a reader that leaves early is no failure."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = Output(highlight=False, markup=False, emoji=False)  # names are shown as they are
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNLIMITED  # a file or another program has no edge
    return console
