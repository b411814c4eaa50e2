"""The steps of a run that every engine is made of: one net, into which client after client is put."""

import copy
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

MOMENTUM = "momentum."  # before the names of what train.keep_momentum keeps


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
class Trained:
    """What a client's local training gave: what it sends, and what it keeps for its next round."""

    upload: Upload
    private: State


@dataclass
class Personal:
    """What the personal stage of one client gave."""

    client: int
    accuracy: float | None  # on its own test split; None if that is empty
    curve: list[float]  # the same during the stage, where the method notes it
    epochs: float  # passes over its training split that the stage took
    state: State  # the whole net


class Worker:
    """Does the client steps of a job on one device, with one net."""

    def __init__(self, job: Job, device: torch.device):
        self.job = job
        self.device = device
        net = job.build_net()
        with global_stream(job.settings.seed, "init-private"):  # on the CPU: the same draws whatever the device
            own = clone(job.method.client_state(net))
        self._client_state = {name: tensor.to(device) for name, tensor in own.items()}
        self.net = net.to(device)
        if len(job.dataset.shape) == 3:
            self.net = self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        self._initial = clone(self.net.state_dict())
        self._buffers = clone(dict(self.net.named_buffers()))  # those too that a state dict leaves out
        self._trainable = frozenset(name for name, tensor in self.net.named_parameters() if tensor.requires_grad)
        self._train = _to(job.dataset.train, device)
        self._test = _to(job.dataset.test, device)
        self._prepare = job.normalize(device)

    def train(self, client_id: int, round: int, received: State, private: State) -> Trained:
        """A client's local training in one round.

        ``private`` is what it kept from its last one; empty before its first.
        """
        method, settings = self.job.method, self.job.settings.train
        lr = settings.lr * settings.lr_decay ** (round - 1)
        client = self._client(client_id, round, received, private, settings.epochs, lr)
        with global_stream(self.job.settings.seed, "noise", round, client_id, device=self.device):
            method.local(client)
        upload = Upload(client_id, client.samples, method.upload(client), client.mean_loss, client.images)
        momentum = {MOMENTUM + name: tensor for name, tensor in client.momentum.items()}
        own = method.scoped(self.net.state_dict(), Scope.PRIVATE)
        return Trained(upload, clone({**own, **client.private, **momentum}))

    def summarise(self, client_id: int, received: State, private: State) -> State:
        """What a client sends once more after the last round."""
        client = self._client(client_id, self.job.settings.train.rounds + 1, received, private, 0, 0.0)
        return self.job.method.summarise(client)

    def personalise(self, client_id: int, received: State, private: State) -> Personal:
        """A client's personal stage after the last round, and the accuracy of the model it ends in."""
        settings, personal = self.job.settings.train, self.job.settings.personal
        epochs = settings.epochs if personal.epochs is None else personal.epochs
        lr = settings.lr * settings.lr_decay**settings.rounds if personal.lr is None else personal.lr
        client = self._client(client_id, settings.rounds + 1, received, private, epochs, lr)
        with global_stream(self.job.settings.seed, "noise", settings.rounds + 1, client_id, device=self.device):
            self.job.method.personalise(client)
        passes = client.images / client.samples if client.samples else 0.0
        return Personal(client_id, client.accuracy(), client.accuracies, passes, clone(self.net.state_dict()))

    def evaluate(self, received: State) -> float:
        """General accuracy: the global model on the whole test set."""
        self._load(received, {})
        self.net.eval()
        y = self._test.y
        batches = torch.arange(len(y), device=self.device).split(EVALUATION_BATCH)

        def logits(batch: Tensor) -> Tensor:
            h = self.net.encoder(self._prepare(self._test.x[batch]))
            return self.job.method.logits(self.net, h, personal=False)

        return count_correct(logits, y, batches) / len(y)

    def _client(self, id: int, round: int, received: State, private: State, epochs: int, lr: float) -> Client:
        self._load(received, private)
        settings, partition = self.job.settings, self.job.partition
        return Client(
            id=id,
            round=round,
            seed=settings.seed,
            net=self.net,
            trainable=self._trainable,
            received=received,
            private={name: private.get(name, initial).clone() for name, initial in self._client_state.items()},
            momentum={name.removeprefix(MOMENTUM): t for name, t in private.items() if name.startswith(MOMENTUM)},
            logits=lambda net, h: self.job.method.logits(net, h, personal=True),
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

    def _load(self, received: State, private: State) -> None:
        """Put the received and the private tensors into the net, and nothing of the last client is left in it."""
        for name, buffer in self.net.named_buffers():
            buffer.detach().copy_(self._buffers[name])
        self.net.load_state_dict({name: received.get(name, private.get(name, t)) for name, t in self._initial.items()})


def _to(samples: Samples, device: torch.device) -> Samples:
    return Samples(samples.x.to(device), samples.y.to(device))


def _feature_length(encoder: nn.Module, job: Job) -> int:
    """How long the vectors are that the user's own encoder gives, found by trying it on two samples."""
    prepare = job.normalize(torch.device("cpu"))
    probe = copy.deepcopy(encoder).cpu().eval()
    try:
        with torch.no_grad():
            features = probe(prepare(job.dataset.train.x[:2].clone()))  # it may work in place
    except Exception as error:  # whatever a user's module can raise
        reason = str(error).split("\n")[0]
        raise UserError(f"the encoder cannot take inputs of shape {job.dataset.shape}: {reason}") from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the encoder must give [batch, features], but gives {shape}; flatten or pool its output")
    if features.dtype != torch.float32:
        raise UserError(f"the encoder gives {features.dtype}; convert it to float32 (encoder.float())")
    return features.shape[1]
