"""docs/results.md and its pictures, made from the runs that are kept in benchmarks/results.

    python benchmarks/results.py          write them
    python benchmarks/results.py --check  only say whether they are what the runs give; status 1 if not

The text is benchmarks/results.md, a Jinja template. What it says of runs it asks them for, so that no number is typed,
and beside a sentence that depends on how numbers compare stands ``sure(...)``, which stops the command when the runs
do not say so any more.
"""

import argparse
import hashlib
import io
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evidence import HERE, Command, read_commands
from jinja2 import Environment, StrictUndefined  # comes with torch
from matplotlib.figure import Figure
from PIL import Image

from fedetf.files import MIB, read_json, read_toml, write_whole
from fedetf.methods import METHODS
from fedetf.metrics import METRICS
from fedetf.paper.experiment import Part, ScaleName, load_experiment, plan
from fedetf.paper.verdicts import paper_values
from fedetf.report.figures import MARKERS
from fedetf.runs.read import ACCURACIES, Run, is_done, read_run, rounds_so_far
from fedetf.runs.records import CONFIG, RESULT
from fedetf.settings import LAST, flat
from fedetf.statistics import Paired, Verdict, paired, verdicts

ROOT = HERE.parent
TEMPLATE, PAGE, LIST = HERE / "results.md", ROOT / "docs/results.md", HERE / "evidence.txt"
FEDAVG, CCVR = "FedAvg", "CCVR"
FLOOR, CEILING = REFERENCES = ("local", "pooled")
HEAD = "<!-- Made by `python benchmarks/results.py`; edit benchmarks/results.md instead. -->\n"


class NotSoError(Exception):
    """The runs do not say what the text says."""


# --- what was run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Finished runs of one setting, by the row of the table that they belong to."""

    rows: Mapping[str, Sequence[Run]]

    def __bool__(self) -> bool:
        return bool(self.seeds)

    def by_seed(self, row: str, metric: str = "general") -> dict[int, float]:
        """A value for each seed that has it; of ``final``, the general accuracy of the final model."""
        before = self.rows.get(CCVR, ()) if row == FEDAVG and metric != "personal" else ()  # it calibrates in the end
        last = 1 if metric == "final" else LAST
        # Older runs of CCVR have no calibrated model but the final one, so that its value is that one's.
        of_final = metric == "final" or (row == CCVR and metric == "general")
        values = {run.seed: run.result.general if of_final else run.value(metric) for run in self.rows[row]}
        known = {seed: value for seed, value in values.items() if value is not None}
        return dict(sorted(({run.seed: uncalibrated(run, last) for run in before} | known).items()))

    @cached_property
    def seeds(self) -> list[int]:
        """Those that all rows have."""
        each = (self.by_seed(row) or self.by_seed(row, "personal") for row in self.rows)
        return sorted(set.intersection(*map(set, each))) if self.rows else []

    def mean(self, row: str, metric: str = "general") -> float:
        """In percent, over the seeds that all rows have."""
        values = self.by_seed(row, metric)
        return 100 * statistics.mean(values[seed] for seed in self.seeds)

    def best(self, metric: str = "general") -> str:
        """The row with the highest mean; references are no rivals."""
        return max(self.rivals(metric), key=lambda row: self.mean(row, metric), default="")

    def rivals(self, metric: str = "general") -> list[str]:
        """The rows, without references, that have a value with every seed."""
        known = {row for row in self.rows if set(self.seeds) <= self.by_seed(row, metric).keys()}
        return [row for row in self.rows if row in known - set(REFERENCES)]

    def behind(self, row: str, metric: str = "general") -> list[str]:
        """The rows that are shown to be behind one."""
        return [other for other, _, verdict in self.against(row, metric) if verdict is Verdict.AHEAD]

    def against(self, row: str, metric: str) -> list[tuple[str, Paired, Verdict]]:
        """Each other row that has seeds in common with one, the differences, and what they show."""
        pairs = {other: pair for other in self.rows if other != row and (pair := self.pair(row, other, metric))}
        found = zip(pairs.items(), verdicts(list(pairs.values())), strict=True)
        return [(other, pair, verdict or Verdict.NOT_SHOWN) for (other, pair), verdict in found]

    def ahead(self, row: str, other: str, metric: str = "general") -> bool:
        """Whether it is ahead of another with every seed that both have."""
        pair = self.pair(row, other, metric)
        return pair is not None and min(pair.differences.values()) > 0

    def above(self, row: str, metric: str = "general") -> list[str]:
        """The rows that are ahead of one with every seed that both have, the best first."""
        found = [other for other in self.rivals(metric) if other != row and self.ahead(other, row, metric)]
        return sorted(found, key=lambda other: -self.mean(other, metric))

    def below(self, row: str, metric: str = "general") -> list[str]:
        """The rows that one is ahead of with every seed that both have."""
        return [other for other in self.rivals(metric) if other != row and self.ahead(row, other, metric)]

    def lead(self, row: str, other: str, metric: str = "general") -> float:
        """The mean difference in points."""
        pair = self.pair(row, other, metric)
        if pair is None:
            raise NotSoError(f"{row} and {other} have no seed in common")
        return 100 * pair.mean

    def pair(self, row: str, other: str, metric: str = "general") -> Paired | None:
        """The differences, seed by seed; CCVR is compared like with like, final model with final model."""
        like = "final" if metric == "general" and CCVR in (row, other) else metric
        return paired(self.by_seed(row, like), self.by_seed(other, like))

    def majority(self) -> float | None:
        """What always each client's most frequent class would reach on its own test images, in percent, if known."""
        known = [run.result.personal_majority for own in self.rows.values() for run in own if run.seed in self.seeds]
        return 100 * statistics.mean(filter(None, known)) if any(known) else None

    def commits(self) -> str:
        """Of fedetf, which they were made with."""
        runs = (run for own in self.rows.values() for run in own if run.seed in self.seeds)
        found = (str(read_json(run.folder / RESULT).get("commit") or "unknown") for run in runs)
        return ", ".join(sorted({commit.removesuffix("-dirty")[:7] for commit in found}))

    def named_seeds(self) -> str:
        """The seeds in words."""
        return f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"

    # as Markdown

    def table(self, experiment: str, column: str) -> str:
        """General and personal accuracy, mean and each seed, beside what the paper printed in a column of a table."""
        theirs = load_experiment(experiment)
        printed = {row.name: row.values for row in theirs.row}
        place = [each.name for each in theirs.column].index(column)
        lines = []
        for row in self.rows:
            paper = [value.split("±")[0] for value in paper_values(printed, row, place)]
            lines.append([row, self.cell(row, "general"), paper[0], self.cell(row, "personal"), paper[1]])
        return markdown(["method", "general", "paper", "personal", "paper"], lines)

    def costs(self) -> str:
        """Accuracies and costs of methods by name, between the floor and the ceiling of references."""
        middle = [row for row in self.rows if row not in REFERENCES]
        lines = []
        for row in (row for row in (FLOOR, *middle, CEILING) if row in self.rows):
            results = [run.result for run in self.rows[row] if run.seed in self.seeds]
            sent = statistics.mean((result.bytes_up + result.bytes_down) / result.training for result in results)
            passes = statistics.mean(result.image_passes or 0 for result in results)
            epochs = statistics.mean(result.epochs_personal for result in results)
            accuracies = [self.cell(row, metric) for metric in ACCURACIES]
            name = f"[`{row}`](methods/{row}.md)"
            lines.append([name, *accuracies, f"{sent / MIB:.1f}", f"{passes:,.0f}", f"{epochs:.0f}"])
        return markdown(["method", "general", "personal", "MiB a client", "image passes", "personal epochs"], lines)

    def cell(self, row: str, metric: str) -> str:
        """The mean in percent, in bold if it is the highest, and each seed; a dash of nothing."""
        values = self.by_seed(row, metric)
        if not set(self.seeds) <= values.keys():
            return "-"
        mark = "**" if row == self.best(metric) else ""
        each = ", ".join(f"{100 * values[seed]:.1f}" for seed in self.seeds)
        return f"{mark}{self.mean(row, metric):.1f}{mark}" + (f" ({each})" if len(self.seeds) > 1 else "")

    def differences(self, row: str) -> str:
        """A row less each other: mean, 95 % interval and what is shown, corrected for the number of rivals."""
        lines = []
        for metric in ACCURACIES:
            for other, pair, verdict in self.against(row, metric):
                interval = "-"
                if pair.low is not None and pair.high is not None:
                    interval = f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}"
                each = ", ".join(f"{100 * value:+.1f}" for value in pair.differences.values())
                shown = f"{other}, final models" if (other, metric) == (CCVR, "general") else other
                lines.append([metric, shown, f"{100 * pair.mean:+.1f}", interval, each, verdict.value])
        return markdown(["accuracy", f"{row} less", "mean", "95 % interval", "each seed", "shown"], lines)

    # by other metrics than accuracy

    def scores(self, row: str, which: str, metric: str) -> list[float]:
        """Of the global or the personal models, by any metric, for each seed that all rows have; empty if not known."""
        by_seed = {run.seed: run.score(which, metric) for run in self.rows[row]}
        values = [by_seed.get(seed) for seed in self.seeds]
        return [value for value in values if value is not None] if None not in values else []

    def score(self, row: str, which: str, metric: str) -> float:
        """The mean of those."""
        return statistics.mean(self.scores(row, which, metric))

    def scores_table(self, general: Sequence[str], personal: Sequence[str]) -> str:
        """Mean ± sample standard deviation of what global and personal models reach by some metrics."""
        columns = [("general", metric) for metric in general] + [("personal", metric) for metric in personal]
        head = ["method", "rate", *(f"{which}: {METRICS[metric].title}" for which, metric in columns)]
        rates = self.learning_rates()
        lines = [[row, rates[row], *(plus_minus(self.scores(row, *column)) for column in columns)] for row in self.rows]
        return markdown(head, lines)

    def learning_rates(self) -> dict[str, str]:
        """Of each row, as one would type them."""
        used = {row: sorted({run.settings["train.lr"] for run in runs}) for row, runs in self.rows.items()}
        return {row: ", ".join(f"{rate:g}" for rate in rates) for row, rates in used.items()}

    def at(self, chosen: Mapping[str, float]) -> bool:
        """Whether every row has the learning rate that was chosen for it."""
        return self.learning_rates() == {row: f"{chosen[row]:g}" for row in self.rows if row in chosen}


def plus_minus(values: Sequence[float]) -> str:
    """The mean with the sample standard deviation, a dash of nothing."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "-"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def uncalibrated(run: Run, last: int = LAST) -> float:
    """The mean of the last rounds of CCVR before it calibrates in the end: FedAvg's."""
    return statistics.mean(line.general for line in run.rounds[-last:] if line.general is not None)


def name_of(method: str) -> str:
    """As papers write it."""
    return METHODS[method].__name__


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *lines]).rstrip()


# --- what the template can ask for ------------------------------------------------------------------------------------


@dataclass
class Page:
    """The template's words."""

    kept: Path
    pictures: dict[str, tuple[str, Callable[[], Figure]]] = field(default_factory=dict)  # name: digest, how to draw it

    @cached_property
    def folders(self) -> list[Path]:
        """All runs, finished or not."""
        return sorted(path.parent for path in self.kept.rglob(CONFIG))

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        """The finished runs, by the name of the folder that theirs are in."""
        found: dict[str, list[Run]] = {}
        for folder in filter(is_done, self.folders):
            found.setdefault(folder.parent.name, []).append(read_run(folder))
        return found

    @cached_property
    def commands(self) -> list[Command]:
        """The list; planning all of it takes seconds."""
        return read_commands(LIST)

    def experiment(self, name: str, scale: ScaleName, column: str, methods: str = "", **settings: Any) -> Runs:
        """What is finished of one column of an experiment; FedAvg's row is there too if CCVR's is."""
        part = Part(columns=[column], methods=methods.split(",") if methods else ())
        trials = plan(load_experiment(name), scale, part, settings, self.kept / scale)
        done: dict[str, list[Run]] = {trial.row: [] for trial in trials}
        for trial in trials:
            if trial.run.done:
                done[trial.row].append(read_run(trial.run.folder))
        return Runs({row: runs for row, runs in done.items() if runs or (row == FEDAVG and done.get(CCVR))})

    def comparison(self, place: str) -> Runs:
        """What is finished of a comparison in a folder, by the methods' names in the order of their list."""
        done: dict[str, list[Run]] = {method: [] for method in METHODS}
        for run in self.finished.get(place, ()):
            done[run.result.method].append(run)
        return Runs({method: runs for method, runs in done.items() if runs})

    @staticmethod
    def printed(column: str, row: str, metric: str = "general") -> float:
        """A mean of the paper's Table 1."""
        theirs = load_experiment("table1")
        place = [each.name for each in theirs.column].index(column)
        values = paper_values({each.name: each.values for each in theirs.row}, row, place)
        return float(values[ACCURACIES.index(metric)].split("±")[0])

    def unfinished(self) -> str:
        """How far each run came that is not finished; empty if there is none."""
        lines = []
        for folder in self.folders:
            rounds = rounds_so_far(folder)
            if is_done(folder) or not rounds:
                continue
            settings = flat(read_toml(folder / CONFIG))
            known = [f"{100 * line.general:.1f} (round {line.round})" for line in rounds if line.general is not None]
            site = settings.get("data.site_column")
            dealt = f"α = {settings['data.alpha']:g}" if site is None else f"one for each {site}"
            where = f"{folder.relative_to(self.kept).parts[0]}, {settings['data.name']}, {dealt}"
            done = f"{len(rounds)} of {settings['train.rounds']}"
            method = name_of(settings["method.name"])
            lines.append([method, where, str(settings["seed"]), done, known[-1] if known else "-"])
        return markdown(["method", "setting", "seed", "rounds", "general, last measured"], lines) if lines else ""

    def held_out(self, place: str, metric: str) -> dict[str, dict[float, float]]:
        """The mean accuracy on what clients hold out, in percent, of each method that has it, by learning rate."""
        found: dict[str, dict[float, list[float]]] = {method: {} for method in METHODS}
        for run in self.finished.get(place, ()):
            value = vars(run.result.validation)[metric] if run.result.validation else None
            if value is not None:
                found[run.result.method].setdefault(run.settings["train.lr"], []).append(100 * value)
        return {
            method: {rate: statistics.mean(values) for rate, values in sorted(by_rate.items())}
            for method, by_rate in found.items()
            if by_rate
        }

    def chosen(self, place: str) -> dict[str, float]:
        """Each method's best rate there: of its global model, or of personal ones if it has none."""
        general, personal = (self.held_out(place, metric) for metric in ("general_last5", "personal"))
        judged = {**personal, **{method: found for method, found in general.items() if METHODS[method].has_global}}
        return {method: max(by_rate, key=lambda rate: by_rate[rate]) for method, by_rate in judged.items()}

    def rates(self, place: str, metric: str) -> str:
        """A value for each method and learning rate, the best of each in bold; empty if there are no runs."""
        found = self.held_out(place, metric)
        rates = sorted({rate for by_rate in found.values() for rate in by_rate})
        lines = []
        for method, means in found.items():
            cells = {rate: f"{mean:.1f}" for rate, mean in means.items()}
            best = max(means, key=lambda rate: means[rate])
            cells[best] = f"**{cells[best]}**"
            lines.append([name_of(method), *(cells.get(rate, "-") for rate in rates)])
        return markdown(["method", *(f"{rate:g}" for rate in rates)], lines) if lines else ""

    def command(self, place: str) -> str:
        """The command of the list whose runs go to a folder, without that folder, one setting a line."""
        (words,) = (command.words for command in self.commands if place in command.words)
        at = words.index(place)
        return shlex.join(words[: at - 1] + words[at + 1 :]).replace(" --set ", " \\\n    --set ")

    def gaps(self) -> str:
        """Every command of the list, and how many of its runs are kept."""
        lines = []
        for command in self.commands:
            done = command.done(self.kept)
            lines.append([f"{done} of {len(command.runs)}" if done else "none yet", f"`{command.text}`"])
        return markdown(["runs", "command"], lines)

    def curves(self, runs: Runs, name: str, title: str) -> str:
        """A picture of general accuracy over the rounds, mean and range of the seeds that all methods have."""
        points: dict[str, dict[int, list[float]]] = {}
        for row in (row for row in runs.rows if row != CCVR):  # which differs from FedAvg in the end only
            own = {run.seed: run for run in (*(runs.rows[CCVR] if row == FEDAVG else ()), *runs.rows[row])}
            shown = [own[seed] for seed in runs.seeds]
            for line in (line for run in shown for line in run.rounds if line.general is not None):
                points.setdefault(row, {}).setdefault(line.round, []).append(100 * (line.general or 0))
        digest = hashlib.sha256(json.dumps([title, points]).encode()).hexdigest()
        self.pictures[name] = digest, lambda: draw(points, title)
        return f"![{title}](images/{name})"

    @staticmethod
    def slow() -> list[str]:
        """Methods that want another learning rate than FedAvg's."""
        return [name for name, method in METHODS.items() if method.suggested_rate != 1]

    @staticmethod
    def sure(condition: bool, what: str = "") -> str:
        """Nothing, if the runs say what the text says."""
        if not condition:
            raise NotSoError(f"the runs do not say any more: {what}; change the text of {TEMPLATE.name}")
        return ""


def draw(points: Mapping[str, Mapping[int, Sequence[float]]], title: str) -> Figure:
    """A curve for each name, through the mean of what it has in a round, with a band from lowest to highest."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, rounds), marker in zip(points.items(), MARKERS, strict=False):
        at, values = list(rounds), list(rounds.values())
        (line,) = axes.plot(at, [statistics.mean(each) for each in values], marker=marker, markersize=4, label=name)
        axes.fill_between(at, list(map(min, values)), list(map(max, values)), color=line.get_color(), alpha=0.15)
    axes.set(title=title, xlabel="round", ylabel="general accuracy (%)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.2)
    return figure


# --- the command ------------------------------------------------------------------------------------------------------


def render(template: str, kept: Path) -> tuple[str, Page]:
    """The text of the page, and what its pictures show."""
    page = Page(kept)
    tables = ("experiment", "comparison", "printed", "unfinished", "rates", "chosen", "gaps", "curves")
    names = (*tables, "command", "slow", "sure")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    environment.filters |= {"points": lambda value: f"{value:+.1f}", "percent": lambda value: f"{value:.1f}"}
    environment.filters["names"] = lambda methods: ", ".join(f"`{name}`" for name in methods) or "none"
    return HEAD + environment.from_string(template).render({name: getattr(page, name) for name in names}), page


def digest_of(picture: Path) -> str:
    """Of the numbers that a picture shows, as it says itself; empty if there is none."""
    if not picture.is_file():
        return ""
    with Image.open(picture) as image:
        return str(image.info.get("Description", ""))


def changes(text: str, found: Page, page: Path) -> list[str]:
    """The files beside a page, and the page, that are not what the runs give."""
    pictures = {page.parent / "images" / name: digest for name, (digest, _) in found.pictures.items()}
    stale = [path.name for path, digest in pictures.items() if digest_of(path) != digest]
    return stale + ([page.name] if not page.is_file() or page.read_text("utf-8") != text else [])


def write(text: str, found: Page, page: Path) -> None:
    """Write a page, and those of its pictures that have changed."""
    for name in set(changes(text, found, page)) & found.pictures.keys():
        digest, make = found.pictures[name]
        content = io.BytesIO()
        make().savefig(content, format="png", dpi=150, metadata={"Description": digest})
        write_whole(page.parent / "images" / name, content.getvalue())
    write_whole(page, text.encode())


def main() -> int:
    """Write the page and its pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if something would change")
    options = parser.parse_args()
    text, found = render(TEMPLATE.read_text("utf-8"), HERE / "results")
    if not options.check:
        write(text, found, PAGE)
        return 0
    changed = changes(text, found, PAGE)
    print(f"not what the runs give: {', '.join(changed)}" if changed else "all as the runs give it")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
