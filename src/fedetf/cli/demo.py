"""``fedetf demo``: FedAvg and FedETF side by side on strongly skewed clients, in a minute or two."""

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedetf.cli.compare import runs_shown
from fedetf.cli.flags import add_command, folder, output

if TYPE_CHECKING:
    from fedetf.runs.read import Run

METHODS = {"fedavg": "FedAvg", "fedetf": "FedETF"}
SEEDS = (7, 8, 9)
PRESET = "demo"


def add_to(commands: Any) -> None:
    """Its flags."""
    demo = add_command(
        commands,
        "demo",
        demo_command,
        "FedAvg and FedETF on the digits inside scikit-learn, dealt out to 20 strongly skewed clients: a table, two "
        "pictures and a page; about a minute on two cores",
        "fedetf demo",
    )
    demo.add_argument("--out", metavar="DIR", type=folder, help="folder for all of it (default: runs/demo-<time>)")


def demo_command(options: argparse.Namespace) -> None:
    """``fedetf demo``."""
    from fedetf.comparison.run import compare
    from fedetf.report.page import write_report
    from fedetf.runs.read import read_run

    out = options.out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    warnings.simplefilter("ignore")  # the tiny clients are mentioned once, below the table
    with runs_shown(f"fedetf demo --out {out}") as progress:
        compare(list(METHODS), SEEDS, PRESET, references=False, out=out, progress=progress)
    show({name: [read_run(out / f"{method}-s{seed}") for seed in SEEDS] for method, name in METHODS.items()}, out)
    output().print(f"page:    {write_report([out], out / 'report.html').path}", soft_wrap=True)


def show(runs: Mapping[str, Sequence["Run"]], out: Path) -> None:
    """Print the table and draw the two pictures; ``runs`` has those of every seed for each method."""
    from fedetf.config import resolve
    from fedetf.data import deal_out, load_dataset
    from fedetf.report.figures import accuracy_figure, partition_figure, save_figure
    from fedetf.report.tables import plain_table

    console, settings = output(), resolve(PRESET, {"seed": SEEDS[0]})
    data = settings.data
    partition = deal_out(load_dataset(data, settings.seed), data, settings.seed)
    rows = [
        [name, *(_each([run.value(m) for run in of]) for m in ("general", "personal"))] for name, of in runs.items()
    ]
    console.print(f"\nAccuracy in %, mean over seeds {', '.join(map(str, SEEDS))} (each seed):\n")
    console.print(plain_table(["method", "general: one model for all", "personal: one for each client"], rows))
    console.print(
        f"\n{data.clients} clients, alpha = {data.alpha:g}: most see one to three of the ten digits, and "
        f"{len(partition.repaired)} of them (seed {settings.seed}) have only four images. General is the mean of the "
        f"last five of {settings.train.rounds} rounds on a balanced test set. Digits are small and easy, so do not "
        "read much into it; docs/results.md has real images.\n"
    )
    title = f"Who holds what: digits, {data.clients} clients, alpha = {data.alpha:g}, seed {settings.seed}"
    curves = {name: [run.curve("general") for run in of] for name, of in runs.items()}
    for picture in (
        save_figure(partition_figure(partition, title), out / "who-holds-what.png"),
        save_figure(accuracy_figure(curves, "One model for all, on strongly skewed digits"), out / "accuracy.png"),
    ):
        console.print(f"picture: {picture}", soft_wrap=True)


def _each(values: Sequence[float | None]) -> str:
    """The mean in percent, and the single values."""
    there = [100 * value for value in values if value is not None]
    return f"{sum(there) / len(there):.1f}   ({', '.join(f'{value:.0f}' for value in there)})"
