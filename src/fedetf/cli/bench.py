"""``fedetf bench``."""

import argparse
import json
from typing import Any

from fedetf.cli.flags import add_command, output
from fedetf.errors import UserError


def add_to(commands: Any) -> None:
    """Its flags."""
    bench = add_command(
        commands,
        "bench",
        bench_command,
        "measure the engines against a bare PyTorch loop on this machine, side by side; takes about ten minutes",
        "fedetf bench --json > bench.json",
    )
    bench.add_argument("--json", action="store_true", help="as JSON")
    bench.add_argument("--scale", metavar="S", type=float, default=1.0, help="less work, for a first look: 0.25, say")
    bench.add_argument(
        "--peers",
        action="store_true",
        help="instead, time pfl, fluke, FedLab and Flower on the same work, as far as they are installed",
    )
    bench.add_argument("--repeats", metavar="N", type=int, default=5, help="turns of each contestant (default: 5)")


def bench_command(options: argparse.Namespace) -> None:
    """``fedetf bench``."""
    from filelock import FileLock
    from rich.console import Console

    from fedetf.bench import LOCK, bench
    from fedetf.report.tables import bench_table

    if options.repeats < 1 or not 0 < options.scale <= 1:
        raise UserError("--repeats is at least 1, --scale above 0 and at most 1")
    terminal = Console(stderr=True, highlight=False)
    with FileLock(LOCK):
        measured = bench(options.scale, options.repeats, terminal.print, options.peers)
    if options.json:
        print(json.dumps(measured, indent=2, ensure_ascii=False))
    else:
        console = output()
        console.print(f"{measured['machine']}, {measured['date']}")
        console.print(bench_table(measured["rows"]))
