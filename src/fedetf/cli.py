"""The command line: parse, call, print. What is slow to import is imported by the command that needs it."""

import argparse
import contextlib
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedetf import __version__
from fedetf.errors import RunError, StepError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedetf.api import Result
    from fedetf.config import Settings
    from fedetf.engines.job import Job
    from fedetf.federation import Listener

Command = Callable[[argparse.Namespace], None]


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
        traceback.print_exception(error.__cause__)
    print(f"error: {error}", file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _console() -> "Console":
    """Standard output for tables; a reader that leaves early is no failure."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(highlight=False)


# --- parsing --------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and status 2, like every other bad input."""
        raise UserError(f"{message}; see: {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The commands and their flags."""
    parser = _Parser(
        prog="fedetf",
        description="Federated learning on data that differs from client to client, built around FedETF.",
        epilog="example: fedetf run --dataset digits --method fedetf --clients 10 --alpha 0.05 --rounds 5",
    )
    parser.add_argument("--version", action="version", version=f"fedetf {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    run = _command(
        commands,
        "run",
        run_command,
        "one run: train, personalise, measure; with no argument, FedETF on the embedded digits",
        "fedetf run cifar10 --method fedavg --alpha 0.05 --rounds 10 --out runs/first",
    )
    _add_source(run)
    _add_data_flags(run)
    run.add_argument("--method", metavar="M", help="see: fedetf list methods; or FILE.py:NAME for your own")
    _add_training_flags(run)
    _add_seed(run)
    _add_out(run, "folder for the run (default: runs/<dataset>-<method>-s<seed>-<time>)")

    resume = _command(
        commands,
        "resume",
        resume_command,
        "go on with a run where it stopped, to the same bits as if it had never stopped",
        "fedetf resume runs/first",
    )
    resume.add_argument("folder", metavar="DIR", type=_folder, help="the folder of the run")
    _add_engine_flags(resume)

    compare = _command(
        commands,
        "compare",
        compare_command,
        "methods × seeds (and any flag with several values) on the same partitions and initial encoders, as a table",
        "fedetf compare --methods fedavg,fedetf --seeds 7,8,9 --alpha 0.1,0.05 --rounds 5",
    )
    _add_source(compare)
    compare.add_argument(
        "--methods",
        metavar="A,B",
        type=_words,
        required=True,
        help="methods, separated by commas; FILE.py:NAME for your own",
    )
    compare.add_argument("--seeds", metavar="S,T", type=_several(int), required=True, help="seeds, likewise")
    compare.add_argument(
        "--equal-budget",
        action="store_true",
        help="give every method the same number of local epochs in the personal stage",
    )
    _add_data_flags(compare, several=True)
    _add_training_flags(compare, several=True)
    _add_out(compare, "folder for the runs and the table (default: runs/compare-<dataset>-<hash of the settings>)")

    partition = _command(
        commands,
        "partition",
        partition_command,
        "show who holds what, as a table and a picture, without training",
        "fedetf partition --dataset digits --clients 20 --alpha 0.05",
    )
    _add_source(partition)
    _add_data_flags(partition)
    _add_seed(partition)
    _add_out(partition, "folder for the picture (default: runs/<dataset>-partition-s<seed>-<time>)")

    bench = _command(
        commands,
        "bench",
        bench_command,
        "measure the engines against a bare PyTorch loop on this machine, side by side; takes about ten minutes",
        "fedetf bench --json > bench.json",
    )
    bench.add_argument("--json", action="store_true", help="as JSON")
    bench.add_argument("--scale", metavar="S", type=float, default=1.0, help="less work, for a first look: 0.25, say")
    bench.add_argument("--repeats", metavar="N", type=int, default=5, help="turns of each contestant (default: 5)")

    listing = _command(commands, "list", list_command, "what there is to choose from", "fedetf list models --json")
    listing.add_argument("what", choices=sorted(LISTS))
    listing.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _command(commands: Any, name: str, function: Command, text: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"example: {example}"
    )
    parser.set_defaults(command=function)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", metavar="PRESET|FILE.toml", help="settings to start from")


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the folder's name is empty")
    return Path(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _several(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type of flag that takes one value, or several separated by commas."""

    def parse(text: str) -> Any:
        values = [kind(word) for word in _words(text)]
        if not values:
            raise argparse.ArgumentTypeError("no value given")
        return values[0] if len(values) == 1 else values

    parse.__name__ = kind.__name__  # what argparse calls it in its messages
    return parse


def _add_data_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    kind = _several if several else _itself
    flags = parser.add_argument_group("data")
    flags.add_argument(
        "--dataset", metavar="D", type=kind(str), help="a name (fedetf list datasets), a folder, or a hub id"
    )
    flags.add_argument("--clients", metavar="K", type=kind(int), help="number of clients")
    flags.add_argument("--alpha", metavar="A", type=kind(float), help="Dirichlet concentration; smaller is more skewed")


def _add_training_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    kind = _several if several else _itself
    flags = parser.add_argument_group("training")
    flags.add_argument("--model", metavar="X", type=kind(str), help="the encoder; see: fedetf list models")
    flags.add_argument("--participation", metavar="R", type=kind(float), help="share of the clients in each round")
    flags.add_argument("--rounds", metavar="T", type=kind(int), help="communication rounds")
    flags.add_argument("--epochs", metavar="E", type=kind(int), help="local epochs a round")
    _add_engine_flags(flags)
    flags.add_argument("--device", metavar="D", help="cpu, cuda, mps or auto (the default)")
    flags.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="a faster training step, by fused kernels (ResNets on a CPU) or torch.compile",
    )


def _add_engine_flags(flags: argparse._ActionsContainer) -> None:
    flags.add_argument(
        "--engine",
        metavar="ENGINE",
        help="where client steps run: serial, processes, ray, auto (processes on several CPU cores); same results",
    )
    flags.add_argument(
        "--workers", metavar="N", type=int, help="how many work side by side (default: one for each core)"
    )


def _itself(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return kind


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", metavar="S", type=int, help="seed of every random draw")


def _add_out(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--out", metavar="DIR", type=_folder, help=out)
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any setting, for example --set train.lr=0.1; wins over flags; see: fedetf list settings",
    )


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    from fedetf.api import SHORT, from_short
    from fedetf.config import parse_assignment

    flags = {name: getattr(options, name, None) for name in SHORT}
    return {**from_short(flags), **dict(parse_assignment(text) for text in options.assignments)}


def _settings(options: argparse.Namespace) -> "Settings":
    from fedetf.config import resolve

    return resolve(options.source, _overrides(options))


# --- run ------------------------------------------------------------------------------------------------------------


def run_command(options: argparse.Namespace) -> None:
    """``fedetf run``."""
    settings = _settings(options)
    _start_early(settings)
    from fedetf.api import execute
    from fedetf.runs import check_free, default_folder

    out = options.out or default_folder(settings, settings.method.name)
    check_free(out)
    _show_run(settings, out, lambda job, listeners: execute(job, out, listeners))


def resume_command(options: argparse.Namespace) -> None:
    """``fedetf resume``."""
    from fedetf.api import go_on, run_settings

    folder: Path = options.folder
    settings = run_settings(folder, options.engine, options.workers)
    _start_early(settings)
    _show_run(settings, folder, lambda job, listeners: go_on(job, folder, listeners))


def _start_early(settings: "Settings") -> None:
    """Let the process that makes workers import what it needs while this one does the same."""
    if settings.engine.name in ("auto", "processes"):
        from fedetf.engines.forkserver import fork_server

        fork_server()


def _show_run(settings: "Settings", out: Path, work: "Callable[[Job, list[Listener]], Result]") -> None:
    """Load the data, do the work with progress shown, and print what came of it."""
    from rich.console import Console

    from fedetf.api import prepare
    from fedetf.report.progress import make_progress
    from fedetf.report.tables import describe_job, result_table

    terminal = Console(stderr=True, highlight=False)
    with terminal.status(f"loading {settings.data.name}"):  # seen on a terminal only, and gone when it is done
        job = prepare(settings)
    progress = make_progress(terminal)
    try:
        result = work(job, [progress])
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was done is saved; go on with: fedetf resume {out}") from None
    finally:
        progress.close()
    console = _console()
    console.print(describe_job(job), soft_wrap=True)
    console.print(result_table(job, result.outcome))
    console.print(f"files: {out}", soft_wrap=True)


# --- compare ----------------------------------------------------------------------------------------------------------


def compare_command(options: argparse.Namespace) -> None:
    """``fedetf compare``."""
    from rich.console import Console
    from rich.markdown import Markdown

    from fedetf.grid import compare
    from fedetf.report.comparison import to_markdown, write_tables
    from fedetf.report.progress import make_grid_progress

    seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
    progress = make_grid_progress(Console(stderr=True, highlight=False))
    try:
        comparison = compare(
            options.methods,
            seeds,
            options.source,
            settings=_overrides(options),
            equal_budget=options.equal_budget,
            out=options.out,
            progress=progress,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is done is kept; the same command goes on with it") from None
    finally:
        progress.close()
    console = _console()
    if comparison.lines:
        paths = write_tables(comparison)
        console.print(comparison.caption, soft_wrap=True)
        console.print(Markdown(to_markdown(comparison.lines)))
        console.print(f"files: {', '.join(map(str, paths))}", soft_wrap=True)
    if comparison.failed:
        reasons = "; ".join(f"{run}: {why}" for run, why in comparison.failed.items())
        raise RunError(f"{len(comparison.failed)} runs failed, the table has the others ({reasons})")


# --- partition ------------------------------------------------------------------------------------------------------


def partition_command(options: argparse.Namespace) -> None:
    """``fedetf partition``."""

    from fedetf.data import load_dataset, make_partition
    from fedetf.report.figures import partition_figure, save_figure
    from fedetf.report.tables import partition_table
    from fedetf.runs import check_free, default_folder, make_folder
    from fedetf.state import write_whole

    settings = _settings(options)
    out: Path = options.out or default_folder(settings, "partition")
    check_free(out)
    dataset = load_dataset(settings.data, settings.seed)
    partition = make_partition(dataset.train.y.numpy(), dataset.classes, settings.data, settings.seed)
    make_folder(out)
    write_whole(out / "partition.json", partition.to_json().encode())
    title = f"{settings.data.name}, {len(partition)} clients, {settings.data.describe()}, seed {settings.seed}"
    picture = save_figure(partition_figure(partition, title), out / "partition.png")
    console = _console()
    console.print(title, soft_wrap=True)
    console.print(partition_table(partition))
    console.print(f"picture: {picture}", soft_wrap=True)


# --- bench ------------------------------------------------------------------------------------------------------------


def bench_command(options: argparse.Namespace) -> None:
    """``fedetf bench``."""
    from rich.console import Console

    from fedetf.bench import bench
    from fedetf.report.tables import bench_table

    if options.repeats < 1 or not 0 < options.scale <= 1:
        raise UserError("--repeats is at least 1, --scale above 0 and at most 1")
    terminal = Console(stderr=True, highlight=False)
    measured = bench(options.scale, options.repeats, lambda what: terminal.print(f"measuring {what}"))
    if options.json:
        print(json.dumps(measured, indent=2, ensure_ascii=False))
    else:
        console = _console()
        console.print(f"{measured['machine']}, {measured['date']}")
        console.print(bench_table(measured["rows"]))


# --- list -----------------------------------------------------------------------------------------------------------


def list_command(options: argparse.Namespace) -> None:
    """``fedetf list``."""
    rows = LISTS[options.what]()
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return

    from fedetf.report.tables import plain_table

    shown = [[f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows]
    _console().print(plain_table(list(rows[0]), shown, right=["parameters", "features"]))


def _methods() -> list[dict[str, Any]]:
    from fedetf.methods import METHODS

    return [
        {"name": name, "description": method.summary, "citation": method.citation} for name, method in METHODS.items()
    ]


def _models() -> list[dict[str, Any]]:
    from dataclasses import asdict

    from fedetf.models import describe_models

    return [asdict(info) for info in describe_models()]


def _datasets() -> list[dict[str, Any]]:
    from fedetf.data import DATASETS

    named = [{"name": name, "description": known.description} for name, known in DATASETS.items()]
    others = [
        {
            "name": "FOLDER",
            "description": "Parquet files (train*.parquet, test*.parquet) or train/<class>/ images",
        },
        {"name": "OWNER/NAME", "description": "any image dataset of the Hugging Face hub"},
    ]
    return named + others


def _presets() -> list[dict[str, Any]]:
    from fedetf.config import preset_description, preset_names

    return [{"name": name, "description": preset_description(name)} for name in preset_names()]


def _settings_rows() -> list[dict[str, Any]]:
    from fedetf.config import describe_settings
    from fedetf.methods import METHODS

    rows = [*describe_settings()]
    for method in METHODS.values():
        rows += [
            (key, default, f"{text} ({method.name})") for key, default, text in describe_settings(method, "method.")
        ]
    return [{"setting": key, "default": default, "description": text} for key, default, text in rows]


LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "datasets": _datasets,
    "methods": _methods,
    "models": _models,
    "presets": _presets,
    "settings": _settings_rows,
}
