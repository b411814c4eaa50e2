"""``fedetf report``."""

import argparse
from pathlib import Path
from typing import Any

from fedetf.cli.flags import LINE, add_command, add_judging, folder
from fedetf.errors import printable


def add_to(commands: Any) -> None:
    """Its flags."""
    report = add_command(
        commands,
        "report",
        report_command,
        "one HTML page about any number of runs: tables, curves, who holds what, costs, commands",
        "fedetf report runs/first runs/compare-digits-1a2b3c4d --out report.html",
    )
    report.add_argument("folders", nargs="+", metavar="DIR", type=folder, help="run folders, or folders that hold some")
    report.add_argument(
        "--out", metavar="FILE.html", type=Path, default=Path("report.html"), help="the page (default: report.html)"
    )
    add_judging(report)


def report_command(options: argparse.Namespace) -> None:
    """``fedetf report``."""
    from fedetf.report.groups import Judging
    from fedetf.report.page import write_report
    from fedetf.runs.read import in_words

    report = write_report(options.folders, options.out, judging=Judging(options.metric, options.against))
    print(f"report: {report.path} ({report.runs} run{'' if report.runs == 1 else 's'})")
    for folders, reason in in_words(report.left_out):
        print(printable(f"not shown: {folders}: {reason}", LINE))
