"""``fedetf diagnose``."""

import argparse
from pathlib import Path
from typing import Any

from fedetf.cli.flags import (
    add_command,
    add_data_flags,
    add_set,
    add_source,
    add_training_flags,
    given_settings,
    output,
    several_values,
)
from fedetf.errors import UserError

ENDINGS = (".html", ".md")


def add_to(commands: Any) -> None:
    """Its flags."""
    diagnose = add_command(
        commands,
        "diagnose",
        diagnose_command,
        "does FedETF help with these data? label skew, classifier drift, and a short trial against FedAvg",
        "fedetf diagnose --dataset digits --clients 20 --alpha 0.05 --out diagnosis.html",
    )
    add_source(diagnose)
    add_data_flags(diagnose)
    diagnose.add_argument(
        "--seeds",
        metavar="S,T",
        type=several_values(int),
        default=[7, 8, 9],
        help="one trial for each (default: 7,8,9); more seeds, less uncertainty",
    )
    add_training_flags(diagnose)
    diagnose.add_argument("--out", metavar="FILE", type=Path, help="also write a page: FILE.html or FILE.md")
    add_set(diagnose)


def diagnose_command(options: argparse.Namespace) -> None:
    """``fedetf diagnose``."""
    out: Path | None = options.out
    if out is not None and out.suffix not in ENDINGS:
        raise UserError(f"--out takes a file that ends in {' or '.join(ENDINGS)}, not {str(out)!r}")
    if out is not None and out.exists():
        raise UserError(f"{out} exists already and is not overwritten; give another --out, or remove it")

    from rich.console import Console

    from fedetf.diagnose import METHODS, diagnose
    from fedetf.files import check_folder, make_folder, write_whole
    from fedetf.report.diagnosis import diagnosis_sections, diagnosis_title
    from fedetf.report.document import print_page, to_html, to_markdown
    from fedetf.report.progress import TrialProgress

    if out is not None:
        check_folder(out.parent)  # found out now, not after the trial
    seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
    terminal = Console(stderr=True, highlight=False)
    trials = [(method, seed) for seed in seeds for method in METHODS]
    listeners = {trial: [TrialProgress(terminal, *trial)] for trial in trials}
    diagnosis = diagnose(seeds, options.source, given_settings(options), listeners, options.trust_code)
    title, sections = diagnosis_title(diagnosis), diagnosis_sections(diagnosis)
    console = output()
    print_page(title, sections, console)
    if out is not None:
        page = to_html(title, sections) if out.suffix == ".html" else to_markdown(title, sections)
        make_folder(out.parent)
        write_whole(out, page.encode())
        console.print(f"\npage: {out}", soft_wrap=True)
