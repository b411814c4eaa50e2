"""A run as other tools show it: TensorBoard events, MLflow, and Weights & Biases."""

import logging
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedetf.config import complete
from fedetf.errors import UserError, need
from fedetf.federation import Federation, Listener
from fedetf.files import is_file, read_text, write_whole
from fedetf.methods import Server
from fedetf.outcome import Outcome, Round, summary
from fedetf.redact import public_address, redacted
from fedetf.runs.events import EventFile
from fedetf.settings import ADDRESSES, Settings, flat

if TYPE_CHECKING:
    import wandb
    from mlflow import MlflowClient


def scalars(record: Round) -> dict[str, float]:
    """The numbers of a round that are worth a curve: loss, general accuracy and whatever was measured besides."""
    values = {"loss": record.loss, "general": record.general, "validation": record.validation, **record.measures}
    completed = {} if record.completed is None else {"general_completed": record.completed.general}
    return dict(_finite({**values, **completed}))


def _with_costs(record: Round) -> dict[str, float]:
    costs = {"seconds": record.seconds, "bytes_up": record.bytes_up, "bytes_down": record.bytes_down}
    return {**scalars(record), **costs}


def _shown(settings: Settings) -> dict[str, Any]:
    """All settings by their dotted names, but for addresses, which may hold a password."""
    return {key: value for key, value in flat(settings.model_dump(exclude_none=True)).items() if key not in ADDRESSES}


def _name(settings: Settings, folder: Path | None) -> str:
    return folder.name if folder else f"{settings.data.name}-{settings.method.name}-s{settings.seed}"


def _finite(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, (int, float)) and math.isfinite(value):
            yield name, float(value)


@contextmanager
def _warning_of(what: str) -> Iterator[None]:
    """Warn of whatever goes wrong: a tracking server that is down must not cost the run."""
    try:
        yield
    except Exception as error:
        warnings.warn(redacted(f"{what}: {_first_line(error)}"), stacklevel=2)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


class TensorBoard(Listener):
    """Writes loss, accuracies and measures as TensorBoard scalars."""

    def __init__(self, folder: Path):
        self._folder = folder

    def started(self, federation: Federation) -> None:
        """Begin an event file."""
        self._events = EventFile(self._folder, after=len(federation.records))

    def round_done(self, record: Round, server: Server) -> None:
        """Log one round."""
        self._events.add(scalars(record), record.round)

    def finished(self, outcome: Outcome) -> None:
        """Log the personal accuracy, and what else was measured of personal models."""
        others = {f"personal/{name}": value for name, value in outcome.metrics.get("personal", {}).items()}
        self._events.add(dict(_finite({"personal": outcome.personal_mean, **others})), len(outcome.rounds))


class MLflow(Listener):
    """Logs settings, rounds and results to MLflow; every round once, however often the run was cut short."""

    EXPERIMENT = "fedetf"
    RUN_ID = "mlflow-run.txt"  # in the run folder, so that a resumed run goes on in the same place

    def __init__(self, uri: str, folder: Path | None):
        need("mlflow", "measure.mlflow", "mlflow")
        self._uri, self._folder = complete(uri, "measure.mlflow"), folder
        with self._naming():  # a store that is not there is found out before anything is written
            self._client = self._connected()
            self._client.get_experiment_by_name(self.EXPERIMENT)

    def started(self, federation: Federation) -> None:
        """Open the run, or make it, and log the rounds that were done before and are not there."""
        self._federation = federation
        with self._naming():
            self._run = self._found() or self._made()
            seconds = self._client.get_metric_history(self._run, "seconds")  # the one that every round has
        self._logged = {metric.step for metric in seconds}
        self._catch_up()

    def round_done(self, record: Round, server: Server) -> None:
        """Log the round; if the store is away, the next one brings it along."""
        with _warning_of(f"round {record.round} is not in MLflow yet"):
            self._catch_up()

    def finished(self, outcome: Outcome) -> None:
        """Log the results and end the run."""
        resume = f" (to log them: fedetf resume {self._folder})" if self._folder else ""
        with _warning_of(f"the results are not in MLflow{resume}"):
            self._catch_up()
            if "result.rounds" not in self._client.get_run(self._run).data.metrics:  # else: finished, and resumed
                results = {f"result.{k}": v for k, v in _finite(flat(summary(self._federation.job, outcome)))}
                curve = [("result.personal_curve", value, step) for step, value in enumerate(outcome.personal_curve)]
                self._log([*((name, value, len(outcome.rounds)) for name, value in results.items()), *curve])
            self._client.set_terminated(self._run)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Say in one line, without a password, that the store cannot be used."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of MLflow about its own dependencies
                yield
        except Exception as error:  # whatever a store can raise: of a driver, a network, a file system
            hint = "for example --set measure.mlflow=sqlite:///mlflow.db"
            shown = public_address(self._uri)
            reason = _first_line(error).replace(self._uri, shown)
            raise UserError(f"cannot log to MLflow at {shown}: {reason}; {hint}") from None  # its own text has the URI

    def _connected(self) -> "MlflowClient":
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("DO_NOT_TRACK", "true")
        from mlflow import MlflowClient  # seconds that other users need not wait

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table it makes
        return MlflowClient(tracking_uri=self._uri)

    def _found(self) -> str | None:
        """The run that an earlier attempt logged to."""
        from mlflow.exceptions import MlflowException

        path = self._folder and self._folder / self.RUN_ID
        if path is None or not is_file(path):
            return None
        run = read_text(path).strip()
        try:
            self._client.get_run(run)
        except MlflowException:  # another store than before, or a run that was deleted there
            return None
        return run

    def _made(self) -> str:
        from mlflow.entities import Param

        settings = self._federation.job.settings
        experiment = self._client.get_experiment_by_name(self.EXPERIMENT)
        number = self._client.create_experiment(self.EXPERIMENT) if experiment is None else experiment.experiment_id
        run: str = self._client.create_run(number, run_name=_name(settings, self._folder)).info.run_id
        values = _shown(settings)
        self._client.log_batch(run, params=[Param(key, str(value)) for key, value in values.items()])
        if self._folder is not None:
            write_whole(self._folder / self.RUN_ID, f"{run}\n".encode())
        return run

    def _catch_up(self) -> None:
        """Log the rounds that are done and not there yet."""
        for record in self._federation.records:
            if record.round not in self._logged:
                self._log([(name, value, record.round) for name, value in _with_costs(record).items()])
                self._logged.add(record.round)

    def _log(self, values: Sequence[tuple[str, float, int]]) -> None:
        """Log (name, value, step), all at once."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value, step in values])


class WeightsAndBiases(Listener):
    """Logs settings, rounds and results to Weights & Biases, which brings its own key and modes (``WANDB_MODE``)."""

    RUN_ID = "wandb-run.txt"  # in the run folder, so that a resumed run goes on in the same place

    def __init__(self, project: str, folder: Path | None):
        need("wandb", "measure.wandb", "wandb")
        self._team, _, self._project = project.rpartition("/")
        self._folder = folder

    def started(self, federation: Federation) -> None:
        """Open the run, or make it with the rounds that were done before."""
        self._job = federation.job
        known = self._folder and self._folder / self.RUN_ID
        number = read_text(known).strip() if known and is_file(known) else None
        self._run = self._opened(number)
        if number is None:
            if known:
                write_whole(known, f"{self._run.id}\n".encode())
            for record in federation.records:
                self._run.log(_with_costs(record), step=record.round, commit=True)

    def round_done(self, record: Round, server: Server) -> None:
        """Log the round, unless an attempt that was cut short has; a network that is away is its client's business."""
        if record.round >= self._run.step:
            self._run.log(_with_costs(record), step=record.round, commit=True)

    def finished(self, outcome: Outcome) -> None:
        """Log the results and end the run."""
        with _warning_of("the results are not in Weights & Biases"):
            results = _finite(flat(summary(self._job, outcome)))
            self._run.summary.update({f"result.{name}": value for name, value in results})
            self._run.finish()

    def _opened(self, number: str | None) -> "wandb.Run":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # a second that other users need not wait

        settings = self._job.settings
        # It would note the command line, which may hold a password, the machine, its user and the code beside it.
        quiet = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True,
            x_disable_stats=True, x_disable_machine_info=True,
        )  # fmt: skip
        try:
            return wandb.init(
                project=self._project, entity=self._team or None, name=_name(settings, self._folder), id=number,
                resume="allow" if number else None, config=_shown(settings), settings=quiet,
            )  # fmt: skip
        except Exception as error:  # no key, no such project, no network
            hint = "log in by: wandb login, or set WANDB_MODE=offline"
            raise UserError(f"cannot log to Weights & Biases: {redacted(_first_line(error))}; {hint}") from None
