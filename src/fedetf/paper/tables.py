"""What an experiment of the paper gave, beside what the paper printed: Markdown, CSV, and a picture for a figure."""

import csv
import io
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from fedetf.comparison.caption import conditions, failures
from fedetf.comparison.metric import ACCURACY
from fedetf.comparison.standing import Column, Standing, chosen_rival, common_seeds, judge_columns, on_seeds
from fedetf.files import make_folder, write_whole
from fedetf.metrics import QUANTITIES
from fedetf.paper.figures import FIGURES
from fedetf.paper.run import Reproduction
from fedetf.paper.verdicts import in_the_paper, judge, paper_values, sentence
from fedetf.redact import without_folders
from fedetf.report.figures import save_figure
from fedetf.report.numbers import WORDS, seeds_of, with_interval
from fedetf.report.page import About, write_report
from fedetf.runs.read import ACCURACIES

# Short words, so that a terminal has room for them; LEGEND says what they are.
MEASURES = {quantity.name: quantity.short for quantity in QUANTITIES if quantity.short}
LEGEND = """NC2 is the neural-collapse error of the global model: lower is better. The others say how far the clients
agree after local training, in their prototypes (means of features), heads and encoders: higher is better. Mean over the
last five rounds (of all, if there are fewer) and the seeds. docs/measures.md has their definitions.
"""
LETTERS = 16  # how many small ones fit into an inch of a figure's width


def write_reproduction(reproduction: Reproduction) -> list[Path]:
    """Write its files and return where they are."""
    make_folder(reproduction.folder)
    drawn = reproduction.name in FIGURES and bool(reproduction.results.runs or reproduction.partitions)
    picture = f"\n![{reproduction.experiment.title}]({reproduction.stem}.png)\n" if drawn else ""
    contents = {
        ".md": to_markdown(reproduction) + picture,
        **({".csv": to_csv(reproduction)} if reproduction.trials else {}),
    }
    paths = []
    for suffix, text in contents.items():
        paths.append(reproduction.folder / f"{reproduction.stem}{suffix}")
        write_whole(paths[-1], text.encode())
    if drawn:
        figure = FIGURES[reproduction.name](reproduction)
        note = f"Scale {reproduction.scale_name}: {really_run(reproduction, reproduction.columns)}"
        figure.supxlabel(textwrap.fill(note, width=int(LETTERS * figure.get_figwidth())), fontsize="x-small")
        for suffix in (".png", ".pdf"):
            paths.append(reproduction.folder / f"{reproduction.stem}{suffix}")
            save_figure(figure, paths[-1])
    done = {trial.run.folder for trial in reproduction.trials if trial.run.done}
    if done:
        about = About(reproduction.experiment.title, [_scale(reproduction), *verdicts(reproduction)])
        paths.append(write_report(sorted(done), reproduction.folder / f"{reproduction.stem}.html", about).path)
    return paths


def verdicts(reproduction: Reproduction) -> list[str]:
    """Whether the paper's claims hold here, one line each."""
    lines = [
        sentence(claim, judge(claim, reproduction.results, reproduction.columns))
        + in_the_paper(claim, reproduction.experiment)
        for claim in reproduction.experiment.claim
    ]
    for column, partition in reproduction.partitions.items():
        lacking = int((partition.counts == 0).any(axis=1).sum())
        word = "yes" if lacking == len(partition) else "no"
        lines.append(f"{column}, every client lacks some class: {word}, {lacking} of {len(partition)}")
    return lines


def to_markdown(reproduction: Reproduction) -> str:
    """A table for each column of the experiment, and the claims."""
    parts = [
        f"# {reproduction.experiment.title}\n",
        f"{_scale(reproduction)} What was really run is under each heading.\n"
        f"Command: `{without_folders(reproduction.command)}`.\n",
    ]
    if reproduction.trials:
        parts.append(
            f"Mean±population standard deviation over the seeds that all rows have, as the paper has it.\n{WORDS}.\n"
        )
    for column in reproduction.columns:
        any_run = reproduction.partitions or any(
            (row, column) in reproduction.results.runs for row in reproduction.rows(column)
        )
        what = "Run here" if any_run else "Nothing has run yet of"
        parts.append(f"## {reproduction.heading(column)}\n\n{what}: {really_run(reproduction, [column])}.\n")
        if reproduction.trials:
            tables = (accuracy_table, differences_table, measures_table)
            parts += [table(reproduction, column) for table in tables]
    if any(run.rounds[-1].measures for runs in reproduction.results.runs.values() for run in runs):
        parts.append(LEGEND)
    parts.append("".join(f"- {line}\n" for line in verdicts(reproduction)))
    parts += failures(reproduction.failed)
    return "\n".join(part for part in parts if part)


def _scale(reproduction: Reproduction) -> str:
    return f"Scale {reproduction.scale_name}: {reproduction.scale.about}."


def really_run(reproduction: Reproduction, columns: Sequence[str]) -> str:
    """What was run under the headings of columns, which are the paper's."""
    chosen = [settings for column in columns for settings in reproduction.settings[column]]
    seeds = sorted({settings.seed for settings in chosen})
    named = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"{conditions(chosen, bool(reproduction.trials))}, {named}"


def accuracy_table(reproduction: Reproduction, column: str) -> str:
    """Our accuracies and the paper's for every row of a column, as Markdown."""
    rows = reproduction.rows(column)
    names = [c.name for c in reproduction.experiment.column]
    printed = {row.name: row.values for row in reproduction.experiment.row}
    paper = [paper_values(printed, row, names.index(column)) for row in rows]
    columns: dict[str, Sequence[str]] = {"method": rows}
    judged, seeds = _judged(reproduction, column), list[str]()
    for metric, theirs in zip(ACCURACIES, zip(*paper, strict=True), strict=True):
        columns[f"{metric} (%)"] = [_marked(standing) for standing in judged[metric].standings]
        if any(value != "-" for value in theirs):
            columns[f"paper's {metric} (%)"] = theirs
    for place, row in enumerate(rows):
        own = [run.seed for run in reproduction.results.runs.get((row, column), [])]
        seeds.append(seeds_of({metric: each.standings[place] for metric, each in judged.items()}, own))
    columns["seeds"] = seeds
    return _table(columns)


def measures_table(reproduction: Reproduction, column: str) -> str:
    """What was measured beside accuracy, for every row of a column; empty if nothing was."""
    rows = reproduction.rows(column)
    columns: dict[str, Sequence[str]] = {"method": rows}
    for metric, name in MEASURES.items():
        values = [reproduction.results.by_seed(row, column, metric) for row in rows]
        seeds = common_seeds(values)
        if any(values):
            counted = [on_seeds(seeds, each).values() for each in values]
            columns[name] = [f"{statistics.mean(v):.4f}" if v else "-" for v in counted]
    return _table(columns) if len(columns) > 1 else ""


def _table(columns: dict[str, Sequence[str]]) -> str:
    """Markdown of columns of the same length, by heading."""
    lines = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _judged(reproduction: Reproduction, column: str) -> dict[str, Column]:
    """How the rows of a column stand."""
    rows = reproduction.rows(column)
    scores = {metric: [reproduction.results.by_seed(row, column, metric) for row in rows] for metric in ACCURACIES}
    return judge_columns(scores, chosen_rival([[row] for row in rows], None))


def _marked(standing: Standing) -> str:
    """Mean±population std in percent; in bold where it is among the best."""
    text = "-" if standing.spread is None else standing.spread.percent(population=True)
    return f"**{text}**" if standing.best else text


def differences_table(reproduction: Reproduction, column: str) -> str:
    """Every row of a column against FedETF, or the first, seed by seed; empty if nothing can be compared."""
    rows, judged = reproduction.rows(column), _judged(reproduction, column)
    chosen = chosen_rival([[row] for row in rows], None)
    if chosen is None or not any(standing.difference for each in judged.values() for standing in each.standings):
        return ""
    columns: dict[str, Sequence[str]] = {f"less {rows[chosen]}": rows}
    for metric, each in judged.items():
        columns[f"{metric} (points)"] = [with_interval(standing.difference, ACCURACY) for standing in each.standings]
        columns[f"{metric}: shown"] = [standing.words or "-" for standing in each.standings]
    return _table(columns)


def to_csv(reproduction: Reproduction) -> str:
    """One line for each run: where it stands, what it gave, and its folder."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    runs = [run for runs in reproduction.results.runs.values() for run in runs]
    measured = dict.fromkeys(name for run in runs for line in run.rounds for name in line.measures)
    metrics = (*ACCURACIES, *measured)
    writer.writerow(["setting", "method", "seed", *metrics, "run"])
    for (row, column), runs in reproduction.results.runs.items():
        for run in runs:
            values = ["" if (value := run.value(metric)) is None else value for metric in metrics]
            writer.writerow([column, row, run.seed, *values, run.folder.name])
    return buffer.getvalue()
