"""Federated learning as a scikit-learn estimator."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from fedetf.api import run
from fedetf.core.state import State
from fedetf.data.decode import class_name
from fedetf.data.frames import from_pandas, of_columns
from fedetf.data.own import TEXT, are_texts, as_inputs, channels_first, is_dataframe
from fedetf.data.partition import dirichlet_partition, iid_partition
from fedetf.engines.job import preparation
from fedetf.engines.steps import Personal
from fedetf.errors import UserError
from fedetf.features import with_encoder
from fedetf.federation import Listener
from fedetf.methods import Method
from fedetf.models.export import write_export
from fedetf.models.load import SavedModel, ready
from fedetf.nn.heads import Net
from fedetf.runs.folder import about_model
from fedetf.runs.records import ModelNote, fitting

CPU = torch.device("cpu")
BATCH = 500  # samples predicted at a time
LABEL = "y, as it was given to fit"  # the column of labels: a name that no table has


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A classifier trained over several sites, with one model for all and one for each site.

    Parameters
    ----------
    method:
        A method's name (``fedetf list methods``), ``FILE.py:NAME``, or a subclass of :class:`fedetf.Method`.
    encoder:
        What turns an input into features: a name (``fedetf list models``) or any ``nn.Module``. None takes the one that
        fits: ``"mlp"`` for tables, ``"cnn"`` for images.
    rounds:
        Communication rounds.
    epochs:
        Local epochs in each.
    batch_size:
        Of the local SGD.
    lr:
        Its learning rate.
    clients:
        Artificial sites, for ``fit`` without ``groups``: how many. The default is a single site that holds everything.
    alpha:
        How they are dealt out: by Dirichlet(alpha), or evenly if it is None.
    personal:
        Whether ``fit`` with ``groups`` also makes the sites' personal models.
    settings:
        Any other setting by its dotted key, for example ``{"method.gamma": 0.5}``; see ``fedetf list settings``.
    n_jobs:
        How many sites train side by side, each in a process; None is one after the other in this process, -1 all cores.
        The result is the same.
    random_state:
        An int for the same result each time.
    out:
        A new folder to write the run to, as ``fedetf.run`` does; None writes nothing.

    Attributes
    ----------
    classes_:
        The class labels, sorted.
    groups_:
        The sites that ``fit`` saw; empty without ``groups``.
    n_features_in_:
        The length of the vectors; for images, their second dimension.

    Notes
    -----
    ``X`` is ``[n, features]`` or a DataFrame for tables, a list of texts, and ``[n, h, w]``, ``[n, h, w, c]`` or
    ``[n, c, h, w]`` for images; in four dimensions the channels are last if that dimension is 1 or 3 and the second is
    not. Images of uint8 are normalised by ``data.normalize`` as everywhere in fedetf. Columns of a table are prepared
    inside the model: numbers standardised, with missing ones (NaN) imputed and flagged, categories embedded. The
    statistics are those of all sites together (of which each site would have to tell counts, sums, squares and
    categories). Images of other numbers are standardised by channel. An encoder with a ``preprocess`` of its own gets
    an array ``X`` as it is.

    All of a site's samples are trained on: none is held out to measure a personal accuracy. Nothing is written to disk
    (methods in which sites keep something between rounds use a temporary folder).

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> site = ["north", "south"] * 89
    >>> model = FederatedClassifier(rounds=5, random_state=0).fit(X, y, groups=site)
    >>> model.score(X, y) > 0.9
    True
    >>> model.predict(X[:2], group="north").shape  # by the personal model of that site
    (2,)
    """

    def __init__(
        self,
        method: str | type[Method] = "fedetf",
        encoder: str | nn.Module | None = None,
        rounds: int = 20,
        epochs: int = 2,
        batch_size: int = 32,
        lr: float = 0.05,
        clients: int = 1,
        alpha: float | None = None,
        personal: bool = True,
        settings: dict[str, Any] | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        out: str | os.PathLike[str] | None = None,
    ):
        self.method = method
        self.encoder = encoder
        self.rounds = rounds
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.clients = clients
        self.alpha = alpha
        self.personal = personal
        self.settings = settings
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.out = out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing value
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> "FederatedClassifier":
        """Train on ``X`` and ``y``; ``groups`` ``[n]`` names the site that each sample belongs to."""
        inputs, labels = self._validated(X, y)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"there is one class only, {self.classes_[0]!r}; a classifier needs at least two classes")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.groups_, parts = self._sites(groups, codes, seed)
        self._shape: tuple[int, ...] = ()
        self._bytes = False
        self._scale: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if isinstance(inputs, np.ndarray):
            self._shape, self._bytes = inputs.shape[1:], inputs.dtype == np.uint8
            self._fit_scale(inputs)
            inputs = self._prepared(inputs)
        personal: dict[int, State] = {}
        named = np.array(self.classes_.tolist())[codes]  # objects as what they are: the run folder has their names
        shares = [(_rows(inputs, part), named[part]) for part in parts]
        result = run(
            data=dict(zip(map(str, self.groups_), shares, strict=True)) if len(self.groups_) else shares,
            test=(_rows(inputs, np.arange(1)), named[:1]),  # nothing is measured here, so one sample is enough
            method=self.method,
            model=self.encoder,
            out=self.out,
            rounds=self.rounds,
            epochs=self.epochs,
            seed=seed,
            settings=self._settings(),
            listeners=[_Keep(personal)],
            **self._engine(),
        )
        self._model, self._method, self._used = result.model(), result.job.method, result.settings
        self._note = result.job.dataset.note
        self._about = {**about_model(result.job), "classes": [class_name(c) for c in self.classes_.tolist()]}
        self._personal = {site: personal[k] for k, site in enumerate(self.groups_) if k in personal}
        return self

    def predict_proba(self, X: Any, group: Any = None) -> NDArray[np.float64]:
        """Probabilities ``[n, classes]``, by the model for all, or by the personal one of the site ``group``."""
        check_is_fitted(self)
        net, x = self._net(group), self._raw(X)
        prepare = preparation(self._used, net.encoder, tuple(x.shape[1:]), CPU, self._note)
        exact = x.is_floating_point() and not isinstance(self.encoder, nn.Module)
        net = net.double() if exact else net  # a sample alone gets the same as among others, to 1e-7
        logits = []
        with torch.no_grad():
            for batch in x.split(BATCH):
                seen = prepare(batch.clone())  # it may work in place
                h = net.encoder(seen.double() if exact else seen)
                logits.append(self._method.logits(net, h, personal=group is not None))
        probabilities: NDArray[np.float64] = torch.cat(logits).double().softmax(dim=1).numpy()
        return probabilities

    def predict(self, X: ArrayLike, group: Any = None) -> NDArray[Any]:
        """The likeliest class of each sample, by the model for all, or by the personal one of the site ``group``."""
        likeliest = self.predict_proba(X, group).argmax(axis=1)
        classes: NDArray[Any] = self.classes_[likeliest]
        return classes

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, group: Any = None) -> float:
        """The accuracy of :meth:`predict`."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, group), sample_weight=sample_weight))

    def export(self, to: str | os.PathLike[str], group: Any = None) -> Path:
        """Write the model for all, or the personal one of the site ``group``, to a file, as :func:`fedetf.export` does.

        Returns the model card. The file takes raw rows, as ``X`` was.
        """
        check_is_fitted(self)
        if self._scale is not None:
            raise UserError("images of other numbers than bytes cannot be exported; fit with uint8 images")
        net = self._net(group)
        client = None if group is None else self.groups_.tolist().index(group)
        note = fitting(ModelNote, {**self._about, "sites": [str(site) for site in self.groups_]}, "the estimator")
        file = SavedModel(Path(type(self).__name__), self._used, note, net.state_dict(), client, None)
        encoder = self.encoder if isinstance(self.encoder, nn.Module) else None
        method = self.method if isinstance(self.method, type) else None
        return write_export(file, ready(file, method, encoder), Path(to))

    # --- sites, settings, engine ---

    def _sites(self, groups: ArrayLike | None, codes: NDArray[np.int64], seed: int) -> tuple[NDArray[Any], list[Any]]:
        """The names of the sites, and the samples of each."""
        if groups is None:
            if self.clients == 1:
                return np.array([]), [np.arange(len(codes))]
            if self.alpha is None:
                return np.array([]), iid_partition(codes, self.clients, seed)
            return np.array([]), dirichlet_partition(codes, self.clients, self.alpha, seed)
        if self.clients != 1 or self.alpha is not None:
            raise UserError("groups name the sites; clients and alpha are for fit without groups")
        names = column_or_1d(groups)
        if len(names) != len(codes):
            raise UserError(f"{len(names)} groups for {len(codes)} samples; give the site of each sample")
        if any(name is None or name != name for name in names.tolist()):  # a number that is none equals nothing
            raise UserError("some samples have no site (None or NaN in groups); name one for each, or leave them out")
        sites, owner = np.unique(names, return_inverse=True)
        return sites, [np.flatnonzero(owner == site) for site in range(len(sites))]

    def _settings(self) -> dict[str, Any]:
        if (self.settings or {}).get("data.fit", "shared") != "shared":
            raise UserError("the estimator prepares X by the statistics of all groups together; leave data.fit out")
        own = {
            "train.batch_size": self.batch_size,
            "train.lr": self.lr,
            "data.test_fraction": 0.0,
            "data.label_column": LABEL,
            "personal.enabled": self.personal and len(self.groups_) > 0,
            "measure.every": max(self.rounds, 1),
        }
        return {**own, **(self.settings or {})}

    def _engine(self) -> dict[str, Any]:
        if self.n_jobs == 0:
            raise UserError("n_jobs = 0 has no meaning; give a number of processes, or -1 for all cores")
        if self.n_jobs is None or self.n_jobs == 1:
            return {"engine": "serial"}
        return {"engine": "processes", "workers": self.n_jobs if self.n_jobs > 0 else None}

    # --- inputs ---

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Arrays, checked; a DataFrame or a list of texts as it is."""
        if is_dataframe(X) or are_texts(X):
            inputs, labels = validate_data(self, X, y, skip_check_array=True)
        else:
            how = {"allow_nd": True, "ensure_min_samples": 2, "ensure_all_finite": "allow-nan"}
            inputs, labels = validate_data(self, X, y, **how)
        return inputs, labels

    def _raw(self, X: Any) -> Tensor:
        """What is to be predicted, as a run stores it."""
        if self._note is not None and (is_dataframe(X) or are_texts(X)):
            validate_data(self, X, reset=False, skip_check_array=True)
            frame = from_pandas(X, "X") if is_dataframe(X) else of_columns({TEXT: list(X)}, "X")
            return self._note.read(frame).x
        inputs = validate_data(self, X, allow_nd=True, reset=False, ensure_all_finite="allow-nan")
        if inputs.shape[1:] != (self._shape or (self.n_features_in_,)):
            raise UserError(f"X has samples of shape {inputs.shape[1:]}, but those of fit had {self._shape}")
        if inputs.ndim > 2 and (inputs.dtype == np.uint8) != self._bytes:
            raise UserError(f"X is {inputs.dtype}, and in fit it was {'' if self._bytes else 'not '}uint8; convert it")
        x = self._prepared(inputs)
        return x.float() if self._note is None and x.is_floating_point() else x

    def _fit_scale(self, inputs: NDArray[Any]) -> None:
        """The mean and standard deviation of each channel of images that are no bytes: a run takes them as they are."""
        if inputs.dtype != np.uint8 and inputs.ndim > 2 and not hasattr(self.encoder, "preprocess"):
            numbers = channels_first(np.asarray(inputs, np.float64))
            others = tuple(dim for dim in range(numbers.ndim) if dim != 1)
            std = numbers.std(axis=others, keepdims=True)
            mean = numbers.mean(axis=others, keepdims=True)
            least = 10 * np.finfo(np.float64).eps * np.maximum(1.0, np.abs(mean))  # a constant column's is not quite 0
            self._scale = mean, np.where(std > least, std, 1.0)

    def _prepared(self, inputs: NDArray[Any]) -> Tensor:
        """Inputs as a run takes them, ``[n, features]``, or ``[n, c, h, w]``, standardised if they are to be."""
        x = channels_first(inputs)
        if self._scale is not None:
            mean, std = self._scale
            x = (np.asarray(x, np.float64) - mean) / std
        return as_inputs(np.array(x), "X")

    # --- models ---

    def _net(self, group: Any) -> Net:
        """A copy of the model for all, or of a site's own."""
        net = copy.deepcopy(self._model)
        if group is not None:
            if group not in self._personal:
                why = "it is no site that fit saw" if group not in self.groups_ else "fit with personal=True"
                raise UserError(f"there is no personal model of {group!r}: {why}")
            net.load_state_dict(with_encoder(net, self._personal[group]))
        elif not self._method.has_global:
            how = "predict with group=..." if len(self.groups_) else "fit with groups=..., predict with group=..."
            raise UserError(f"{self._method.name} has no model for all sites; {how}")
        return net


def _rows(inputs: Any, part: NDArray[np.int64]) -> Any:
    """Some samples of arrays, a DataFrame or a list of texts."""
    if is_dataframe(inputs):
        return inputs.iloc[part]
    return inputs[torch.from_numpy(part)] if isinstance(inputs, Tensor) else [inputs[i] for i in part]


class _Keep(Listener):
    """Keeps the personal models in memory."""

    def __init__(self, models: dict[int, State]):
        self._models = models

    def personal_done(self, personal: Personal) -> None:
        """Keep one."""
        self._models[personal.client] = personal.state
