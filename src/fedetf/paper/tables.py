"""What an experiment of the paper gave, beside what the paper printed: Markdown, CSV, and a picture for a figure."""

import csv
import io
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from fedetf.comparison.caption import conditions, failures
from fedetf.comparison.ranking import Scores, Spread, rank
from fedetf.files import make_folder, write_whole
from fedetf.paper.figures import FIGURES
from fedetf.paper.run import Reproduction
from fedetf.paper.verdicts import in_the_paper, judge, paper_values, sentence
from fedetf.redact import without_folders
from fedetf.report.figures import save_figure
from fedetf.report.page import About, write_report
from fedetf.runs.read import ACCURACIES

# Short words, so that a terminal has room for them; LEGEND says what they are.
MEASURES = {
    "nc2_uncentred": "NC2 as in paper",
    "nc2": "NC2 centred",
    "prototype_consistency": "protos",
    "prototype_consistency_raw": "protos of h",
    "prototype_consistency_centred": "protos centred",
    "classifier_consistency": "heads",
    "model_consistency": "encoders",
}
LEGEND = """NC2 is the neural-collapse error of the global model: lower is better. The others say how far the clients
agree after local training, in their prototypes (means of features), heads and encoders: higher is better. Mean over the
last five rounds (of all, if there are fewer) and the seeds. docs/measures.md has their definitions.
"""
LETTERS = 16  # so many of the small ones go into an inch of a figure's width


def write_reproduction(found: Reproduction) -> list[Path]:
    """Write its files and return where they are."""
    make_folder(found.folder)
    drawn = found.name in FIGURES and bool(found.results.runs or found.partitions)
    picture = f"\n![{found.experiment.title}]({found.stem}.png)\n" if drawn else ""
    contents = {".md": to_markdown(found) + picture, **({".csv": to_csv(found)} if found.trials else {})}
    paths = []
    for suffix, text in contents.items():
        paths.append(found.folder / f"{found.stem}{suffix}")
        write_whole(paths[-1], text.encode())
    if drawn:
        figure = FIGURES[found.name](found)
        note = f"Scale {found.scale_name}: {really_run(found, found.columns)}"
        figure.supxlabel(textwrap.fill(note, width=int(LETTERS * figure.get_figwidth())), fontsize="x-small")
        for suffix in (".png", ".pdf"):
            paths.append(found.folder / f"{found.stem}{suffix}")
            save_figure(figure, paths[-1])
    done = {trial.run.folder for trial in found.trials if trial.run.done}
    if done:
        about = About(found.experiment.title, [_scale(found), *verdicts(found)])
        paths.append(write_report(sorted(done), found.folder / f"{found.stem}.html", about).path)
    return paths


def verdicts(found: Reproduction) -> list[str]:
    """Whether the paper's claims hold here, one line each."""
    lines = [
        sentence(claim, judge(claim, found.results, found.columns)) + in_the_paper(claim, found.experiment)
        for claim in found.experiment.claim
    ]
    for column, partition in found.partitions.items():
        lacking = int((partition.counts == 0).any(axis=1).sum())
        word = "yes" if lacking == len(partition) else "no"
        lines.append(f"{column}, every client lacks some class: {word}, {lacking} of {len(partition)}")
    return lines


def to_markdown(found: Reproduction) -> str:
    """A table for each column of the experiment, and the claims."""
    parts = [
        f"# {found.experiment.title}\n",
        f"{_scale(found)} What was really run is under each heading.\nCommand: `{without_folders(found.command)}`.\n",
    ]
    if found.trials:
        parts.append(
            "Mean±standard deviation (population) over seeds; in bold the best two on the seeds that all have.\n"
        )
    for column in found.columns:
        any_run = found.partitions or any((row, column) in found.results.runs for row in found.rows(column))
        what = "Run here" if any_run else "Nothing has run yet of"
        parts.append(f"## {found.heading(column)}\n\n{what}: {really_run(found, [column])}.\n")
        if found.trials:
            parts += [accuracy_table(found, column), measures_table(found, column)]
    if any(run.rounds[-1].measures for runs in found.results.runs.values() for run in runs):
        parts.append(LEGEND)
    parts.append("".join(f"- {line}\n" for line in verdicts(found)))
    parts += failures(found.failed)
    return "\n".join(part for part in parts if part)


def _scale(found: Reproduction) -> str:
    return f"Scale {found.scale_name}: {found.scale.about}."


def really_run(found: Reproduction, columns: Sequence[str]) -> str:
    """What was run under the headings of columns, which are the paper's."""
    chosen = [settings for column in columns for settings in found.settings[column]]
    seeds = sorted({settings.seed for settings in chosen})
    named = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"{conditions(chosen, bool(found.trials))}, {named}"


def accuracy_table(found: Reproduction, column: str) -> str:
    """Our accuracies and the paper's for every row of a column, as Markdown."""
    rows = found.rows(column)
    names = [c.name for c in found.experiment.column]
    printed = {row.name: row.values for row in found.experiment.row}
    paper = [paper_values(printed, row, names.index(column)) for row in rows]
    columns: dict[str, Sequence[str]] = {"method": rows}
    for metric, theirs in zip(ACCURACIES, zip(*paper, strict=True), strict=True):
        columns[f"{metric} (%)"] = _marked([found.results.by_seed(row, column, metric) for row in rows])
        if any(value != "-" for value in theirs):
            columns[f"paper's {metric} (%)"] = theirs
    columns["seeds"] = [str(len(found.results.runs.get((row, column), []))) for row in rows]
    return _table(columns)


def measures_table(found: Reproduction, column: str) -> str:
    """What was measured beside accuracy, for every row of a column; empty if nothing was."""
    rows = found.rows(column)
    columns: dict[str, Sequence[str]] = {"method": rows}
    for metric, name in MEASURES.items():
        values = [found.results.values(row, column, metric) for row in rows]
        if any(values):
            columns[name] = [f"{statistics.mean(v):.4f}" if v else "-" for v in values]
    return _table(columns) if len(columns) > 1 else ""


def _table(columns: dict[str, Sequence[str]]) -> str:
    """Markdown of columns of the same length, by heading."""
    lines = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _marked(rows: Sequence[Scores]) -> list[str]:
    """Mean±std in percent of each row's seeds; in bold the best two on the seeds that all rows have."""
    cells = []
    for scores, place in zip(rows, rank(rows).places, strict=True):
        spread = Spread.of(scores.values())
        text = "-" if spread is None else spread.percent()
        cells.append(text if place is None else f"**{text}**")
    return cells


def to_csv(found: Reproduction) -> str:
    """One line for each run: where it stands, what it gave, and its folder."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    runs = [run for runs in found.results.runs.values() for run in runs]
    measured = dict.fromkeys(name for run in runs for line in run.rounds for name in line.measures)
    metrics = (*ACCURACIES, *measured)
    writer.writerow(["setting", "method", "seed", *metrics, "run"])
    for (row, column), runs in found.results.runs.items():
        for run in runs:
            values = ["" if (value := run.value(metric)) is None else value for metric in metrics]
            writer.writerow([column, row, run.seed, *values, run.folder.name])
    return buffer.getvalue()
