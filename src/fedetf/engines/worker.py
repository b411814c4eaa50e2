"""The steps of a run that every engine is made of: one net, into which client after client is put."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedetf.client import EVALUATION_BATCH, Client
from fedetf.config import Settings
from fedetf.data.batches import Normalize
from fedetf.data.partition import Partition
from fedetf.data.samples import Dataset, Samples
from fedetf.errors import UserError
from fedetf.heads import Net
from fedetf.measure.accuracy import count_correct
from fedetf.methods import Method, Scope, Upload
from fedetf.models import build_encoder
from fedetf.rng import global_stream
from fedetf.state import State, clone


@dataclass(frozen=True)
class Job:
    """All that a worker must know before the first round. Nothing in it changes during a run."""

    settings: Settings
    method: Method
    dataset: Dataset
    partition: Partition
    encoder: nn.Module | None = None  # the user's own; None builds the one that the settings name

    def build_net(self) -> Net:
        """A net with the initial weights: the same encoder for every method with the same seed."""
        seed = self.settings.seed
        if self.encoder is not None:
            encoder, features = copy.deepcopy(self.encoder), _feature_length(self.encoder, self)
        else:
            with global_stream(seed, "init-encoder"):
                built = build_encoder(self.settings.model.name, self.dataset.shape)
            encoder, features = built, built.features
        return self.method.build(encoder, features, len(self.dataset.classes), seed)

    def normalize(self, device: torch.device) -> Normalize:
        """The function that turns a stored batch into what the encoder sees."""
        return Normalize(self.settings.data.normalize, self.dataset.shape[0], device)


@dataclass
class Personal:
    """What the personal stage of one client gave."""

    client: int
    accuracy: float | None  # on its own test split; None if that is empty
    curve: list[float]  # the same during the stage, where the method notes it
    state: State  # the whole net


class Worker:
    """Does the client steps of a job on one device, with one net."""

    def __init__(self, job: Job, device: torch.device):
        self.job = job
        self.device = device
        self.net = job.build_net().to(device)
        if len(job.dataset.shape) == 3:
            self.net = self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        self._fixed = clone(scoped(self.net.state_dict(), job.method, Scope.FIXED))
        self._train = _to(job.dataset.train, device)
        self._test = _to(job.dataset.test, device)
        self._prepare = job.normalize(device)

    def train(self, client_id: int, round: int, shared: Mapping[str, Tensor]) -> Upload:
        """A client's local training in one round, from the received tensors to what it sends."""
        settings = self.job.settings.train
        lr = settings.lr * settings.lr_decay ** (round - 1)
        client = self._client(client_id, round, shared, settings.epochs, lr)
        with global_stream(self.job.settings.seed, "noise", round, client_id):
            self.job.method.local(client)
        state = self.job.method.upload(client)
        return Upload(client_id, client.samples, state, client.mean_loss, client.images)

    def personalise(self, client_id: int, shared: Mapping[str, Tensor]) -> Personal:
        """A client's personal stage after the last round, and the accuracy of the model it ends in."""
        settings, personal = self.job.settings.train, self.job.settings.personal
        epochs = settings.epochs if personal.epochs is None else personal.epochs
        lr = settings.lr * settings.lr_decay**settings.rounds if personal.lr is None else personal.lr
        client = self._client(client_id, settings.rounds + 1, shared, epochs, lr)
        with global_stream(self.job.settings.seed, "noise", settings.rounds + 1, client_id):
            self.job.method.personalise(client)
        return Personal(client_id, client.accuracy(), client.accuracies, clone(self.net.state_dict()))

    def evaluate(self, shared: Mapping[str, Tensor]) -> float:
        """General accuracy: the global model on the whole test set."""
        self._load(shared)
        self.net.eval()
        y = self._test.y
        batches = torch.arange(len(y), device=self.device).split(EVALUATION_BATCH)
        correct = count_correct(lambda batch: self.net(self._prepare(self._test.x[batch])), y, batches)
        return correct / len(y)

    def _client(self, id: int, round: int, shared: Mapping[str, Tensor], epochs: int, lr: float) -> Client:
        self._load(shared)
        settings, partition = self.job.settings, self.job.partition
        return Client(
            id=id,
            round=round,
            seed=settings.seed,
            net=self.net,
            data=self._train,
            train=torch.from_numpy(partition.train[id]).to(self.device),
            test=torch.from_numpy(partition.test[id]).to(self.device),
            counts=torch.from_numpy(partition.counts[id]).to(self.device),
            prepare=self._prepare,
            augment=settings.data.augment == "crop_flip",
            settings=settings.train,
            personal=settings.personal,
            epochs=epochs,
            lr=lr,
        )

    def _load(self, shared: Mapping[str, Tensor]) -> None:
        """Put the received and the fixed tensors into the net, so that nothing of the last client is left."""
        self.net.load_state_dict({**self._fixed, **shared})


def scoped(state: Mapping[str, Tensor], method: Method, scope: Scope) -> State:
    """The part of a state dict that has the given scope."""
    return {name: tensor for name, tensor in state.items() if method.scope(name) is scope}


def _to(samples: Samples, device: torch.device) -> Samples:
    return Samples(samples.x.to(device), samples.y.to(device))


def _feature_length(encoder: nn.Module, job: Job) -> int:
    """How long the vectors are that the user's own encoder gives, found by trying it on two samples."""
    prepare = job.normalize(torch.device("cpu"))
    probe = copy.deepcopy(encoder).cpu().eval()
    try:
        with torch.no_grad():
            features = probe(prepare(job.dataset.train.x[:2]))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the encoder cannot take inputs of shape {job.dataset.shape}: {reason}") from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the encoder must give [batch, features], but gives {shape}; flatten or pool its output")
    return features.shape[1]
