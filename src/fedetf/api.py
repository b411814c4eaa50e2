"""The package from Python: ``fedetf.run``."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedetf.config import from_short, resolve
from fedetf.core.state import load_state
from fedetf.data import Dataset, Partition, deal_out, load_dataset, make_schedule
from fedetf.data.fit import fitted, tested
from fedetf.data.load import from_frames
from fedetf.data.own import as_table, from_clients, is_dataframe
from fedetf.data.partition import as_seen, check_partition
from fedetf.data.sources import SITE
from fedetf.data.unseen import without_unseen
from fedetf.engines.base import Engine
from fedetf.engines.job import AUTO, Job
from fedetf.engines.placement import choose
from fedetf.engines.private import PrivateStates
from fedetf.errors import UserError
from fedetf.features import runs_once, with_encoder, with_features
from fedetf.federation import Federation, Listener
from fedetf.files import is_file, real_folder
from fedetf.methods import Method, check_private, is_method, method_of
from fedetf.nn.encoders import check_model, has_kernels, is_model
from fedetf.nn.encoders.fused import build_ahead
from fedetf.nn.heads import Net
from fedetf.outcome import Outcome, Round, summary
from fedetf.runs.folder import CLIENTS, RunFolder, check_free, check_same_partition, last_attempt, locked
from fedetf.runs.identity import MAY_CHANGE, decides_folder
from fedetf.runs.read import config_of
from fedetf.runs.tracking import MLflow, TensorBoard, WeightsAndBiases
from fedetf.settings import Settings
from fedetf.transforms import make_compression

Data = Any  # what run(data=...) takes, see there
OWN = "own"  # data.name of such a run


@dataclass(frozen=True, repr=False)
class Result:
    """What :func:`run` returns. Accuracies are fractions; None where there is none."""

    job: Job
    outcome: Outcome
    schedule: list[list[int]]
    folder: Path | None

    def __repr__(self) -> str:
        s, accuracies = self.settings, f"general={self.general}, personal={self.personal}"
        return f"Result({s.method.name} on {s.data.name}, seed={s.seed}, {accuracies}, folder={self.folder})"

    @property
    def settings(self) -> Settings:
        """The settings of the run, complete."""
        return self.job.settings

    @property
    def partition(self) -> Partition:
        """Who held what."""
        return self.job.partition

    @property
    def rounds(self) -> list[Round]:
        """One record a round."""
        return self.outcome.rounds

    @property
    def general(self) -> float | None:
        """Accuracy of the final global model on the balanced test set."""
        return self.outcome.general

    @property
    def general_last5(self) -> float | None:
        """The mean of that over the last five rounds."""
        return self.outcome.general_last5

    @property
    def personal(self) -> float | None:
        """Accuracy of the personal models, each on its client's test split, averaged over clients."""
        return self.outcome.personal_mean

    @property
    def personal_per_client(self) -> list[float | None]:
        """The same for each client."""
        return self.outcome.personal

    @property
    def summary(self) -> dict[str, Any]:
        """What result.json holds."""
        return summary(self.job, self.outcome)

    def model(self, client: int | None = None) -> Net:
        """The global model, or the personal one of a client (kept only if the run had an ``out`` folder).

        It takes inputs as the encoder saw them, that is after normalising, and gives logits ``[batch, classes]``.
        """
        net = self.job.build_net()
        if client is None:
            state = self.outcome.model
        elif self.folder is None:
            raise UserError("personal models are kept on disk only; give run(..., out='some/folder')")
        else:
            path = real_folder(self.folder / "personal") / f"{client}.safetensors"
            if not is_file(path):
                raise UserError(f"there is no personal model {path}; clients are 0 to {len(self.partition) - 1}")
            state = load_state(path)
        net.load_state_dict(with_encoder(net, state))
        return net.eval()


def run(
    preset: str | None = None,
    *,
    data: Data | None = None,
    test: Any = None,
    method: str | type[Method] | None = None,
    model: str | nn.Module | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    listeners: Sequence[Listener] | None = None,
    trust_code: bool = False,
    **short: Any,
) -> Result:
    """Run one federation from data to accuracies; with no argument, FedETF on the embedded digits.

    Parameters
    ----------
    preset:
        A preset's name or a TOML file, as ``fedetf run`` takes it.
    data:
        Your own data instead of a named dataset: one entry for each client, in a list or, by the names of the sites, in
        a dict. An entry is ``(x, y)``, a DataFrame with a column of labels, or the path of a CSV or Parquet file or of
        a folder. ``x`` is ``[n, …]``: uint8 images, numbers ``[n, features]``, a DataFrame or a list of texts; ``y`` is
        ``[n]``. Or a single DataFrame, which is dealt out as ``site_column`` or ``clients`` say. Settings that are not
        given are those of ``fedetf list settings``.
    test:
        ``(x, y)``, the balanced test set that belongs to ``data``. Without it the general accuracy is measured on what
        all clients hold out for testing.
    method:
        A method's name, ``path/to/file.py:Name``, or your own subclass of :class:`fedetf.Method`.
    model:
        The name of an encoder, or your own: any ``nn.Module`` from a batch of inputs to ``[batch, features]``, or
        ``package.module:factory``. If it has a ``preprocess``, that turns stored batches into its inputs, instead of
        ``data.normalize``. If all of its parameters are frozen (``requires_grad_(False)``), it runs once for all.
    out:
        A new folder to write the run to. Without it nothing is written.
    settings:
        Any other setting by its dotted key, for example ``{"train.lr": 0.1}``; see ``fedetf list settings``.
    listeners:
        Are told of every round. Without any, progress is shown on a terminal and in a notebook, on standard error;
        ``listeners=[]`` is silent.
    trust_code:
        Also run code that the TOML file names. What you name yourself, by ``method``, ``model`` or ``settings``, needs
        no such consent.
    short:
        ``dataset``, ``clients``, ``alpha``, ``site_column``, ``participation``, ``rounds``, ``epochs``, ``seed``,
        ``engine``, ``workers``, ``device``, ``compile``: the same as the flags of ``fedetf run``.

    Examples
    --------
    >>> result = run(method="fedavg", clients=5, rounds=1, epochs=1)
    >>> 0 <= result.general <= 1
    True
    """
    encoder = model if isinstance(model, nn.Module) else None
    own = method if isinstance(method, type) else None
    if data is None and test is not None:
        raise UserError("test belongs to data=[(x, y), ...]; a named dataset brings its own test set")
    if data is not None:
        dealt = ("dataset",) if is_dataframe(data) else ("dataset", "clients", "alpha", "site_column")
        given = [name for name in dealt if short.get(name) is not None]
        if given:
            raise UserError(f"data=[...] says who holds what, so leave out: {', '.join(given)}")
        short = {**short, "dataset": OWN}
    names = {"method": own.name if own else method, "model": type(model).__name__ if encoder is not None else model}
    resolved = resolve(preset, {**from_short({**short, **names}), **(settings or {})}, trust_code)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_free(folder)  # said at once, and nothing is written before the run starts
    if data is None:
        job = prepare(resolved, encoder, own)
    else:
        job = prepare_own(resolved, data, test, encoder, own)
    return execute(job, folder, listeners or ())


def resume(
    folder: str | os.PathLike[str],
    *,
    data: Data | None = None,
    test: Any = None,
    method: type[Method] | None = None,
    model: nn.Module | None = None,
    engine: str | None = None,
    workers: int | None = None,
    settings: Mapping[str, Any] | None = None,
    listeners: Sequence[Listener] | None = None,
    trust_code: bool = False,
) -> Result:
    """Go on with a run where it stopped, to the same bits as if it had never stopped.

    Parameters
    ----------
    folder:
        The ``out`` of the run.
    data:
        The same that the run was given, if it was given any: a folder holds no data and no code.
    test:
        Likewise.
    method:
        Likewise, if it was a class.
    model:
        Likewise, if it was a module.
    engine:
        What runs the rest, if it shall be another engine than before.
    workers:
        How many of them, if it shall be another number.
    settings:
        Other settings of the engine, and the address of MLflow: a folder holds addresses without their passwords.
    listeners:
        As for :func:`run`.
    trust_code:
        Run the code that the folder's ``config.toml`` names (``FILE.py:NAME``), and connect to the Ray cluster that it
        names. Without it, such a folder is refused.
    """
    path = Path(folder)
    given = [name for name, value in (("data", data), ("method", method), ("model", model)) if value is not None]
    others = {**other_engine(engine, workers), **(settings or {})}
    resolved = run_settings(path, others, given, trust_code)
    if data is not None:
        job = prepare_own(resolved, data, test, model, method)
    else:
        job = prepare(resolved, model, method)
    return go_on(job, path, listeners or ())


def other_engine(engine: str | None, workers: int | None) -> dict[str, Any]:
    """The settings of another engine for the rest of a run, by dotted key; none if none is asked for."""
    return {} if engine is None and workers is None else {"engine.name": engine or "auto", "engine.workers": workers}


def run_settings(
    folder: Path, others: Mapping[str, Any], given: Sequence[str] = (), trust_code: bool = False
) -> Settings:
    """The settings that a run folder holds, but for ``others``; ``given`` are the objects that are at hand."""
    config = config_of(folder)
    for key in others:
        if decides_folder(key):
            free = ", ".join(sorted(MAY_CHANGE))
            raise UserError(f"{key} belongs to the run and stays; a resumed run may change {free}")
    settings = resolve(str(config), others, trust_code, unused=[f"{name}.name" for name in given])
    missing = {
        "data": settings.data.partition == "given" or settings.data.name == OWN,
        "method": not is_method(settings.method.name),
        "model": not is_model(settings.model.name),
    }
    for name, is_missing in missing.items():
        if is_missing and name not in given:
            raise UserError(f"{folder} was given its {name} in Python; go on with fedetf.resume(folder, {name}=...)")
    return settings


def prepare(
    settings: Settings,
    encoder: nn.Module | None = None,
    own: type[Method] | None = None,
    dataset: Dataset | None = None,
) -> Job:
    """Load the data, deal it out and set up the method; whatever is wrong with the input comes out here.

    ``dataset`` is what the settings name, for callers that have loaded it already.
    """
    method = method_of(settings, own)
    check_partition(settings.data)
    if encoder is None and settings.model.name != AUTO:
        check_model(settings.model.name)  # what is wrong with these three is said before the data is read
    if settings.engine.compile and encoder is None and has_kernels(settings.model.name):
        build_ahead()
    dataset = dataset or load_dataset(settings.data, settings.seed)
    partition = deal_out(dataset, settings.data, settings.seed)
    if partition.sites:  # a column of the data names the clients, or their files or folders do
        named = {"clients": len(partition), "site_column": settings.data.site_column or SITE}
        data = settings.data.model_copy(update=named)
        settings = settings.model_copy(update={"data": data})
    seen = _as_dealt(dataset, partition, settings)
    return _checked(Job.make(settings, seen, partition, encoder, method))


def prepare_own(
    settings: Settings,
    data: Data,
    test: Any,
    encoder: nn.Module | None,
    own_method: type[Method] | None,
) -> Job:
    """The same with the user's own data, where who holds what is given."""
    method = method_of(settings, own_method)
    as_it_is = hasattr(encoder, "preprocess") or settings.data.normalize == "none"
    if is_dataframe(data):
        frames = {"train": as_table(data, "data"), **({} if test is None else {"test": as_table(test, "test")})}
        return prepare(settings, encoder, own_method, from_frames(frames, None, settings.data, settings.seed))
    dataset, partition = from_clients(data, test, settings.data, settings.seed, as_it_is)
    own = settings.data.model_copy(update={"clients": len(partition), "partition": "given"})
    settings = settings.model_copy(update={"data": own})
    seen = _as_dealt(dataset, partition, settings)
    return _checked(Job.make(settings, seen, partition, encoder, method))


def _as_dealt(dataset: Dataset, partition: Partition, settings: Settings) -> Dataset:
    """The dataset once it is known who holds what: its test set, what differs at each client, and the preparation."""
    seen = as_seen(tested(dataset, partition), partition, settings.seed)
    return fitted(seen, partition, settings.data)


def _checked(job: Job) -> Job:
    """The job, if its settings fit its data, model and engine."""
    settings, dataset = job.settings, job.dataset
    if settings.data.augment != "none" and len(dataset.shape) != 3:
        raise UserError(f"data.augment = {settings.data.augment!r} is for images, not for vectors; leave it out")
    if settings.data.augment != "none" and job.encoder is not None and runs_once(job.encoder, settings):
        raise UserError("data.augment does nothing for a frozen encoder, which sees every image once; leave it out")
    if dataset.own and hasattr(job.encoder, "preprocess"):
        raise UserError("data.fit = 'own' does nothing for an encoder that prepares its inputs itself; leave it out")
    if settings.update.noise:
        check_private(job.method)
    if settings.train.patience and not (job.method.has_global or job.method.measures_clients):  # local goes on
        raise UserError(f"train.patience looks at the global model, and {job.method.name} has none; leave it out")
    make_compression(settings.update)
    choose(settings.engine)
    job.build_net()  # an unknown model, or one that does not fit the images, is found before anything is written
    return job


def execute(
    job: Job,
    folder: Path | None,
    listeners: Sequence[Listener],
    resumed: bool = False,
    engine: Engine | None = None,
) -> Result:
    """Run a prepared job and write it to ``folder``, if there is one; ``resumed``: only what is missing there.

    ``engine`` is for clients that are not on this machine; else the settings say which.
    """
    train = job.settings.train
    clients, seed = len(job.partition), job.settings.seed
    drawn = make_schedule(clients, train.participation, train.rounds, seed)
    schedule = without_unseen(drawn, clients, job.partition.unseen, seed)
    heard = [*_writers(job, folder), *listeners]
    with locked(folder):
        if folder is not None and not resumed:
            check_free(folder)  # once more: now nobody else can begin in it
        private = engine.private if engine else PrivateStates(None if folder is None else folder / CLIENTS)
        attempt = last_attempt(folder, clients, private) if folder is not None and resumed else None
        here = with_features(job, partial(_tell_features, heard))
        federation = Federation(here, schedule, heard, private, engine)
        if attempt is not None:
            attempt.put_into(federation)
        return Result(job, federation.run(), schedule, folder)


def go_on(job: Job, folder: Path, listeners: Sequence[Listener], engine: Engine | None = None) -> Result:
    """Run what is missing of the run in ``folder``; the job is that of its settings."""
    check_same_partition(folder, job.partition)
    return execute(job, folder, listeners, resumed=True, engine=engine)


def _tell_features(listeners: Sequence[Listener], done: int, total: int) -> None:
    for listener in listeners:
        listener.features_done(done, total)


def _writers(job: Job, folder: Path | None) -> list[Listener]:
    measure = job.settings.measure
    writers: list[Listener] = [] if folder is None else [RunFolder(folder, job)]
    if folder is not None and measure.tensorboard:
        writers.append(TensorBoard(folder / "tensorboard"))
    if measure.mlflow is not None:
        writers.append(MLflow(measure.mlflow, folder))
    if measure.wandb is not None:
        writers.append(WeightsAndBiases(measure.wandb, folder))
    return writers
