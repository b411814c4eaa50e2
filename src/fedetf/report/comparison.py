"""The table of a comparison: table.md, table.csv and table.json."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from fedetf.files import write_whole
from fedetf.grid import Comparison, Line, failures

BEST = 2  # so many of each setting are in bold, as in the paper's tables


def write_tables(comparison: Comparison) -> list[Path]:
    """Write the three files and return where they are."""
    lines, folder = comparison.lines, comparison.folder
    failed = "".join(f"\n{line}" for line in failures(comparison.failed))
    note = f"\n{comparison.caption}. Mean±standard deviation (population) over seeds, best two in bold.\n{failed}"
    contents = {"table.md": to_markdown(lines) + note, "table.csv": to_csv(lines), "table.json": to_json(lines)}
    for name, text in contents.items():
        write_whole(folder / name, text.encode())
    return [folder / name for name in contents]


def to_markdown(lines: Sequence[Line]) -> str:
    """Accuracies in percent, mean±std over seeds, the best two of each setting in bold."""
    axes = list(lines[0].row) if lines else ["method"]
    general = _marked(lines, lambda line: line.general)
    personal = _marked(lines, lambda line: line.personal)
    header = [*axes, "general (%)", "personal (%)", "seeds", "local epochs", "MiB sent per client"]
    rows = [
        [*line.row.values(), g, p, str(len(line.seeds)), f"{line.epochs:.1f}", f"{line.bytes_up / 2**20:.3g}"]
        for line, g, p in zip(lines, general, personal, strict=True)
    ]
    table = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def _marked(lines: Sequence[Line], values: Callable[[Line], list[float]]) -> list[str]:
    """Each line's mean±std; bold where it is among the best of the lines that differ from it by the method only."""
    cells = []
    for line in lines:
        spread = line.spread(values(line))
        if spread is None:
            cells.append("-")
            continue
        rivals = [other for other in lines if _setting(other) == _setting(line) and values(other)]
        means = sorted((statistics.mean(values(rival)) for rival in rivals), reverse=True)
        text = mean_and_spread(values(line))
        cells.append(f"**{text}**" if spread[0] >= means[:BEST][-1] else text)
    return cells


def mean_and_spread(seeds: Sequence[float]) -> str:
    """Mean±std in percent over seeds; of a single one, its value."""
    deviation = f"±{100 * statistics.pstdev(seeds):.2f}" if len(seeds) > 1 else ""
    return f"{100 * statistics.mean(seeds):.2f}{deviation}"


def _setting(line: Line) -> dict[str, str]:
    return {key: value for key, value in line.row.items() if key != "method"}


def _record(line: Line) -> dict[str, object]:
    general, personal = line.spread(line.general), line.spread(line.personal)
    return {
        **line.row,
        "general_mean": general and general[0],
        "general_std": general and general[1],
        "personal_mean": personal and personal[0],
        "personal_std": personal and personal[1],
        "seeds": len(line.seeds),
        "epochs_per_client": line.epochs,
        "bytes_up_per_client": line.bytes_up,
    }


def to_csv(lines: Sequence[Line]) -> str:
    """The numbers as fractions, one line a row; empty where there is none."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(_record(lines[0])) if lines else ["method"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(line) for line in lines)
    return buffer.getvalue()


def to_json(lines: Sequence[Line]) -> str:
    """The same with the value of every seed; null where there is none."""
    rows = [
        {**_record(line), "seeds": line.seeds, "general": line.general, "personal": line.personal} for line in lines
    ]
    return json.dumps(rows, indent=2) + "\n"
