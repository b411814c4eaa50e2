"""A worker: one net, into which client after client is put. Every engine is made of workers."""

import torch
from torch import Tensor, nn

from fedetf.core.client import Client, Share, Workbench
from fedetf.core.server.weights import label_distance
from fedetf.core.state import State, clone
from fedetf.data.samples import Samples
from fedetf.engines.compiled import Encode, compiled
from fedetf.engines.job import Job, placed, preparation
from fedetf.engines.steps import Personal, Result, Step, Trained
from fedetf.errors import OUT_OF_MEMORY, RunError, StepError, UserError, is_out_of_memory
from fedetf.methods import Method, Scope, Upload
from fedetf.metrics import Accuracy, Predictions, Values
from fedetf.rng import global_stream
from fedetf.transforms import make_compression

OPTIMISER = "optimiser."  # before the names of what train.keep_momentum keeps
RESIDUAL = "residual."  # before the names of what compression has not sent yet


class Worker:
    """Does the client steps of a job on one device, with one net."""

    def __init__(self, job: Job, device: torch.device):
        self.job = job
        self.device = device
        net = job.build_net()
        with global_stream(job.settings.seed, "init-private"):  # on the CPU: the same draws whatever the device
            own = clone(job.method.client_state(net))
        self._client_state = {name: tensor.to(device) for name, tensor in own.items()}
        placed(net, job.dataset.shape, device)
        self.net = net
        self._initial = clone(self.net.state_dict())
        self._received = clone(self._initial)
        self._buffers = clone(dict(self.net.named_buffers()))  # those too that a state dict leaves out
        self._trainable = frozenset(name for name, tensor in self.net.named_parameters() if tensor.requires_grad)
        self._sent = list(sent_parameters(job.method, self.net))
        self._compression = make_compression(job.settings.update)
        self._train = _to(job.dataset.train, device)
        self._test = _to(job.dataset.test, device)
        self._test_counts = torch.bincount(job.dataset.test.y, minlength=len(job.dataset.classes))
        self._prepare = preparation(job.settings, self.net.encoder, job.dataset.shape, device)
        self._bench = self._workbench()

    @property
    def keeps(self) -> bool:
        """Whether a client of this job keeps anything from round to round."""
        own = self.job.method.scoped(self._initial, Scope.PRIVATE)
        return bool(self._client_state or own or self.job.settings.train.keep_momentum or self._compression.transforms)

    def perform(self, step: Step, received: State, private: State) -> Result:
        """Do one step; an error in it comes out with its client and round named."""
        try:
            if step.kind == "train":
                return self.train(step.client, step.round, received, private)
            if step.kind == "summarise":
                return self.summarise(step.client, received, private)
            if step.kind == "personalise":
                return self.personalise(step.client, received, private)
            if step.kind == "validate":
                return self.validate(step.client, received)
            return self.evaluate(received, step.start, step.stop)
        except (UserError, RunError):
            raise
        except Exception as error:  # whatever a method can raise
            if is_out_of_memory(error):
                raise RunError(f"{step}: {OUT_OF_MEMORY}") from None
            raise StepError(f"{step}: {type(error).__name__}: {error}") from error

    def train(self, client_id: int, round: int, received: State, private: State) -> Trained:
        """A client's local training in one round.

        ``private`` is what it kept from its last one; empty before its first.
        """
        method, settings = self.job.method, self.job.settings.train
        client = self.client(client_id, round, received, private, settings.epochs, settings.rate(round))
        with global_stream(self.job.settings.seed, "noise", round, client_id, device=self.device):
            method.local(client)
        sent = clone(method.upload(client), torch.contiguous_format)  # in any engine the same
        sent, residual = self._compressed(sent, client.received, private)
        disco = self.job.settings.server.weights == "disco"
        distance = label_distance(client.counts) if disco else None
        upload = Upload(client_id, client.samples, sent, client.mean_loss, client.images, distance)
        memory = {OPTIMISER + name: tensor for name, tensor in client.memory.items()}
        own = method.scoped(self.net.state_dict(), Scope.PRIVATE)
        return Trained(upload, clone({**own, **client.private, **memory, **residual}), self._prototypes(client))

    def _compressed(self, sent: State, received: State, private: State) -> tuple[State, State]:
        """What travels, and what is kept of the rest for the next round."""
        if not self._compression.transforms:
            return sent, {}
        residual = {name: like(sent[name], private.get(RESIDUAL + name, torch.zeros(()))) for name in self._sent}
        sent = self._compression.encode(sent, received, self._sent, residual)
        return sent, {RESIDUAL + name: tensor for name, tensor in residual.items()}

    def _prototypes(self, client: Client) -> State:
        """The client's class means in eval mode, where the agreement of clients is measured."""
        measure = self.job.settings.measure
        if not self.job.metrics.watches_clients or not measure.due(client.round, self.job.settings.train.rounds):
            return {}
        with torch.no_grad():
            held = [(c, self.job.method.embed(self.net, h).mean(0), h.mean(0)) for c, h in client.class_features()]
        if not held:
            return {}
        classes, means, raw = zip(*held, strict=True)
        return {"classes": torch.tensor(classes), "means": torch.stack(means), "raw": torch.stack(raw)}

    def summarise(self, client_id: int, received: State, private: State) -> State:
        """What a client sends once more after the last round."""
        client = self.client(client_id, self.job.settings.train.rounds + 1, received, private, 0, 0.0)
        return self.job.method.summarise(client)

    def personalise(self, client_id: int, received: State, private: State) -> Personal:
        """A client's personal stage after the last round, and what is measured of the model it ends in."""
        settings, personal = self.job.settings.train, self.job.settings.personal
        epochs = settings.epochs if personal.epochs is None else personal.epochs
        lr = settings.rate(settings.rounds + 1) if personal.lr is None else personal.lr
        client = self.client(client_id, settings.rounds + 1, received, private, epochs, lr)
        with global_stream(self.job.settings.seed, "noise", settings.rounds + 1, client_id, device=self.device):
            self.job.method.personalise(client)
        passes = client.images / client.samples if client.samples else 0.0
        measures = self._personal_values(client)
        accuracy = measures.pop(Accuracy.name, None)
        return Personal(
            client_id,
            accuracy,
            client.accuracies,
            passes,
            clone(self.net.state_dict()),
            measures,
            client.accuracy("validation"),
        )

    def _personal_values(self, client: Client) -> Values:
        """What is measured of the net as it is, on the client's own test split; nothing if that is empty."""
        metrics, held_out = self.job.metrics.personal, client.features_of("test")
        if held_out is None:
            return {}
        h, y = held_out
        with torch.no_grad():
            return metrics.values(metrics.part(self._predictions(h, y, self._totals(y), personal=True)))

    def validate(self, client_id: int, received: State) -> State:
        """What a client holds out to validate: of each class the ``count`` of samples, and of right ones ``[C]``."""
        client = self.client(client_id, 0, received, {}, 0, 0.0)
        held_out = client.features_of("validation")
        if held_out is None:
            return {
                name: torch.zeros(len(self.job.dataset.classes), dtype=torch.int64) for name in ("count", "correct")
            }
        h, y = held_out
        with torch.no_grad():
            seen = self._predictions(h, y, self._totals(y), personal=False)
        confusion = Accuracy().part(seen)["confusion"].cpu()
        return {"count": confusion.sum(dim=1), "correct": confusion.diagonal().clone()}

    def _totals(self, y: Tensor) -> Tensor:
        return torch.bincount(y.cpu(), minlength=len(self.job.dataset.classes))

    def evaluate(self, received: State, start: int, stop: int) -> State:
        """What the metrics sum up over a part of the test set, of the global model."""
        self._load(received, {})
        self.net.eval()
        with torch.no_grad():
            h = self.net.encoder(self._prepare(self._test.x[start:stop]))
            seen = self._predictions(h, self._test.y[start:stop], self._test_counts, personal=False)
            return self.job.metrics.part(seen)

    def _predictions(self, h: Tensor, y: Tensor, totals: Tensor, personal: bool) -> Predictions:
        method = self.job.method
        return Predictions(method.logits(self.net, h, personal), y, method.embed(self.net, h), totals)

    def client(self, id: int, round: int, received: State, private: State, epochs: int, lr: float) -> Client:
        """A client at the start of a step, with what it received and what it kept in the net."""
        self._check_kept(id, private)
        kept = {name.removeprefix(OPTIMISER): t for name, t in private.items() if name.startswith(OPTIMISER)}
        partition = self.job.partition
        parts = partition.train[id], partition.test[id], partition.held_out(id), partition.counts[id]
        return Client(
            self._bench,
            Share(*(torch.tensor(part, device=self.device) for part in parts)),
            id=id,
            round=round,
            received=self._load(received, private),
            private={name: like(initial, private.get(name, initial)) for name, initial in self._client_state.items()},
            memory={name: tensor.to(self.device) for name, tensor in kept.items()},
            epochs=epochs,
            lr=lr,
        )

    def _workbench(self) -> Workbench:
        settings, method = self.job.settings, self.job.method
        return Workbench(
            net=self.net,
            trainable=self._trainable,
            data=self._train,
            prepare=self._prepare,
            encode=self._compiled() if settings.engine.compile else self.net.encoder,
            logits=lambda net, h: method.logits(net, h, personal=True),
            seed=settings.seed,
            settings=settings.train,
            personal=settings.personal,
            augment=settings.data.augment == "crop_flip" and len(self.job.dataset.shape) == 3,  # features.py: vectors
            precision=torch.bfloat16 if settings.engine.precision == "bfloat16" else None,
        )

    def _check_kept(self, client: int, private: State) -> None:
        """Refuse what a client kept, if it does not fit: a file may have been tampered with."""
        known = {**self._initial, **self._client_state}
        for name, tensor in private.items():
            wanted = known.get(name.removeprefix(RESIDUAL))
            if name.startswith(OPTIMISER):
                _, slot, _, trained = (*name.split(".", 3), "", "", "")[:4]
                wanted = torch.zeros(()) if slot == "steps" else known.get(trained)
            if wanted is None or (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
                raise RunError(f"what client {client} kept is not of this run ({name!r}); begin a new one")

    def _compiled(self) -> Encode:
        """The encoder compiled for whole batches; one that is frozen runs once, and is left as it is."""
        if not any(name.startswith("encoder.") for name in self._trainable):
            return self.net.encoder
        rows = torch.arange(self.job.settings.train.batch_size, device=self.device) % len(self._train)
        return compiled(self.net.encoder, self._prepare(self._train.x[rows]))

    def _load(self, received: State, private: State) -> State:
        """Put the received and the private tensors into the net, and nothing of the last client is left in it.

        Returns all that was received, the net's tensors in its own memory layout: how they came must not change the
        last bits of a sum over them.
        """
        for name, buffer in self.net.named_buffers():
            buffer.detach().copy_(self._buffers[name])
        mine = {name: self._received[name].copy_(tensor) for name, tensor in received.items() if name in self._initial}
        self.net.load_state_dict({name: mine.get(name, private.get(name, t)) for name, t in self._initial.items()})
        return {**{name: tensor.to(self.device) for name, tensor in received.items() if name not in mine}, **mine}


def sent_parameters(method: Method, net: nn.Module) -> State:
    """The parameters that clients train and send, by name: what an update is made of."""
    shared = method.scoped(net.state_dict(), Scope.SHARED)  # the whole of it: FedBN goes by its structure
    trained = {name: tensor.detach() for name, tensor in net.named_parameters() if tensor.requires_grad}
    return {name: tensor for name, tensor in trained.items() if name in shared}


def like(pattern: Tensor, values: Tensor) -> Tensor:
    """A copy of ``values`` with the device and memory layout of ``pattern``."""
    return torch.empty_like(pattern).copy_(values)


def _to(samples: Samples, device: torch.device) -> Samples:
    return Samples(samples.x.to(device), samples.y.to(device))
