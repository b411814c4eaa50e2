"""What an experiment of the paper gave, beside what the paper printed: Markdown, CSV, and a picture for a figure."""

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedetf.report.comparison import BEST, mean_and_spread
from fedetf.report.page import write_report
from fedetf.report.paper_figures import FIGURES
from fedetf.reproduce.experiment import ACCURACIES
from fedetf.reproduce.results import in_the_paper, judge, paper_values, sentence
from fedetf.reproduce.run import Reproduction
from fedetf.runs import make_folder
from fedetf.state import write_whole

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
last five rounds and the seeds.
"""


def write_reproduction(found: Reproduction) -> list[Path]:
    """Write its files and return where they are."""
    make_folder(found.folder)
    contents = {".md": to_markdown(found), ".csv": to_csv(found)} if found.trials else {".md": to_markdown(found)}
    paths = []
    for suffix, text in contents.items():
        paths.append(found.folder / f"{found.stem}{suffix}")
        write_whole(paths[-1], text.encode())
    if found.name in FIGURES and (found.results.runs or found.partitions):
        figure = FIGURES[found.name](found)
        for suffix in (".png", ".pdf"):
            paths.append(found.folder / f"{found.stem}{suffix}")
            figure.savefig(paths[-1], dpi=150)
    done = {trial.cell.folder for trial in found.trials if trial.cell.done}
    if done:
        paths.append(write_report(sorted(done), found.folder / f"{found.stem}.html").path)
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
    parts = [f"# {found.experiment.title}\n", f"Scale: {found.scale.about}.\nCommand: `{found.command}`.\n"]
    if found.trials:
        parts.append("Mean±standard deviation (population) over seeds; the best two in bold.\n")
    measured = {column: measures_table(found, column) for column in found.columns}
    for column, measures in measured.items():
        parts.append(f"## {column}\n\n{_conditions(found, column)}\n\n{accuracy_table(found, column)}")
        parts.append(measures)
    if any(measured.values()):
        parts.append(LEGEND)
    parts.append("".join(f"- {line}\n" for line in verdicts(found)))
    parts += [f"Failed: {run}: {why}\n" for run, why in found.failed.items()]
    return "\n".join(part for part in parts if part)


def _conditions(found: Reproduction, column: str) -> str:
    """What was really run under a column's heading, which is the paper's."""
    s = next(trial.cell.settings for trial in found.trials if trial.column == column)
    images = "all images" if s.data.limit is None else f"{s.data.limit:,} images"
    size = "" if s.data.size is None else f" of {s.data.size}×{s.data.size}"
    clients = f"{s.data.clients} clients, {s.data.describe()}, participation {s.train.participation:g}"
    training = f"{s.train.describe()}, batch {s.train.batch_size}, lr {s.train.lr:g}, fidelity {s.fidelity}"
    return f"Run here: {s.data.name}, {images}{size}, {s.model.name}, {clients}, {training}."


def accuracy_table(found: Reproduction, column: str) -> str:
    """Our accuracies and the paper's for every row of a column, as Markdown."""
    rows = found.rows(column)
    names = [c.name for c in found.experiment.column]
    printed = {row.name: row.values for row in found.experiment.row}
    paper = [paper_values(printed, row, names.index(column)) for row in rows]
    columns: dict[str, Sequence[str]] = {"method": rows}
    for metric, theirs in zip(ACCURACIES, zip(*paper, strict=True), strict=True):
        columns[f"{metric} (%)"] = _marked([found.results.values(row, column, metric) for row in rows])
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
            columns[name] = [f"{statistics.mean(v):.3f}" if v else "-" for v in values]
    return _table(columns) if len(columns) > 1 else ""


def _table(columns: dict[str, Sequence[str]]) -> str:
    """Markdown of columns of the same length, by heading."""
    lines = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _marked(values: Sequence[Sequence[float]]) -> list[str]:
    """Mean±std in percent of each row, the best in bold."""
    means = sorted((statistics.mean(v) for v in values if v), reverse=True)
    cells = []
    for seeds in values:
        if not seeds:
            cells.append("-")
            continue
        text = mean_and_spread(seeds)
        cells.append(f"**{text}**" if len(means) > BEST and statistics.mean(seeds) >= means[BEST - 1] else text)
    return cells


def to_csv(found: Reproduction) -> str:
    """One line for each run: where it stands, what it gave, and its folder."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    runs = [run for runs in found.results.runs.values() for run in runs]
    measured = dict.fromkeys(name for run in runs for line in run.rounds for name in line.get("measures", {}))
    metrics = (*ACCURACIES, *measured)
    writer.writerow(["setting", "method", "seed", *metrics, "run"])
    for (row, column), runs in found.results.runs.items():
        for run in runs:
            values = ["" if (value := run.value(metric)) is None else value for metric in metrics]
            writer.writerow([column, row, run.seed, *values, run.folder.name])
    return buffer.getvalue()
