"""What mkdocs does not do by itself: docstrings without their roles, and the reference of commands from the parser."""

import argparse
import re
from collections.abc import Iterator
from typing import Any

from fedetf.cli import build_parser

ROLE = re.compile(r":(?:func|class|meth|mod|attr):(?=<code>)")
COMMANDS = "<!-- commands -->"  # where the reference goes


def on_page_content(html: str, **_: Any) -> str:
    """Leave out roles (``:func:`run```), which Markdown does not know; the name after one is in code type anyway."""
    return ROLE.sub("", html)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the reference of commands where a page asks for it."""
    return markdown.replace(COMMANDS, "\n".join(reference(build_parser()))) if COMMANDS in markdown else markdown


def reference(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Each command with what it does, its arguments and an example, as Markdown."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield from _command(parser)
    for command in (command for action in inner for command in action.choices.values()):
        yield from reference(command)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from ("", f"## {parser.prog}", "", parser.description or "", "")
    if parser.epilog:
        yield from ("```sh", parser.epilog.removeprefix("example: "), "```", "")
    yield from ("| argument | what it is |", "|---|---|")
    actions = (action for group in parser._action_groups for action in group._group_actions)
    yield from (_row(action, parser) for action in actions if "--help" not in action.option_strings)
    yield ""


def _row(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    # As the parser itself would print it: flags with the names of their values, and defaults filled in.
    formatter = parser._get_formatter()
    name = formatter._format_action_invocation(action)
    what = formatter._expand_help(action) if action.help else ""
    if action.choices and not action.metavar:
        what = f"{what} (one of {', '.join(map(str, action.choices))})"
    what = what.replace("<", "&lt;")  # no markup
    return f"| `{name}` | {_cell(what)}{'; required' if action.required and action.option_strings else ''} |"


def _cell(text: str) -> str:
    """Text in a table of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
