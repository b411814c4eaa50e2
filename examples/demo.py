"""FedAvg and FedETF side by side on strongly skewed clients: `make demo`.

Three seeds of each, two at a time, on the digits inside scikit-learn. All that it makes is below runs/demo-<time>/.
"""

import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import fedetf
from fedetf.report.figures import accuracy_figure, partition_figure, save_figure
from fedetf.report.tables import plain_table

METHODS = {"fedavg": "FedAvg", "fedetf": "FedETF"}
SEEDS = (7, 8, 9)


def one_run(preset: str, method: str, seed: int, out: Path) -> fedetf.Result:
    """One run, in a process of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tiny clients are said once, below
        return fedetf.run(preset, method=method, seed=seed, out=out / f"{method}-s{seed}")


def all_runs(console: Console, out: Path, preset: str = "demo") -> dict[str, list[fedetf.Result]]:
    """Every method with every seed, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} runs"))
    # "spawn" starts each process afresh: a fork of a process that has used torch's threads can hang
    with (
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
        ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as pool,
    ):
        task = progress.add_task("training", total=len(METHODS) * len(SEEDS))
        jobs = {(m, s): pool.submit(one_run, preset, m, s, out) for s in SEEDS for m in METHODS}
        for _ in as_completed(jobs.values()):
            progress.advance(task)
    return {method: [jobs[method, seed].result() for seed in SEEDS] for method in METHODS}


def spread(values: list[float]) -> str:
    """Mean ± standard deviation in percent, and the single values."""
    each = ", ".join(f"{100 * value:.0f}" for value in values)
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.pstdev(values):.1f}   ({each})"


def show(console: Console, results: dict[str, list[fedetf.Result]], out: Path) -> None:
    """Print the table and draw the two pictures."""
    first = results["fedavg"][0]
    data = first.settings.data
    rows = [
        [
            name,
            spread([run.general_last5 for run in results[method]]),
            spread([run.personal for run in results[method]]),
        ]
        for method, name in METHODS.items()
    ]
    console.print(f"\nAccuracy in %, mean ± std over seeds {', '.join(map(str, SEEDS))} (each seed):\n")
    console.print(plain_table(["method", "general: one model for all", "personal: one for each client"], rows))
    tiny = len(first.partition.repaired)  # they drew fewer, and were given four
    console.print(
        f"\n{data.clients} clients, alpha = {data.alpha:g}: most see one to three of the ten digits, and {tiny} of "
        f"them (seed {SEEDS[0]}) have only four images. General is the mean of the last five of {len(first.rounds)} "
        "rounds on a balanced test set. Digits are small and easy, so do not read much into it; real images are in "
        "docs/results.md.\n"
    )
    title = f"Who holds what: digits, {data.clients} clients, alpha = {data.alpha:g}, seed {SEEDS[0]}"
    curves = {name: [[r.general for r in run.rounds] for run in results[method]] for method, name in METHODS.items()}
    pictures = [
        save_figure(partition_figure(first.partition, title), out / "who-holds-what.png"),
        save_figure(accuracy_figure(curves, "One model for all, on strongly skewed digits"), out / "accuracy.png"),
    ]
    for picture in pictures:
        console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    console.print(f"runs:    {out}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    folder = Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    terminal = Console()
    show(terminal, all_runs(terminal, folder), folder)
