"""The table of a comparison for a paper: methods × settings in LaTeX, with booktabs."""

from fedetf.comparison.judged import JUDGED
from fedetf.comparison.metric import ACCURACY
from fedetf.comparison.standing import Standing
from fedetf.comparison.table import Table
from fedetf.report.groups import method_name
from fedetf.report.numbers import number, unit
from fedetf.statistics import Verdict

SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "α": r"$\alpha$", "×": r"$\times$", "−": "$-$",
    "±": r"$\pm$", "<": "$<$", ">": "$>$", "|": "$|$",
}  # fmt: skip
MARKS = {Verdict.AHEAD: r"$^{\uparrow}$", Verdict.BEHIND: r"$^{\downarrow}$", Verdict.SAME: "$^{=}$"}


def to_latex(table: Table, caption: str) -> str:
    r"""A table environment that needs ``\usepackage{booktabs}``; its caption says what was run and what marks mean."""
    settings = list(table.settings)
    names = list(dict.fromkeys(line.name for line in table.lines if not line.reference))
    references = list(dict.fromkeys(line.name for line in table.lines if line.reference))
    columns = len(JUDGED) * len(settings)
    body = [_row(table, name) for name in names]
    if references or table.majority:
        body += [r"\midrule", *(_row(table, name) for name in references), *_majority(table)]
    heads = [f"{name.capitalize()} ({latex(unit(table.metric))})" for name in JUDGED]
    head = [" & ".join(["Method", *heads * len(settings)])]
    if len(settings) > 1:
        spans = (rf"\multicolumn{{{len(JUDGED)}}}{{c}}{{{latex(setting)}}}" for setting in settings)
        head.insert(0, " & ".join(["", *spans]))
    lines = [
        r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering",
        rf"\caption{{{latex(_caption(table, caption))}{_marks(table)}}}",
        rf"\begin{{tabular}}{{l{'r' * columns}}}", r"\toprule", *(rf"{line} \\" for line in head), r"\midrule",
        *body, r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    r"""Text that LaTeX shows as it is.

    >>> latex("100 % of a_b")
    '100 \\% of a\\_b'
    """
    return "".join(SIGNS.get(sign, sign) for sign in text)


def _row(table: Table, name: str) -> str:
    cells, shown = [], name
    for numbers in table.settings.values():
        place = next((n for n in numbers if table.lines[n].name == name), None)
        if place is not None:
            method, comma, own = name.partition(", ")
            shown = method_name(method) + comma + own
        cells += [_cell(table, None if place is None else table.standings[place][column]) for column in JUDGED]
    return " & ".join([latex(shown), *cells]) + r" \\"


def _cell(table: Table, standing: Standing | None) -> str:
    if standing is None or standing.spread is None:
        return "--"
    mean, std = standing.spread.mean, standing.spread.std
    text = latex(number(mean, table.metric))
    text = rf"\textbf{{{text}}}" if standing.best else text
    deviation = "" if std is None else rf" {{\scriptsize$\pm${number(std, table.metric)}}}"
    return text + deviation + (MARKS.get(standing.verdict, "") if standing.verdict else "")


def _majority(table: Table) -> list[str]:
    if not table.majority:
        return []
    shares = (table.majority.get(setting) for setting in table.settings)
    cells = (f"-- & {'--' if share is None else latex(number(share.mean, table.metric))}" for share in shares)
    return [" & ".join(["majority class", *cells]) + r" \\"]


def _caption(table: Table, caption: str) -> str:
    what = "Accuracy" if table.metric == ACCURACY else table.metric.title
    references = " Below the line: references, not ranked." if any(line.reference for line in table.lines) else ""
    general = "General: the global model, mean of the last five rounds. Personal: mean over clients."
    less = any(len(line.runs) < len(line.seeds) for line in table.counted if line.runs)
    counted = " Only seeds that all methods of a setting have are counted." if less else ""
    return f"{what}, mean±sample standard deviation over seeds. {general}{references}{counted} {caption}."


def _marks(table: Table) -> str:
    if not table.compared_with:
        return ""
    said = {standing.verdict for line in table.standings for standing in line.values()}
    same = f", {MARKS[Verdict.SAME]}~identical to" if Verdict.SAME in said else ""
    arrows = f"{MARKS[Verdict.AHEAD]}~ahead of, {MARKS[Verdict.BEHIND]}~behind{same} {latex(table.compared_with)}"
    how = r"paired $t$ interval of 95\,\% over common seeds, Holm's correction; no mark: no difference shown"
    return rf" {arrows}: {how}. Bold: the best, and those not shown to be behind it, where some are."
