"""Tables on a terminal: nothing is cut, however narrow it is."""

import io

import pytest
from rich.console import Console

from fedetf.report.tables import plain_table, print_markdown

NUMBERS = ["42.08±14.31", "+12.34 [−1.00, +25.68]", "(reference)", "no difference shown"]
MARKDOWN = f"""Values:

| {" | ".join(f"column {k}" for k in range(8))} |
|{"---|" * 8}
| {" | ".join(NUMBERS * 2)} |
| {" | ".join(f"**{cell}**" for cell in NUMBERS * 2)} |
"""


def shown(thing: object, width: int, terminal: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_markdown(thing, console) if isinstance(thing, str) else console.print(thing)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 300])
def test_no_terminal_is_too_narrow_for_a_number(width: int) -> None:
    text = shown(MARKDOWN, width)
    assert "…" not in text
    for word in " ".join(NUMBERS).split():
        assert text.count(word) >= 4, word
    assert all(len(line.rstrip()) <= width for line in text.splitlines())


def test_a_wide_terminal_has_a_table_and_a_narrow_one_paragraphs() -> None:
    assert len(shown(MARKDOWN, 300).strip().splitlines()) == 1 + 1 + 1 + 2  # text, a gap, the heading, two rows
    assert "column 1: +12.34 [−1.00, +25.68]" in shown(MARKDOWN, 80)


def test_only_text_wraps_in_a_table() -> None:
    table = plain_table(["name", "description"], [["fedavg", "word " * 30]])
    first, second, *others = shown(table, 60).splitlines()
    assert first.split() == ["name", "description"]
    assert second.startswith("fedavg  word word")
    assert all(line.startswith(" " * 8 + "word") for line in others)


def test_another_program_gets_markdown_as_it_is() -> None:
    assert shown(MARKDOWN, 20, terminal=False) == f"{MARKDOWN}\n"
