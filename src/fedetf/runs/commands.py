"""The commands that make a comparison, as its folder keeps them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedetf.config import to_toml
from fedetf.files import is_file, read_text, write_whole
from fedetf.redact import redacted
from fedetf.settings import ADDRESSES

COMMAND = "command.txt"  # in a comparison's folder: the commands that make it, one a line


def command(
    methods: Sequence[str],
    seeds: Sequence[int],
    preset: str | None,
    overrides: Mapping[str, Any],
    equal_budget: bool,
    trust_code: bool = False,
    flags: Mapping[str, str | bool | None] | None = None,
) -> str:
    """The command line of a comparison, without ``--out``; of ``flags`` those that are neither None nor False.

    >>> command(["fedavg", "fedetf"], [7, 8], "demo", {"data.alpha": [0.1, 0.5], "train.rounds": 3}, False)
    "fedetf compare demo --methods fedavg,fedetf --seeds 7,8 --set 'data.alpha=[0.1, 0.5]' --set train.rounds=3"
    """
    words = ["fedetf", "compare", *([preset] if preset else []), "--methods", ",".join(methods)]
    words += ["--seeds", ",".join(map(str, seeds)), *(["--equal-budget"] if equal_budget else [])]
    words += ["--trust-code"] if trust_code else []
    for flag, given in (flags or {}).items():
        if given:
            words += [flag] if given is True else [flag, given]
    for key, value in overrides.items():
        if key not in ADDRESSES:  # they change no number, and may hold a password
            words += ["--set", f"{key}={to_toml(value)}"]
    return shlex.join(words)


def note(folder: Path, line: str) -> None:
    """Add a command to those that made a folder, unless it is among them."""
    lines = "".join(f"{each}\n" for each in dict.fromkeys([*_lines(folder), line]))
    write_whole(folder / COMMAND, lines.encode(), private=True)


def read_commands(folder: Path) -> list[str]:
    """The commands that made a folder, without passwords; none if it is not that of a comparison."""
    return redacted("\n".join(_lines(folder))).splitlines()


def _lines(folder: Path) -> list[str]:
    path = folder / COMMAND
    return read_text(path).splitlines() if is_file(path) else []
