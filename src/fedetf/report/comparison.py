"""The table of a comparison: table.md, table.csv and table.json."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from fedetf.comparison.caption import failures
from fedetf.comparison.run import Comparison
from fedetf.comparison.table import Line, places
from fedetf.files import write_whole
from fedetf.runs.read import ACCURACIES


def write_tables(comparison: Comparison) -> list[Path]:
    """Write the three files and return where they are."""
    lines, folder = comparison.lines, comparison.folder
    failed = "".join(f"\n{line}" for line in failures(comparison.failed))
    marks = "Mean±standard deviation (population) over seeds; in bold the best two on the seeds that all have."
    note = f"\n{comparison.caption}. {marks}\n{failed}"
    contents = {"table.md": to_markdown(lines) + note, "table.csv": to_csv(lines), "table.json": to_json(lines)}
    for name, text in contents.items():
        write_whole(folder / name, text.encode())
    return [folder / name for name in contents]


def to_markdown(lines: Sequence[Line]) -> str:
    """Accuracies in percent, mean±std over seeds, the best two of each setting in bold."""
    axes = list(lines[0].row) if lines else ["method"]
    general = _marked(lines, "general")
    personal = _marked(lines, "personal")
    header = [*axes, "general (%)", "personal (%)", "seeds", "local epochs", "MiB sent per client"]
    rows = [
        [*line.row.values(), g, p, str(len(line.seeds)), f"{line.epochs:.1f}", f"{line.bytes_up / 2**20:.3g}"]
        for line, g, p in zip(lines, general, personal, strict=True)
    ]
    table = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def _marked(lines: Sequence[Line], metric: str) -> list[str]:
    """Each line's mean±std; bold where it is among the best two of its setting."""
    cells = []
    for line, place in zip(lines, places(lines, metric), strict=True):
        spread = line.spread(metric)
        text = "-" if spread is None else spread.percent()
        cells.append(text if place is None else f"**{text}**")
    return cells


def _records(lines: Sequence[Line]) -> list[dict[str, object]]:
    """The numbers of each line by name; a place is 1 or 2, and None behind that."""
    ranked = {metric: places(lines, metric) for metric in ACCURACIES}
    records = []
    for number, line in enumerate(lines):
        record: dict[str, object] = dict(line.row)
        for metric in ACCURACIES:
            spread = line.spread(metric)
            record[f"{metric}_mean"] = spread and spread.mean
            record[f"{metric}_std"] = spread and spread.std
        costs = {"seeds": len(line.seeds), "epochs_per_client": line.epochs, "bytes_up_per_client": line.bytes_up}
        records.append({**record, **costs, **{f"{metric}_place": ranked[metric][number] for metric in ACCURACIES}})
    return records


def to_csv(lines: Sequence[Line]) -> str:
    """The numbers as fractions, one line a row; empty where there is none."""
    buffer, records = io.StringIO(), _records(lines)
    writer = csv.DictWriter(buffer, list(records[0]) if records else ["method"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def to_json(lines: Sequence[Line]) -> str:
    """The same with the value of every seed; null where there is none."""
    rows = [
        {**record, "seeds": line.seeds, "general": line.general, "personal": line.personal}
        for record, line in zip(_records(lines), lines, strict=True)
    ]
    return json.dumps(rows, indent=2) + "\n"
