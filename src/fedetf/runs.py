"""The run folder: settings, who held what, every round, checkpoints, models and the result."""

import dataclasses
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedetf.config import Settings
from fedetf.engines import Personal
from fedetf.errors import UserError
from fedetf.federation import Federation, Listener, Outcome, Round, summary
from fedetf.methods import Server
from fedetf.state import save_state, write_whole

KEPT_CHECKPOINTS = 2


def default_folder(settings: Settings, what: str) -> Path:
    """``runs/<dataset>-<what>-s<seed>-<time>``; for a run, what is the method."""
    return (
        Path("runs")
        / f"{file_name(settings.data.name)}-{file_name(what)}-s{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    )


def file_name(name: str) -> str:
    """A dataset's or method's name, which may be a path, as part of a file's name."""
    return re.sub(r"[^\w.=-]+", "-", Path(name).name)


def check_free(path: Path) -> None:
    """Refuse a folder that holds something: nothing is overwritten silently."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists already and is not overwritten; give another --out, or remove it")


def make_folder(path: Path) -> None:
    """Make a folder and those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}; give another --out") from None


class RunFolder(Listener):
    """Writes a run folder as the run goes on. Files are whole or absent, and rounds.jsonl grows by whole lines."""

    def __init__(self, path: Path):
        check_free(path)
        self.path = path

    def started(self, federation: Federation) -> None:
        """Write what is known before the first round."""
        self._federation = federation
        make_folder(self.path)
        self._write("config.toml", federation.job.settings.to_toml())
        self._write("partition.json", federation.job.partition.to_json())
        self._write("schedule.json", json.dumps(federation.schedule))
        make_folder(self.path / "checkpoints")

    def round_done(self, record: Round, server: Server) -> None:
        """Append the round and keep the server's state."""
        self._checkpoint(server)
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(round_line(record)) + "\n")

    def personal_done(self, personal: Personal) -> None:
        """Keep a client's personal model."""
        (self.path / "personal").mkdir(exist_ok=True)
        self._save(personal.state, f"personal/{personal.client}.safetensors")

    def finished(self, outcome: Outcome) -> None:
        """Write the final model and, last of all, the result."""
        self._save(outcome.model, "model.safetensors")
        self._write("result.json", json.dumps(summary(self._federation.job, outcome), indent=2) + "\n")

    def _checkpoint(self, server: Server) -> None:
        folder = self.path / "checkpoints"
        save_state(server.state, folder / f"round-{server.round:05d}.safetensors", {"round": server.round})
        for old in sorted(folder.glob("round-*.safetensors"))[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def _save(self, state: Mapping[str, Tensor], name: str) -> None:
        settings = self._federation.job.settings
        about = {"method": settings.method.name, "model": settings.model.name, "dataset": settings.data.name}
        save_state(state, self.path / name, about)

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode())


def round_line(record: Round) -> dict[str, Any]:
    """A round as rounds.jsonl has it: ``general`` and ``refused`` only where there is something to say."""
    line = dataclasses.asdict(record)
    del line["trained"]  # all participants, once the round is done
    for name in ("general", "refused"):
        if not line[name] and line[name] != 0:
            del line[name]
    return line
