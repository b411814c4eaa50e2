"""``fedetf tune``."""

import argparse
from pathlib import Path
from typing import Any

from fedetf.cli.compare import runs_shown, show
from fedetf.cli.flags import (
    add_command,
    add_data_flags,
    add_out,
    add_seed,
    add_source,
    add_training_flags,
    given_settings,
    output,
    several_values,
    start_workers_early,
    words,
)
from fedetf.errors import UserError


def add_to(commands: Any) -> None:
    """Its flags."""
    tune = add_command(
        commands,
        "tune",
        tune_command,
        "choose settings for each method on validation data, with equal trials for all (needs fedetf[tune])",
        "fedetf tune --methods fedavg,fedprox,fedetf --trials 8 --then-compare --seeds 7,8,9",
    )
    add_source(tune)
    tune.add_argument("--methods", metavar="A,B", type=words, required=True, help="methods, separated by commas")
    tune.add_argument("--trials", metavar="N", type=int, default=8, help="trials of each method (default: 8)")
    tune.add_argument(
        "--trial-rounds",
        metavar="T",
        type=int,
        help="rounds of a trial (default: a fourth of the rounds, at least ten)",
    )
    tune.add_argument(
        "--space",
        metavar="FILE.toml",
        type=Path,
        help="what is tried (default: the learning rate and every number of the method's own)",
    )
    tune.add_argument("--then-compare", action="store_true", help="compare the methods in full with what was chosen")
    tune.add_argument("--seeds", metavar="S,T", type=several_values(int), help="the seeds of that comparison")
    add_data_flags(tune)
    add_training_flags(tune)
    add_seed(tune)
    add_out(tune, "folder for trials and results (default: runs/tune-<dataset>-<hash of the settings>)")


def tune_command(options: argparse.Namespace) -> None:
    """``fedetf tune``."""
    if options.then_compare != (options.seeds is not None):
        raise UserError("--then-compare and --seeds belong together; give both or neither")
    start_workers_early(options.engine)
    from fedetf.comparison.run import compare
    from fedetf.files import write_whole
    from fedetf.report.tables import print_markdown
    from fedetf.report.tuning import caption, to_json, to_markdown, write_tuning
    from fedetf.runs.records import TUNING
    from fedetf.tuning.run import tune

    given = given_settings(options)
    console = output()
    with runs_shown() as progress:
        tuning = tune(
            options.methods,
            options.trials,
            options.source,
            settings=given,
            space=options.space,
            trial_rounds=options.trial_rounds,
            out=options.out,
            progress=progress,
            trust_code=options.trust_code,
        )
    paths = write_tuning(tuning)
    console.print(caption(tuning), soft_wrap=True)
    print_markdown(to_markdown(tuning), console)
    files = [*paths, *tuning.files]
    console.print(f"files: {', '.join(map(str, files))}", soft_wrap=True)
    if not options.then_compare:
        return
    seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
    given.pop("seed", None)
    with runs_shown() as progress:
        comparison = compare(
            options.methods,
            seeds,
            options.source,
            settings={**given, **tuning.chosen},
            out=tuning.folder / "compare",
            progress=progress,
            trust_code=options.trust_code,
        )
    write_whole(comparison.folder / TUNING, to_json(tuning).encode())
    show(comparison)
    if tuning.trial.seed in seeds:
        console.print(
            f"Seed {tuning.trial.seed} was tuned on too: its partition may suit what was chosen. For a claim, give the "
            "trials another one: --seed S."
        )
    console.print("The references (local, pooled) were not tuned: they have the settings that the command gives.")
