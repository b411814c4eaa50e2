"""Federated learning as a scikit-learn estimator."""

import copy
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
from fedetf.data.own import as_inputs, channels_first
from fedetf.data.partition import dirichlet_partition, iid_partition
from fedetf.engines.job import preparation
from fedetf.engines.steps import Personal
from fedetf.errors import UserError
from fedetf.features import with_encoder
from fedetf.federation import Listener
from fedetf.methods import Method
from fedetf.nn.heads import Net

CPU = torch.device("cpu")
BATCH = 500  # samples predicted at a time


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """A classifier trained over several sites, with one model for all and one for each site.

    Parameters
    ----------
    method:
        A method's name (``fedetf list methods``), ``FILE.py:NAME``, or a subclass of :class:`fedetf.Method`.
    encoder:
        What turns an input into features: a name (``fedetf list models``) or any ``nn.Module``. None takes ``"mlp"``
        for vectors and ``"cnn"`` for images.
    rounds:
        Communication rounds.
    epochs:
        Local epochs in each.
    batch_size:
        Of the local SGD.
    lr:
        Its learning rate.
    clients:
        Artificial sites, for ``fit`` without ``groups``: so many. The default is a single site that holds everything.
    alpha:
        How they are dealt out: by Dirichlet(alpha), or evenly if it is None.
    personal:
        Whether ``fit`` with ``groups`` also makes the sites' personal models.
    settings:
        Any other setting by its dotted key, for example ``{"method.gamma": 0.5}``; see ``fedetf list settings``.
    n_jobs:
        Sites trained side by side, in so many processes; None is one after the other in this process, -1 all cores.
        The result is the same.
    random_state:
        An int for the same result each time.

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
    ``X`` is ``[n, features]`` for vectors, and ``[n, h, w]``, ``[n, h, w, c]`` or ``[n, c, h, w]`` for images; in four
    dimensions the channels are last if that dimension is 1 or 3 and the second is not. Images of uint8 are normalised
    by ``data.normalize`` as everywhere in fedetf. Other numbers are standardised, vectors by column and images by
    channel, with the mean and standard deviation over all sites (of which each site would have to tell its number of
    samples, sums and sums of squares). An encoder with a ``preprocess`` of its own gets ``X`` as it is.

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

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> "FederatedClassifier":
        """Train on ``X`` and ``y``; ``groups`` ``[n]`` names the site that each sample belongs to."""
        inputs, labels = validate_data(self, X, y, allow_nd=True, ensure_min_samples=2)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"there is one class only, {self.classes_[0]!r}; a classifier needs at least two classes")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.groups_, parts = self._sites(groups, codes, seed)
        self._shape, self._bytes = inputs.shape[1:], inputs.dtype == np.uint8
        self._fit_scale(inputs)
        x = self._prepared(inputs)
        personal: dict[int, State] = {}
        result = run(
            data=[(x[torch.from_numpy(part)], codes[part]) for part in parts],
            test=(x[:1], codes[:1]),  # nothing is measured here, so one sample is enough
            method=self.method,
            model=self._encoder(x),
            rounds=self.rounds,
            epochs=self.epochs,
            seed=seed,
            settings=self._settings(),
            listeners=[_Keep(personal)],
            **self._engine(),
        )
        self._model, self._method, self._used = result.model(), result.job.method, result.settings
        self._personal = {site: personal[k] for k, site in enumerate(self.groups_) if k in personal}
        return self

    def predict_proba(self, X: ArrayLike, group: Any = None) -> NDArray[np.float64]:
        """Probabilities ``[n, classes]``, by the model for all, or by the personal one of the site ``group``."""
        check_is_fitted(self)
        inputs = validate_data(self, X, allow_nd=True, reset=False)
        if inputs.shape[1:] != self._shape:
            raise UserError(f"X has samples of shape {inputs.shape[1:]}, but those of fit had {self._shape}")
        if inputs.ndim > 2 and (inputs.dtype == np.uint8) != self._bytes:
            raise UserError(f"X is {inputs.dtype}, and in fit it was {'' if self._bytes else 'not '}uint8; convert it")
        net, x = self._net(group), self._prepared(inputs)
        prepare = preparation(self._used, net.encoder, tuple(x.shape[1:]), CPU)
        if x.dtype == torch.float32 and not isinstance(self.encoder, nn.Module):
            net, x = net.double(), x.double()  # a sample alone gets the same as among others, to 1e-7
        with torch.no_grad():
            features = (net.encoder(prepare(batch.clone())) for batch in x.split(BATCH))  # it may work in place
            logits = [self._method.logits(net, h, personal=group is not None) for h in features]
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
        own = {
            "train.batch_size": self.batch_size,
            "train.lr": self.lr,
            "data.test_fraction": 0.0,
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

    def _encoder(self, x: Tensor) -> str | nn.Module:
        return self.encoder if self.encoder is not None else "mlp" if x.ndim == 2 else "cnn"

    # --- inputs ---

    def _fit_scale(self, inputs: NDArray[Any]) -> None:
        """The mean and standard deviation of each column or channel, unless inputs reach the run as they are."""
        self._scale: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        are_bytes = inputs.dtype == np.uint8 and inputs.ndim > 2
        if not are_bytes and not hasattr(self.encoder, "preprocess"):
            numbers = channels_first(np.asarray(inputs, np.float64))
            others = tuple(dim for dim in range(numbers.ndim) if dim != 1)
            std = numbers.std(axis=others, keepdims=True)
            mean = numbers.mean(axis=others, keepdims=True)
            least = 10 * np.finfo(np.float64).eps * np.maximum(1.0, np.abs(mean))  # a constant column's is not quite 0
            self._scale = mean, np.where(std > least, std, 1.0)

    def _prepared(self, inputs: NDArray[Any]) -> Tensor:
        """Inputs as a run takes them, ``[n, features]`` or ``[n, c, h, w]``, standardised if they are to be."""
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


class _Keep(Listener):
    """Keeps the personal models in memory."""

    def __init__(self, models: dict[int, State]):
        self._models = models

    def personal_done(self, personal: Personal) -> None:
        """Keep one."""
        self._models[personal.client] = personal.state
