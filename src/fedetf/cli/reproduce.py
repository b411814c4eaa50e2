"""``fedetf reproduce``."""

import argparse
from typing import TYPE_CHECKING, Any

from fedetf.cli.compare import runs_shown
from fedetf.cli.flags import (
    add_command,
    add_engine_flags,
    add_out,
    given_settings,
    output,
    several_values,
    start_workers_early,
    words,
)
from fedetf.errors import RunError

if TYPE_CHECKING:
    from fedetf.paper.experiment import Part


def add_to(commands: Any) -> None:
    """Its flags."""
    reproduce = add_command(
        commands,
        "reproduce",
        reproduce_command,
        "rerun a table or a figure of the paper, and show our numbers beside its own; the same command goes on with it",
        "fedetf reproduce table5 --scale small",
    )
    reproduce.add_argument("name", metavar="NAME", help="table1 to table5, fig1, fig4, fig5, fig6 or fig7")
    reproduce.add_argument(
        "--scale",
        choices=["smoke", "small", "medium", "paper"],
        default="smoke",
        help="smoke: seconds, on digits (the default); small: an hour or two on two cores, on CIFAR images; "
        "medium: all of CIFAR at 16×16 pixels, half an hour a run on two cores; paper: as in the paper, for a GPU",
    )
    part = reproduce.add_argument_group("a part of it (default: all)")
    part.add_argument("--columns", metavar="NAME,NAME", default="", help="only these columns, for example 'E = 1'")
    part.add_argument("--dataset", metavar="D,D", type=words, default=[], help="only these datasets")
    part.add_argument("--methods", metavar="M,M", type=words, default=[], help="only these methods")
    part.add_argument("--seeds", metavar="S,T", type=several_values(int), default=[], help="these seeds instead")
    add_engine_flags(reproduce)
    add_out(reproduce, "folder for runs and results, shared by all experiments (default: runs/reproduce-<scale>)")


def reproduce_command(options: argparse.Namespace) -> None:
    """``fedetf reproduce``."""
    start_workers_early(options.engine)
    from fedetf.paper.run import reproduce
    from fedetf.paper.tables import to_markdown, write_reproduction
    from fedetf.report.tables import print_markdown
    from fedetf.settings import counted

    part = chosen_part(options)
    with runs_shown() as progress:
        reproduction = reproduce(options.name, options.scale, part, given_settings(options), options.out, progress)
    paths = write_reproduction(reproduction)
    console = output()
    print_markdown(to_markdown(reproduction), console)
    console.print(f"files: {', '.join(map(str, paths))}", soft_wrap=True)
    if reproduction.failed:
        failed = counted(len(reproduction.failed), "run")
        raise RunError(f"{failed} failed, the rest is above; see error.part in the folder of each")


def chosen_part(options: argparse.Namespace) -> "Part":
    """The part of the experiment that the flags choose; ``--dataset`` is no setting any more then."""
    from fedetf.paper.experiment import Part, column_names, load_experiment

    seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
    columns = column_names(load_experiment(options.name), options.columns) if options.columns else []
    part = Part(datasets=options.dataset, methods=options.methods, seeds=seeds, columns=columns)
    options.dataset = None
    return part
