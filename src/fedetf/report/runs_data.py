"""Finds run folders and reads what they hold; what is unfinished or damaged is named, not raised."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedetf.commands import COMMAND
from fedetf.config import ADDRESSES, UpdateSettings, flat
from fedetf.errors import UserError, printable
from fedetf.files import RECORD, UnfitFile, is_file, read_text, read_toml
from fedetf.grid import by_reason
from fedetf.records import Holdings, RoundLine, RunResult, read_holdings, read_result, read_rounds
from fedetf.redact import redacted


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    settings: dict[str, Any]  # by dotted key
    result: RunResult
    rounds: list[RoundLine]
    holdings: Holdings
    comparison: list[str]  # the commands of the comparison that it belongs to, if it does


@dataclass(frozen=True)
class Problem:
    """A run that is not shown, and why."""

    folder: Path
    reason: str


ADDED = flat({"update": UpdateSettings().model_dump()})  # what folders of version 0.1.0 lack: it was as by default now
MOST_NAMED = 3  # folders with the same problem


def in_words(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Each reason once, after the folders that it holds for."""
    found = by_reason({str(problem.folder): problem.reason for problem in problems})
    return [(_named(folders), reason) for reason, folders in found.items()]


def _named(folders: Sequence[str]) -> str:
    more = len(folders) - MOST_NAMED
    return ", ".join(folders[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def gather(folders: Sequence[Path]) -> tuple[list[Run], list[Problem]]:
    """All runs in some folders, at any depth, each once."""
    runs, problems = [], []
    found_in = {given: list(_found_in(given)) for given in folders}
    for folder in dict.fromkeys(found for found_here in found_in.values() for found in found_here):
        try:
            runs.append(_read(folder))
        except UserError as error:
            problems.append(Problem(folder, str(error).replace(f"{folder}/", "")))  # it is named anyway
        except OSError as error:
            problems.append(Problem(folder, f"cannot be read: {error.strerror}"))
    if not runs and not problems:
        raise UserError(f"no run in {', '.join(map(str, folders))}; give folders that fedetf run or compare wrote")
    empty = [Problem(given, "holds no run") for given, found_here in found_in.items() if not found_here]
    return runs, [*problems, *empty]


def _found_in(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise UserError(f"no folder {str(folder)!r}; give the --out of a run or a comparison")
    waiting = [folder]  # no recursion: a stranger's folders may be deeper than Python's stack
    while waiting:
        path = waiting.pop()
        if any(_exists(path / name) for name in ("config.toml", "result.json", "error.part")):
            yield path
        else:
            inner = (each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
            waiting += sorted(inner, reverse=True)


def _read(folder: Path) -> Run:
    settings = _settings(folder)
    if not _exists(folder / "result.json"):
        raise UserError(_how_far(folder))
    result, rounds, holdings = read_result(folder), read_rounds(folder), read_holdings(folder)
    if len(rounds) != result.rounds:
        raise UnfitFile(f"rounds.jsonl is damaged: it does not hold rounds 1 to {result.rounds}")
    command = folder.parent / COMMAND
    commands = redacted(read_text(command)).splitlines() if is_file(command) else []
    return Run(folder, settings, result, rounds, holdings, commands)


def _settings(folder: Path) -> dict[str, Any]:
    config, error = folder / "config.toml", folder / "error.part"
    if not _exists(config):
        raise UserError(f"failed: {_last_line(error)}" if _exists(error) else "config.toml is missing")
    settings = {**ADDED, **flat(read_toml(config))}
    if not isinstance(settings.get("method.name"), str):
        raise UnfitFile("config.toml is damaged: it names no method")
    for key in ADDRESSES:
        settings.pop(key, None)  # pages are passed on, and who reads them need not know
    return settings


def _how_far(folder: Path) -> str:
    """What to say of a run without a result."""
    if _exists(folder / "error.part"):
        return f"failed: {_last_line(folder / 'error.part')}"
    rounds = folder / "rounds.jsonl"
    done = len(read_text(rounds, RECORD).splitlines()) if _exists(rounds) else 0
    return f"not finished, {done} round{'' if done == 1 else 's'} done; go on with: fedetf resume {folder}"


def _exists(path: Path) -> bool:
    """Whether something has that name, be it a link."""
    return path.exists() or path.is_symlink()


def _last_line(path: Path) -> str:
    lines = redacted(read_text(path)).strip().splitlines()
    said = lines[-1].removeprefix("fedetf.errors.").removeprefix("UserError: ") if lines else "no reason is on record"
    return printable(said)
