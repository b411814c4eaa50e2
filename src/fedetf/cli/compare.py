"""``fedetf compare``."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedetf.cli.flags import (
    add_command,
    add_data_flags,
    add_judging,
    add_out,
    add_source,
    add_training_flags,
    given_settings,
    output,
    several_values,
    start_workers_early,
    words,
)
from fedetf.errors import RunError
from fedetf.interruption import saying

if TYPE_CHECKING:
    from fedetf.comparison.run import Comparison
    from fedetf.report.progress import LiveRuns, PlainRuns


def add_to(commands: Any) -> None:
    """Its flags."""
    compare = add_command(
        commands,
        "compare",
        compare_command,
        "methods × seeds (and any flag with several values) on the same partitions and initial encoders, as a table",
        "fedetf compare --methods fedavg,fedetf --seeds 7,8,9 --alpha 0.1,0.05 --rounds 5 --set fedavg:train.lr=0.1",
    )
    add_source(compare)
    compare.add_argument(
        "--methods",
        metavar="A,B",
        type=words,
        required=True,
        help="methods, separated by commas; FILE.py:NAME for your own; all: every one of: fedetf list methods",
    )
    compare.add_argument(
        "--seeds", metavar="S,T", type=several_values(int), required=True, help="seeds, separated by commas"
    )
    compare.add_argument(
        "--equal-budget",
        action="store_true",
        help="give every method the same number of local epochs in the personal stage",
    )
    compare.add_argument(
        "--no-references",
        action="store_true",
        help="leave out local (each client alone) and pooled (all data in one place), the floor and the ceiling",
    )
    add_judging(compare)
    compare.add_argument(
        "--target", metavar="A", type=float, help="say what it takes to reach this general accuracy, for example 0.5"
    )
    add_data_flags(compare, several=True)
    add_training_flags(compare, several=True)
    add_out(compare, "folder for the runs and the table (default: runs/compare-<dataset>-<hash of the settings>)")


def compare_command(options: argparse.Namespace) -> None:
    """``fedetf compare``."""
    start_workers_early(options.engine)
    from fedetf.comparison.run import compare

    seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
    with runs_shown() as progress:
        comparison = compare(
            options.methods,
            seeds,
            options.source,
            settings=given_settings(options),
            equal_budget=options.equal_budget,
            references=not options.no_references,
            metric=options.metric,
            against=options.against,
            target=options.target,
            out=options.out,
            progress=progress,
            trust_code=options.trust_code,
        )
    show(comparison)


@contextmanager
def runs_shown(again: str = "the same command") -> Iterator["LiveRuns | PlainRuns"]:
    """Shows how far some runs are; after Ctrl-C it says what goes on with them."""
    from rich.console import Console

    from fedetf.report.progress import make_runs_progress

    progress = make_runs_progress(Console(stderr=True, highlight=False))
    try:
        with saying(f"what is done is kept; {again} goes on with it"):
            yield progress
    finally:
        progress.close()


def show(comparison: "Comparison") -> None:
    """Write the tables and the page of a comparison, and print what came of it."""
    from fedetf.report.comparison import best_table, legend, over_settings, target_table, to_markdown, write_tables
    from fedetf.report.groups import Judging
    from fedetf.report.page import write_report
    from fedetf.report.tables import print_markdown
    from fedetf.runs.read import by_reason
    from fedetf.settings import counted

    console = output()
    if comparison.lines:
        judged = Judging(comparison.table.metric.name, comparison.table.against)
        out = comparison.folder / "report.html"
        page = write_report([comparison.folder], out, target=comparison.target, judging=judged).path
        paths = [*write_tables(comparison), page]
        console.print(comparison.caption, soft_wrap=True)
        print_markdown(to_markdown(comparison.table), console)
        if comparison.best[1]:
            print_markdown(best_table(comparison), console)
        if comparison.target is not None:
            print_markdown(target_table(comparison), console)
        for said in [legend(comparison.table), *over_settings(comparison.table)]:
            console.print(f"{said}\n")
        console.print(f"files: {', '.join(map(str, paths))}", soft_wrap=True)
    if comparison.failed:
        reasons = "; ".join(f"{', '.join(runs)}: {why}" for why, runs in by_reason(comparison.failed).items())
        others = "the table has the others" if comparison.lines else "so there is no table"
        raise RunError(f"{counted(len(comparison.failed), 'run')} failed, {others} ({reasons})")
