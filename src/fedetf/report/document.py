"""A page of titles, sentences, tables and pictures, as text for a terminal, as Markdown and as HTML."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from rich.console import Console

from fedetf.report.tables import plain_table

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222}
:root{color-scheme:light dark}@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}}
table{display:block;overflow-x:auto;border-collapse:collapse;margin:1rem 0}
td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:left}
img{max-width:100%}h2{margin-top:2rem}"""


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    sentences: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[Figure] = field(default=())  # in HTML only


def print_page(title: str, sections: Sequence[Section], console: Console) -> None:
    """Show it on a terminal."""
    console.print(title, style="bold", soft_wrap=True)
    for section in sections:
        console.print(f"\n{section.title}", style="bold")
        for sentence in section.sentences:
            console.print(sentence, markup=False)
        if section.columns:
            console.print(plain_table(section.columns, section.rows))


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The page as Markdown."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *section.sentences]
        if section.columns:
            lines = [section.columns, ["---"] * len(section.columns), *section.rows]
            parts.append(
                "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
            )
    return "\n\n".join(parts) + "\n"


def to_html(title: str, sections: Sequence[Section]) -> str:
    """The page as HTML, in one file."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += [f"<p>{html.escape(sentence)}</p>" for sentence in section.sentences]
        if section.columns:
            lines = [_line("th", section.columns), *(_line("td", row) for row in section.rows)]
            parts.append("<table>\n" + "\n".join(lines) + "\n</table>")
        parts += [f'<img alt="{html.escape(section.title)}" src="{embedded(figure)}">' for figure in section.figures]
    viewport = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8">{viewport}<title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _line(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def embedded(figure: Figure) -> str:
    """A picture as an address that holds it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
