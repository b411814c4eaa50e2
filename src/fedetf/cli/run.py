"""``fedetf run`` and ``fedetf resume``."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedetf.cli.flags import (
    add_command,
    add_data_flags,
    add_engine_flags,
    add_out,
    add_seed,
    add_set,
    add_source,
    add_training_flags,
    add_trust,
    assigned,
    chosen_settings,
    folder,
    output,
    start_workers_early,
)
from fedetf.errors import RunError, in_words
from fedetf.interruption import saying

if TYPE_CHECKING:
    from fedetf.api import Result
    from fedetf.engines.job import Job
    from fedetf.federation import Listener
    from fedetf.settings import Settings


def add_to(commands: Any) -> None:
    """Its flags."""
    run = add_command(
        commands,
        "run",
        run_command,
        "one run: train, personalise, measure; with no argument, FedETF on the embedded digits",
        "fedetf run --method fedavg --clients 20 --alpha 0.05 --rounds 10 --out runs/first",
    )
    add_source(run)
    add_data_flags(run)
    run.add_argument("--method", metavar="M", help="see: fedetf list methods; or FILE.py:NAME for your own")
    add_training_flags(run)
    add_seed(run)
    add_out(run, "folder for the run (default: runs/<dataset>-<method>-s<seed>-<time>)")
    resume = add_command(
        commands,
        "resume",
        resume_command,
        "go on with a run where it stopped, to the same bits as if it had never stopped",
        "fedetf resume runs/first",
    )
    resume.add_argument("folder", metavar="DIR", type=folder, help="the folder of the run")
    add_engine_flags(resume)
    add_set(resume, "where the rest runs, for example --set engine.address=ADDRESS: no password is kept in the folder")
    add_trust(resume)


def run_command(options: argparse.Namespace) -> None:
    """``fedetf run``."""
    settings = chosen_settings(options)
    start_workers_early(settings.engine.name)
    from fedetf.api import execute
    from fedetf.runs.folder import check_free, default_folder

    out = options.out or default_folder(settings, settings.method.name)
    check_free(out)
    _show_run(settings, out, lambda job, listeners: execute(job, out, listeners))


def resume_command(options: argparse.Namespace) -> None:
    """``fedetf resume``."""
    start_workers_early(options.engine)
    from fedetf.api import go_on, other_engine, run_settings
    from fedetf.files import is_writable
    from fedetf.runs.read import is_done, read_result

    folder: Path = options.folder
    others = {**other_engine(options.engine, options.workers), **assigned(options)}
    settings = run_settings(folder, others, trust_code=options.trust_code)
    if is_done(folder):
        print(f"the run in {folder} was complete before", file=sys.stderr)
        if not is_writable(folder):
            read_result(folder)  # what is damaged could not be fixed here
            return
    _show_run(settings, folder, lambda job, listeners: go_on(job, folder, listeners))


def _show_run(settings: "Settings", out: Path, work: "Callable[[Job, list[Listener]], Result]") -> None:
    """Load the data, do the work with progress shown, and print what came of it."""
    from rich.console import Console
    from rich.text import Text

    from fedetf.api import prepare
    from fedetf.data.oddities import oddities
    from fedetf.files import is_file
    from fedetf.report.clients import below_majority
    from fedetf.report.progress import make_progress
    from fedetf.report.tables import describe_job, result_table
    from fedetf.runs.records import CONFIG

    terminal = Console(stderr=True, highlight=False)
    with terminal.status(Text(f"loading {settings.data.name}")):  # seen on a terminal only, and gone when it is done
        job = prepare(settings)
    for line in oddities(job.dataset, job.partition):
        terminal.print(line, soft_wrap=True, markup=False)
    progress = make_progress(terminal)
    try:
        with saying(f"what was done is saved; go on with: fedetf resume {out}"):
            result = work(job, [progress])
    except OSError as error:
        if not is_file(out / CONFIG):  # nothing was done
            raise
        raise RunError(in_words(error, f"go on with: fedetf resume {out}")) from error
    finally:
        progress.close()
    console = output()
    console.print(describe_job(job), soft_wrap=True)
    console.print(result_table(job, result.outcome))
    for line in below_majority(job, result.outcome, result.summary["majority_per_client"]):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"files: {out}", soft_wrap=True)
