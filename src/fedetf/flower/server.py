"""The ServerApp: an ordinary federation whose clients are sites, written to an ordinary run folder."""

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict, Field

from fedetf.api import execute, go_on
from fedetf.config import resolve
from fedetf.data import Dataset, Partition, Samples, load_dataset, load_share
from fedetf.data.kinds import Note
from fedetf.engines.job import Job
from fedetf.errors import RunError, StepError, UserError, printable
from fedetf.federation import Federation, Listener
from fedetf.files import is_file, read_json, write_whole
from fedetf.flower.bounds import SampleBound
from fedetf.flower.describe import KeptNote, described
from fedetf.flower.engine import FlowerEngine
from fedetf.flower.federate import Federate
from fedetf.flower.privacy import PrivacyLedger
from fedetf.flower.site import check_agreed, is_named
from fedetf.methods import Server, check_federated, check_private
from fedetf.outcome import Outcome, Round
from fedetf.runs.read import is_done
from fedetf.runs.records import fitting
from fedetf.settings import Settings

LOG = logging.getLogger("flwr")
EXPECTED = (UserError, RunError, OSError)  # a full disk too
NO_TEST = "nothing: the server has no test set"


def server_app(settings: Path) -> ServerApp:
    """The app that the SuperLink runs; ``settings`` is the TOML file beside the app."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            federate = Federate.of(context.run_config)
            chosen = federate.settings(settings, federate.trust_code)
            serve(server_job(federate, chosen, grid), federate, grid)
        except EXPECTED as error:
            LOG.error("error: %s", printable(str(error)))
            raise

    LOG.addFilter(_WITHOUT_TRACEBACK)
    return app


class WithoutTraceback(logging.Filter):
    """Flower logs what a ServerApp raises with a traceback; of an error that is said in one line, it is left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, EXPECTED) and not isinstance(error, StepError):
            record.exc_info = None
        return True


_WITHOUT_TRACEBACK = WithoutTraceback()


def serve(job: Job, federate: Federate, grid: Grid) -> None:
    """Run the federation, or what is missing of it, if the run folder holds the beginning."""
    folder = Path(federate.out).expanduser()
    if is_done(folder):
        raise UserError(f"the run in {folder} is finished; give another: flwr run . --run-config 'out=\"...\"'")
    bound = SampleBound(folder, federate, job.settings.train)
    engine = FlowerEngine(job, federate, grid, PrivacyLedger(folder, job.settings.update), bound)
    note = KeptNote(folder, job.dataset.note)
    listeners: list[Listener] = [RunId(folder, federate, engine), note, RoundLog(federate.sites)]
    if job.settings.update.noise:
        check_private(job.method)
    if not is_file(folder / "config.toml"):
        execute(job, folder, listeners, engine=engine)
        return
    begun = resolve(str(folder / "config.toml"), trust_code=federate.trust_code)
    if begun.to_toml() != job.settings.to_toml():
        raise UserError(f"the settings are not those that {folder} was begun with; put them back, or give another out")
    go_on(job, folder, listeners, engine)


def server_job(federate: Federate, settings: Settings, grid: Grid | None = None) -> Job:
    """The job as the server sees it: a test set, and as many clients as there are sites.

    ``grid``: by which they are asked what preparing their data takes; for images nobody is.
    """
    partition = Partition.of_sites(federate.sites, federate.classes, settings.data.unseen, settings.seed)
    if federate.shape is None and grid is None:
        raise UserError("shape in pyproject.toml must say how large images are: channels x height x width")
    note = None if grid is None or federate.shape else described(federate, settings.data, partition.seen, grid)
    test, source = _test_set(federate, settings, note)
    dataset = Dataset(test, test, federate.classes, share=True, note=note, held_out=source)
    job = Job.make(settings, dataset, partition)
    check_federated(job.method)
    return job


def _test_set(federate: Federate, settings: Settings, note: Note | None) -> tuple[Samples, str]:
    """The server's own test set, and where it comes from."""
    if not federate.test:  # one blank input, which says what the net must take; it is never looked at
        shape, dtype = (federate.shape or (), torch.uint8) if note is None else (note.shape, note.dtype)
        return Samples(torch.zeros(1, *shape, dtype=dtype), torch.zeros(1, dtype=torch.int64)), NO_TEST
    if note is not None and note.fitted and settings.data.fit == "own":
        raise UserError("data.fit = 'own': no statistics of the sites to prepare a test set by; leave test empty")
    if is_named(settings, federate.test):
        dataset = load_dataset(settings.data, settings.seed)
        check_agreed(dataset, federate, federate.test)
        samples, read = dataset.test, dataset.note
    else:
        samples, read = load_share(Path(federate.test).expanduser(), federate.classes, federate.shape, settings.data)
    if read is not None and note is not None:
        samples = replace(samples, x=read.recoded(samples.x, note))
    return samples, "a test set of the server's own"


class RunName(BaseModel):
    """What flower.json says."""

    model_config = ConfigDict(extra="allow")

    run: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class RunId(Listener):
    """Gives the run a name that outlives the server, by which sites find what they kept: flower.json."""

    def __init__(self, folder: Path, federate: Federate, engine: FlowerEngine):
        self._path, self._engine = folder / "flower.json", engine
        self._agreed = federate.model_dump(include={"sites", "classes"})  # not to change on the way
        known = self._known() if is_file(self._path) else self._agreed
        for name, value in self._agreed.items():
            if known.get(name) != value:
                raise UserError(
                    f"the run was begun with {name} = {known.get(name)}; put that back, or give another out"
                )

    def started(self, federation: Federation) -> None:
        """Make the name, or take that of the beginning."""
        if not is_file(self._path):
            content = {"run": secrets.token_hex(16), **self._agreed}
            write_whole(self._path, (json.dumps(content, indent=2) + "\n").encode())
        self._engine.run = self._known()["run"]

    def _known(self) -> dict[str, Any]:
        return fitting(RunName, read_json(self._path), str(self._path)).model_dump()


class RoundLog(Listener):
    """Says in Flower's log what came of each round."""

    def __init__(self, sites: Sequence[str]):
        self._sites = sites

    def started(self, federation: Federation) -> None:
        """Say where the run begins."""
        LOG.info("%d of %d rounds are done", len(federation.records), len(federation.schedule))

    def round_done(self, record: Round, server: Server) -> None:
        """One line."""
        out = {**record.refused, **record.missing}
        for client, why in record.refused.items():
            LOG.warning(
                "%s", printable(f"round {record.round}: the update of {self._sites[client]} is left out: {why}")
            )
        took = ", ".join(self._sites[client] for client in record.participants if client not in out)
        LOG.info("round %d: loss %s, general %s, with %s", record.round, record.loss, record.general, printable(took))

    def finished(self, outcome: Outcome) -> None:
        """The end."""
        LOG.info("done: general %s, personal %s", outcome.general, outcome.personal_mean)
