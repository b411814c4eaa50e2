"""What fedetf's methods say of themselves, read from their files: a list of them need not wait for torch.

Nothing is said twice: the classes stay the one place. Their files are parsed, not run. What they cost was found before
(``engines/costs.py``).
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedetf.files import packaged

ROOM = "methods"
PACKAGE = f"fedetf.{ROOM}."
SAID = ("name", "summary", "citation", "family", "extra_passes", "suggested_rate")


@dataclass(frozen=True)
class Entry:
    """A method as a list shows it."""

    name: str
    summary: str
    citation: str
    family: str
    extra_passes: float
    suggested_rate: float
    costs: dict[str, Any]  # the fields of engines.costs.Costs; nothing of a method that has just been added


def methods() -> list[Entry]:
    """All methods of fedetf, in the order of ``fedetf.methods.METHODS``."""
    room = ast.parse(packaged(ROOM, "__init__.py"))
    homes = {name: home for home, name in _imports(room)}
    groups = {
        node.targets[0].id: node.value.elts
        for node in room.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Tuple)
    }
    costs = json.loads(packaged(ROOM, "costs.json"))
    entries = []
    for name in _flat(groups, "_ALL"):
        said = _said(homes[name], name)
        entries.append(Entry(**{key: said[key] for key in SAID}, costs=costs.get(said["name"], {})))
    return entries


def _imports(room: ast.Module) -> Iterator[tuple[str, str]]:
    """The files of a room that it imports from, and the names it takes."""
    for node in room.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(PACKAGE):
            yield from ((f"{node.module.removeprefix(PACKAGE)}.py", each.name) for each in node.names)


def _flat(groups: dict[str, list[ast.expr]], group: str) -> Iterator[str]:
    """The names in a tuple, those of other tuples in it (``*_PAPER``) at their places."""
    for element in groups[group]:
        if isinstance(element, ast.Starred) and isinstance(element.value, ast.Name):
            yield from _flat(groups, element.value.id)
        elif isinstance(element, ast.Name):
            yield element.id


def _said(file: str, name: str) -> dict[str, Any]:
    """The attributes that a class is given as plain values, its own above those of the class it builds on."""
    room = ast.parse(packaged(ROOM, file))
    definition = next(node for node in room.body if isinstance(node, ast.ClassDef) and node.name == name)
    own = {
        node.target.id: ast.literal_eval(node.value)
        for node in definition.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    homes = {name: home for home, name in _imports(room)}
    bases = [base.id for base in definition.bases if isinstance(base, ast.Name) and base.id in homes]
    inherited = _said(homes[bases[0]], bases[0]) if bases else {}
    return {**inherited, **own}
