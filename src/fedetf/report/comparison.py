"""The table of a comparison: table.md, table.csv, table.json, table.tex, and seeds.csv with every run by itself."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedetf.comparison import fairness
from fedetf.comparison import target as costs
from fedetf.comparison.caption import failures
from fedetf.comparison.judged import JUDGED
from fedetf.comparison.run import Comparison
from fedetf.comparison.standing import Standing
from fedetf.comparison.table import Line, Table
from fedetf.files import write_whole
from fedetf.report.clients import client_rows, fairness_of, lead, shortfall_lines
from fedetf.report.figures import critical_difference_figure, save_figure
from fedetf.report.latex import to_latex
from fedetf.report.numbers import (
    COLUMNS,
    DEVIATION,
    TESTS,
    WORDS,
    mean_and_deviation,
    p_values,
    seeds_of,
    unit,
    with_interval,
)
from fedetf.report.target import target_lead, target_rows
from fedetf.runs.identity import is_methods_own

BAR = r"\|"  # as it is, not between columns
FORMULA = ("=", "+", "@", "\t", "\r")  # a spreadsheet takes text that begins so for a formula


def write_tables(comparison: Comparison) -> list[Path]:
    """Write the files and return where they are."""
    table, folder = comparison.table, comparison.folder
    contents = {
        "table.md": "\n".join(
            filter(
                None,
                [
                    to_markdown(table),
                    best_table(comparison),
                    target_table(comparison),
                    clients_table(table),
                    _tests(table),
                    _note(comparison),
                ],
            )
        ),
        "table.csv": to_csv(records(table, comparison.target)),
        "table.json": to_json(table, comparison.target),
        "table.tex": to_latex(table, comparison.caption),
        "seeds.csv": to_csv(comparison.per_seed),
    }
    for name, text in contents.items():
        write_whole(folder / name, text.encode())
    return [*(folder / name for name in contents), *_diagrams(table, folder)]


def _diagrams(table: Table, folder: Path) -> list[Path]:
    """The critical-difference diagrams, where there are settings and methods enough."""
    drawn = {column: overall for column, overall in table.overall.items() if overall.friedman.drawable}
    return [
        save_figure(critical_difference_figure(overall, column), folder / f"critical-difference-{column}.{ending}")
        for column, overall in drawn.items()
        for ending in ("png", "pdf")
    ]


def _note(comparison: Comparison) -> str:
    failed = "".join(f"\n{line}" for line in failures(comparison.failed))
    overall = "".join(f"\n{said}\n" for said in over_settings(comparison.table))
    return f"{comparison.caption}. {legend(comparison.table)}\n{overall}{failed}"


def legend(table: Table) -> str:
    """What the columns, ± and the words are."""
    return f"{COLUMNS}. {DEVIATION}. {WORDS}." if table.compared_with else f"{COLUMNS}. {DEVIATION}."


def over_settings(table: Table) -> list[str]:
    """What all settings together say, in sentences; none if there is only one."""
    return [f"{name.capitalize()}: {overall.sentence}" for name, overall in table.overall.items()]


def to_markdown(table: Table) -> str:
    """The values of every line, then the differences to the method that all are compared with."""
    parts = [_markdown(_values(table))]
    if table.compared_with:
        parts.append(f"Differences to {table.compared_with}, on the same seeds, with 95 % intervals:\n")
        parts.append(_markdown(_differences(table)))
    return "\n".join(parts)


def best_table(comparison: Comparison) -> str:
    """Each method at its best, or why that cannot be said; nothing where every method was run in one setting."""
    table, note = comparison.best
    return f"{note}{':' if table.lines else '.'}\n\n{to_markdown(table) if table.lines else ''}" if note else ""


def _values(table: Table) -> list[list[str]]:
    of = unit(table.metric)
    axes = list(table.lines[0].row) if table.lines else ["method"]
    columns = [f"general ({of})", f"final model ({of})", f"personal ({of})"]
    rows = [[*axes, *columns, "seeds", "local epochs", "MiB sent per client"]]
    for line, counted, standings in zip(table.lines, table.counted, table.standings, strict=True):
        values = [mean_and_deviation(standings[name].spread, table.metric) for name in ("general", "final", "personal")]
        best = [standings["general"].best, False, standings["personal"].best]
        marked = [f"**{value}**" if mark else value for value, mark in zip(values, best, strict=True)]
        costs = [f"{counted.epochs:.1f}", f"{counted.bytes_up / 2**20:.3g}"]
        rows.append([*_names(line), *marked, seeds_of(standings, line.seeds), *costs])
    for setting, share in table.majority.items():
        like = table.lines[table.settings[setting][0]]  # its axes but for the method are those of the setting
        names = [
            "majority class (reference)",
            *("-" if k in like.own or is_methods_own(k) else v for k, v in list(like.row.items())[1:]),
        ]
        rows.append([*names, "-", "-", mean_and_deviation(share, table.metric), str(share.count), "-", "-"])
    return rows


def _names(line: Line) -> list[str]:
    method, *others = line.row.values()
    return [f"{method} (reference)" if line.reference else method, *others]


def _differences(table: Table) -> list[list[str]]:
    rows = [[*table.lines[0].row, *(head for name in JUDGED for head in (name, "shown"))]]
    for line, judged in _compared(table):
        cells = ((with_interval(standing.difference, table.metric), standing.words or "-") for standing in judged)
        rows.append([*line.row.values(), *(cell for pair in cells for cell in pair)])
    return rows


def target_table(comparison: Comparison) -> str:
    """What each line needs to reach the target; nothing without one."""
    if comparison.target is None:
        return ""
    return f"{target_lead(comparison.target)}\n\n{_markdown(target_rows(comparison.table.counted, comparison.target))}"


def clients_table(table: Table) -> str:
    """How the clients of each line fare, and who is below what; the first only where runs have personal models."""
    rows = client_rows(table.counted)
    fare = f"{lead(table.counted)}\n\n{_markdown(rows)}" if rows else ""
    low = "".join(f"- {line}\n" for line in shortfall_lines(table.counted))
    return "\n".join(filter(None, [fare, low]))


def _tests(table: Table) -> str:
    """The p values behind the differences."""
    if not table.compared_with:
        return ""
    rows = [[*table.lines[0].row, *JUDGED]]
    rows += [[*line.row.values(), *map(p_values, judged)] for line, judged in _compared(table)]
    return f"{TESTS}:\n\n{_markdown(rows)}"


def _compared(table: Table) -> list[tuple[Line, list[Standing]]]:
    """The lines that are compared with another, and how they stand."""
    pairs = (
        (line, [standings[name] for name in JUDGED])
        for line, standings in zip(table.lines, table.standings, strict=True)
    )
    return [(line, judged) for line, judged in pairs if any(standing.difference for standing in judged)]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |\n" for row in lines)


# --- for programs -----------------------------------------------------------------------------------------------------


def records(table: Table, target: float | None = None) -> list[dict[str, object]]:
    """The numbers of each line by name, and what it needs to reach a target: all over the seeds that all lines have."""
    with_fairness = zip(table.counted, fairness_of(table.counted), strict=True)
    return [
        {
            **line.row,
            **_judged(table, number),
            **fairness.by_name(clients),
            **_costs(line),
            **({} if target is None else costs.by_name(costs.to_target(line.runs, target).mean)),
            "reference": line.reference,
        }
        for number, (line, clients) in enumerate(with_fairness)
    ]


def _judged(table: Table, number: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, standing in table.standings[number].items():
        spread, difference = standing.spread, standing.difference
        values[f"{name}_seeds"] = spread.count if spread else 0
        values[f"{name}_mean"] = spread and spread.mean
        values[f"{name}_std"] = spread and spread.std
        if name in JUDGED:
            values[f"{name}_best"] = standing.best
            values[f"{name}_difference"] = difference and difference.mean
            values[f"{name}_low"] = difference and difference.low
            values[f"{name}_high"] = difference and difference.high
            values[f"{name}_p_holm"] = standing.p
            values[f"{name}_p_sign"] = difference and difference.sign_p
            values[f"{name}_p_wilcoxon"] = difference and difference.wilcoxon_p
            values[f"{name}_shown"] = standing.words or None
    return values


def _costs(line: Line) -> dict[str, object]:
    return {"seeds": len(line.seeds), "epochs_per_client": line.epochs, "bytes_up_per_client": line.bytes_up}


def to_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """The numbers as fractions, one line a row; empty where there is none."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else ["method"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def _plain(value: object) -> object:
    """A cell that no spreadsheet calculates: a name that looks like a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def to_json(table: Table, target: float | None = None) -> str:
    """The same with the value of every seed, in the order of ``seeds``; null where there is none."""
    rows = [
        {**record, "seeds": line.seeds, **{name: list(map(each.get, line.seeds)) for name, each in line.scores.items()}}
        for record, line in zip(records(table, target), table.lines, strict=True)
    ]
    return json.dumps(rows, indent=2) + "\n"
