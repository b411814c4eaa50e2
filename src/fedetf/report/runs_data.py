"""Finds run folders and reads what they hold; what is unfinished or damaged is named, not raised."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from fedetf.config import UpdateSettings, flat
from fedetf.errors import UserError
from fedetf.grid import COMMAND, by_reason

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, before it moved here
    import tomli as tomllib


def _finite_or_none(value: Any) -> Any:
    return None if value in (float("inf"), float("-inf")) or value != value else value


Number = Annotated[float, Field(allow_inf_nan=False)]
Maybe = Annotated[Number | None, BeforeValidator(_finite_or_none)]  # JSON as Python writes it may hold NaN


class RoundLine(BaseModel):
    """What the page shows of a line of rounds.jsonl."""

    round: int
    loss: Maybe = None
    general: Maybe = None
    seconds: Number = 0.0
    measures: dict[str, Maybe] = {}
    refused: dict[int, str] = {}
    missing: dict[int, str] = {}


class RunResult(BaseModel):
    """What the page shows of result.json."""

    method: str
    seed: int
    clients: Annotated[int, Field(ge=1)]
    rounds: int
    general_last5: Maybe
    personal: Maybe
    personal_curve: list[Maybe] = []
    epochs_train: Number
    epochs_personal: Number
    bytes_up: Number
    bytes_down: Number


class Held(BaseModel):
    """What one client holds, of partition.json."""

    counts: list[Annotated[int, Field(ge=0)]]


class Holdings(BaseModel):
    """Who holds what, of partition.json."""

    classes: Annotated[list[str], Field(min_length=1)]
    clients: Annotated[list[Held], Field(min_length=1)]
    sites: list[str] = []  # the names of clients, if they have any
    elsewhere: bool = False  # with real sites, who tell nobody


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


M = TypeVar("M", bound=BaseModel)


def gather(folders: Sequence[Path]) -> tuple[list[Run], list[Problem]]:
    """All runs in some folders, at any depth, each once."""
    runs, problems = [], []
    found_in = {given: list(_found_in(given)) for given in folders}
    for folder in dict.fromkeys(found for found_here in found_in.values() for found in found_here):
        try:
            runs.append(_read(folder))
        except _UnusableError as error:
            problems.append(Problem(folder, str(error)))
    if not runs and not problems:
        raise UserError(f"no run in {', '.join(map(str, folders))}; give folders that fedetf run or compare wrote")
    empty = [Problem(given, "holds no run") for given, found_here in found_in.items() if not found_here]
    return runs, [*problems, *empty]


def _found_in(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise UserError(f"no folder {str(folder)!r}; give the --out of a run or a comparison")
    if (folder / "config.toml").exists() or (folder / "result.json").exists() or (folder / "error.part").exists():
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _found_in(path)


class _UnusableError(Exception):
    """A run that cannot be shown."""


def _read(folder: Path) -> Run:
    settings = _settings(folder)
    if not (folder / "result.json").exists():
        raise _UnusableError(_how_far(folder))
    result = _checked(RunResult, folder / "result.json")
    lines = _text(folder / "rounds.jsonl").splitlines()
    try:
        rounds = TypeAdapter(list[RoundLine]).validate_python([json.loads(line) for line in lines])
    except (ValueError, RecursionError):  # of JSON or of its content
        raise _UnusableError("rounds.jsonl is damaged") from None
    if [line.round for line in rounds] != list(range(1, result.rounds + 1)):
        raise _UnusableError(f"rounds.jsonl is damaged: it does not hold rounds 1 to {result.rounds}")
    holdings = _checked(Holdings, folder / "partition.json")
    if any(len(held.counts) != len(holdings.classes) for held in holdings.clients):
        raise _UnusableError("partition.json is damaged: counts and classes do not match")
    command = folder.parent / COMMAND
    return Run(folder, settings, result, rounds, holdings, _text(command).splitlines() if command.is_file() else [])


def _settings(folder: Path) -> dict[str, Any]:
    config, error = folder / "config.toml", folder / "error.part"
    if not config.exists() and error.exists():
        raise _UnusableError(f"failed: {_last_line(error)}")
    try:
        settings = {**ADDED, **flat(tomllib.loads(_text(config)))}
    except tomllib.TOMLDecodeError:
        raise _UnusableError("config.toml is damaged") from None
    if not isinstance(settings.get("method.name"), str):
        raise _UnusableError("config.toml is damaged: it names no method")
    settings.pop("measure.mlflow", None)  # pages are passed on, and an address may hold a password
    return settings


def _how_far(folder: Path) -> str:
    """What to say of a run without a result."""
    if (folder / "error.part").exists():
        return f"failed: {_last_line(folder / 'error.part')}"
    rounds = folder / "rounds.jsonl"
    done = len(_text(rounds).splitlines()) if rounds.exists() else 0
    return f"not finished, {done} round{'' if done == 1 else 's'} done; go on with: fedetf resume {folder}"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise _UnusableError(f"{path.name} is missing") from None
    except (OSError, UnicodeDecodeError):
        raise _UnusableError(f"{path.name} cannot be read") from None


def _last_line(path: Path) -> str:
    lines = _text(path).strip().splitlines()
    return lines[-1].removeprefix("fedetf.errors.").removeprefix("UserError: ") if lines else "no reason is on record"


def _checked(model: type[M], path: Path) -> M:
    try:
        return model.model_validate(json.loads(_text(path)))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise _UnusableError(f"{path.name} is damaged{f' ({where})' if where else ''}") from None
    except (ValueError, RecursionError):
        raise _UnusableError(f"{path.name} is damaged") from None
