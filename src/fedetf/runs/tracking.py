"""A run as other tools show it: TensorBoard events and MLflow."""

import logging
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedetf.config import complete
from fedetf.errors import UserError
from fedetf.federation import Federation, Listener
from fedetf.files import is_file, read_text, real_folder, write_whole
from fedetf.methods import Server
from fedetf.outcome import Outcome, Round, summary
from fedetf.redact import public_address, redacted
from fedetf.settings import flat

if TYPE_CHECKING:
    from mlflow import MlflowClient


def scalars(record: Round) -> dict[str, float]:
    """The numbers of a round that are worth a curve: loss, general accuracy and whatever was measured besides."""
    values = {"loss": record.loss, "general": record.general, "validation": record.validation, **record.measures}
    completed = {} if record.completed is None else {"general_completed": record.completed.general}
    return dict(_finite({**values, **completed}))


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
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter  # a quarter of a second that other users need not wait

        done = len(federation.records)
        self._writer = SummaryWriter(str(real_folder(self._folder)), purge_step=done + 1 if done else None)

    def round_done(self, record: Round, server: Server) -> None:
        """Log one round."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def finished(self, outcome: Outcome) -> None:
        """Log the personal accuracy, and what else was measured of personal models, and close the file."""
        others = {f"personal/{name}": value for name, value in outcome.metrics.get("personal", {}).items()}
        for name, value in _finite({"personal": outcome.personal_mean, **others}):
            self._writer.add_scalar(name, value, len(outcome.rounds))
        self._writer.close()


class MLflow(Listener):
    """Logs settings, rounds and results to MLflow; every round once, however often the run was cut short."""

    EXPERIMENT = "fedetf"
    RUN_ID = "mlflow-run.txt"  # in the run folder, so that a resumed run goes on in the same place

    def __init__(self, uri: str, folder: Path | None):
        if find_spec("mlflow") is None:
            raise UserError("measure.mlflow needs MLflow; install it by: pip install 'fedetf[mlflow]'")
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
        name = self._folder.name if self._folder else f"{settings.data.name}-{settings.method.name}-s{settings.seed}"
        run: str = self._client.create_run(number, run_name=name).info.run_id
        values = flat(settings.model_dump(exclude_none=True))
        del values["measure.mlflow"]  # it may hold a password
        self._client.log_batch(run, params=[Param(key, str(value)) for key, value in values.items()])
        if self._folder is not None:
            write_whole(self._folder / self.RUN_ID, f"{run}\n".encode())
        return run

    def _catch_up(self) -> None:
        """Log the rounds that are done and not there yet."""
        for record in self._federation.records:
            if record.round not in self._logged:
                costs = {"seconds": record.seconds, "bytes_up": record.bytes_up, "bytes_down": record.bytes_down}
                self._log([(name, value, record.round) for name, value in {**scalars(record), **costs}.items()])
                self._logged.add(record.round)

    def _log(self, values: Sequence[tuple[str, float, int]]) -> None:
        """Log (name, value, step), all at once."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value, step in values])
