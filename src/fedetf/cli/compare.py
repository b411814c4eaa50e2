"""``fedetf compare``."""

import argparse
from typing import Any

from fedetf.cli.flags import (
    add_command,
    add_data_flags,
    add_out,
    add_source,
    add_training_flags,
    given_settings,
    output,
    several_values,
    words,
)
from fedetf.errors import RunError


def add_to(commands: Any) -> None:
    """Its flags."""
    compare = add_command(
        commands,
        "compare",
        compare_command,
        "methods × seeds (and any flag with several values) on the same partitions and initial encoders, as a table",
        "fedetf compare --methods fedavg,fedetf --seeds 7,8,9 --alpha 0.1,0.05 --rounds 5",
    )
    add_source(compare)
    compare.add_argument(
        "--methods",
        metavar="A,B",
        type=words,
        required=True,
        help="methods, separated by commas; FILE.py:NAME for your own",
    )
    compare.add_argument("--seeds", metavar="S,T", type=several_values(int), required=True, help="seeds, likewise")
    compare.add_argument(
        "--equal-budget",
        action="store_true",
        help="give every method the same number of local epochs in the personal stage",
    )
    add_data_flags(compare, several=True)
    add_training_flags(compare, several=True)
    add_out(compare, "folder for the runs and the table (default: runs/compare-<dataset>-<hash of the settings>)")


def compare_command(options: argparse.Namespace) -> None:
    """``fedetf compare``."""
    from rich.console import Console
    from rich.markdown import Markdown

    from fedetf.comparison.run import compare
    from fedetf.report.comparison import to_markdown, write_tables
    from fedetf.report.page import write_report
    from fedetf.report.progress import make_runs_progress

    seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
    progress = make_runs_progress(Console(stderr=True, highlight=False))
    try:
        comparison = compare(
            options.methods,
            seeds,
            options.source,
            settings=given_settings(options),
            equal_budget=options.equal_budget,
            out=options.out,
            progress=progress,
            trust_code=options.trust_code,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is done is kept; the same command goes on with it") from None
    finally:
        progress.close()
    console = output()
    if comparison.lines:
        page = write_report([comparison.folder], comparison.folder / "report.html").path
        paths = [*write_tables(comparison), page]
        console.print(comparison.caption, soft_wrap=True)
        console.print(Markdown(to_markdown(comparison.lines)))
        console.print(f"files: {', '.join(map(str, paths))}", soft_wrap=True)
    if comparison.failed:
        reasons = "; ".join(f"{run}: {why}" for run, why in comparison.failed.items())
        raise RunError(f"{len(comparison.failed)} runs failed, the table has the others ({reasons})")
