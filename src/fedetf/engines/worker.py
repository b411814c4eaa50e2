"""A worker: one net, into which client after client is put. Every engine is made of workers."""

import torch
from torch import Tensor, nn

from fedetf.core.client import Client, Share, Workbench
from fedetf.core.server.weights import label_distance
from fedetf.core.state import State, clone
from fedetf.core.vectors import packed
from fedetf.data.samples import Samples
from fedetf.engines.compiled import Encode, compiled, with_kernels
from fedetf.engines.job import Job, Prepare, placed, preparation
from fedetf.engines.steps import NOBODY, Personal, Result, Scored, Step, Trained
from fedetf.errors import OUT_OF_MEMORY, OutOfMemory, RunError, StepError, UserError, is_out_of_memory
from fedetf.methods import Method, Scope, Upload
from fedetf.metrics import Accuracy, Predictions, Values
from fedetf.own_code import place_in_own_code
from fedetf.rng import global_stream
from fedetf.transforms import make_compression

OPTIMISER = "optimiser."  # before the names of what train.keep_momentum keeps
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}  # None: as it is
RESIDUAL = "residual."  # before the names of what compression has not sent yet


class Worker:
    """Does the client steps of a job on one device, with one net; ``images``: the data, if they are there already."""

    def __init__(self, job: Job, device: torch.device, images: tuple[Samples, Samples] | None = None):
        self.job = job
        self.device = device
        net = job.build_net()
        with global_stream(job.settings.seed, "init-private"):  # on the CPU: the same draws whatever the device
            own = clone(job.method.client_state(net))
        self._client_state = {name: tensor.to(device) for name, tensor in own.items()}
        placed(net, job.dataset.shape, device)
        self.net = net
        self._tensors = net.state_dict()  # the net's own memory by name: walking through its modules takes longer
        self._initial = clone(self._tensors)
        self._received = clone(self._initial)
        self._download: tuple[State, State] | None = None  # what came last, and the same as clients see it
        self._buffers = clone(dict(self.net.named_buffers()))  # those too that a state dict leaves out
        self._trainable = frozenset(name for name, tensor in self.net.named_parameters() if tensor.requires_grad)
        self._sent = list(sent_parameters(job.method, self.net))
        self._compression = make_compression(job.exchange.update)
        self._test_counts = torch.bincount(job.dataset.test.y, minlength=len(job.dataset.classes))
        self._prepare, self._train, self._test = self._inputs(images)
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
                return self.train(step.client, step.round, received, private, step.pooled, step.passes)
            if step.kind == "summarise":
                return self.summarise(step.client, received, private, step.round)
            if step.kind == "personalise":
                return self.personalise(step.client, received, private, step.round)
            if step.kind == "validate":
                return self.validate(step.client, received)
            if step.kind == "test":
                return self.test(step.client, received)
            return self.evaluate(received, step.start, step.stop, step.client, private)
        except (UserError, RunError):
            raise
        except Exception as error:  # whatever a method can raise
            if is_out_of_memory(error):
                raise OutOfMemory(f"{step}: {OUT_OF_MEMORY}") from None
            raise StepError(f"{step}: {type(error).__name__}: {error}{place_in_own_code(error)}") from error

    def train(
        self, client_id: int, round: int, received: State, private: State, pooled: int | None = None, passes: int = 0
    ) -> Trained:
        """A client's local training in one round.

        ``private`` is what it kept from its last one; empty before its first. If ``pooled`` is given, it holds all
        clients' samples, of which an epoch sees that number, and trains on ``passes`` of them, to the nearest batch.
        """
        method, rate = self.job.method, self.job.settings.train.rate(round)
        epochs, steps = (passes / max(1, pooled), None) if pooled is not None else self.job.work_of(client_id, round)
        client = self.client(client_id, round, received, private, epochs, rate, steps, pooled)
        with global_stream(self.job.settings.seed, "noise", round, client_id, device=self.device):
            method.local(client)
        sent = packed(method.upload(client))  # in any engine the same
        sent, residual = self._compressed(sent, client.received, private)
        disco = self.job.settings.server.weights == "disco"
        distance = label_distance(client.counts) if disco else None
        upload = Upload(client_id, client.samples, sent, client.mean_loss, client.images, distance)
        memory = {OPTIMISER + name: tensor for name, tensor in client.memory.items()}
        own = method.scoped(self._tensors, Scope.PRIVATE)
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
            per_class = [(c, self.job.method.embed(self.net, h).mean(0), h.mean(0)) for c, h in client.class_features()]
        if not per_class:
            return {}
        classes, means, raw = zip(*per_class, strict=True)
        return {"classes": torch.tensor(classes), "means": torch.stack(means), "raw": torch.stack(raw)}

    def summarise(self, client_id: int, received: State, private: State, last: int = 0) -> State:
        """What a client sends once more after the ``last`` round, 0 being that of the settings."""
        client = self.client(client_id, self._after(last), received, private, 0, 0.0)
        return self.job.method.summarise(client)

    def personalise(self, client_id: int, received: State, private: State, last: int = 0) -> Personal:
        """A client's personal stage after the ``last`` round, and what is measured of the model it ends in."""
        settings, personal = self.job.settings.train, self.job.settings.personal
        epochs, steps = (settings.epochs, settings.steps) if personal.epochs is None else (personal.epochs, None)
        round = self._after(last)
        lr = settings.rate(round) if personal.lr is None else personal.lr
        client = self.client(client_id, round, received, private, epochs, lr, steps)
        with global_stream(self.job.settings.seed, "noise", round, client_id, device=self.device):
            self.job.method.personalise(client)
        passes = client.images / client.samples if client.samples else 0.0
        measures = self._values(client, personal=True)
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

    def _after(self, last: int) -> int:
        """The number that follows the last round: that of the personal stage."""
        return (last or self.job.settings.train.rounds) + 1

    def test(self, client_id: int, received: State) -> Scored:
        """What is measured of the global model on a client's test split."""
        client = self.client(client_id, 0, received, {}, 0, 0.0)
        return Scored(client_id, self._values(client, personal=False))

    def _values(self, client: Client, personal: bool) -> Values:
        """What is measured of the net as it is, on the client's own test split; nothing if that is empty."""
        metrics, held_out = self.job.metrics.personal, client.features_of("test")
        if held_out is None:
            return {}
        h, y = held_out
        with torch.no_grad():
            return metrics.values(metrics.part(self._predictions(h, y, self._totals(y), personal)))

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

    def evaluate(
        self, received: State, start: int, stop: int, client: int = NOBODY, private: State | None = None
    ) -> State:
        """What the metrics sum up over a part of the test set, of the global model or of a client's own."""
        self._check_kept(client, private or {})
        self._load(received, private or {})
        self.net.eval()
        with torch.no_grad():
            h = self.net.encoder(self._prepare(self._test.x[start:stop]))
            seen = self._predictions(h, self._test.y[start:stop], self._test_counts, personal=client != NOBODY)
            return self.job.metrics.part(seen)

    def _predictions(self, h: Tensor, y: Tensor, totals: Tensor, personal: bool) -> Predictions:
        method = self.job.method
        return Predictions(method.logits(self.net, h, personal), y, method.embed(self.net, h), totals)

    def client(
        self,
        id: int,
        round: int,
        received: State,
        private: State,
        epochs: float,
        lr: float,
        steps: int | None = None,
        pooled: int | None = None,
    ) -> Client:
        """A client at the start of a step, with what it received and what it kept in the net."""
        if private:
            self._check_kept(id, private)
        kept = {name.removeprefix(OPTIMISER): t for name, t in private.items() if name.startswith(OPTIMISER)}
        return Client(
            self._bench,
            self._share(id) if pooled is None else self._pool(pooled),
            id=id,
            round=round,
            received=self._load(received, private),
            private={name: like(initial, private.get(name, initial)) for name, initial in self._client_state.items()},
            memory={name: tensor.to(self.device) for name, tensor in kept.items()},
            epochs=epochs,
            lr=lr,
            steps=steps,
        )

    def _share(self, client: int) -> Share:
        """What a client holds."""
        partition = self.job.partition
        parts = partition.train[client], partition.test[client], partition.held_out(client), partition.counts[client]
        train, test, validation, counts = (torch.tensor(part, device=self.device) for part in parts)
        return Share(train, test, validation, counts)

    def _pool(self, drawn: int) -> Share:
        """What all clients train on, in one place; nothing of it is held out here."""
        train, counts = (torch.tensor(part, device=self.device) for part in self.job.partition.pooled())
        return Share(train, train[:0], train[:0], counts, drawn)

    def _inputs(self, there: tuple[Samples, Samples] | None) -> tuple[Prepare, Samples, Samples]:
        """What turns stored batches into inputs, and the data; what a note prepares is prepared once, here."""
        data = self.job.dataset
        prepare = preparation(self.job.settings, self.net.encoder, data.shape, self.device, data.note)
        train, test = there or (_to(data.train, self.device), _to(data.test, self.device))
        if data.note is None or callable(getattr(self.net.encoder, "preprocess", None)):
            return prepare, train, test
        train, test = (Samples(data.note.prepare(samples.x), samples.y) for samples in (train, test))
        return nn.Identity(), train, test

    def _workbench(self) -> Workbench:
        settings, method = self.job.settings, self.job.method
        return Workbench(
            net=self.net,
            state=self._tensors,
            parameters=dict(self.net.named_parameters()),
            buffers=dict(self.net.named_buffers()),
            modules=tuple(self.net.modules()),
            trainable=self._trainable,
            data=self._train,
            prepare=self._prepare,
            encode=self._compiled(),
            logits=lambda net, h: method.logits(net, h, personal=True),
            seed=settings.seed,
            settings=settings.train,
            personal=settings.personal,
            augment=settings.data.augment == "crop_flip" and len(self.job.dataset.shape) == 3,  # features.py: vectors
            precision=PRECISIONS[settings.engine.precision],
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
        choice = self.job.settings.engine.compile
        if not choice or not any(name.startswith("encoder.") for name in self._trainable):
            return self.net.encoder
        if choice == "auto":
            return with_kernels(self.net.encoder, self.device)
        rows = torch.arange(self.job.settings.train.batch_size, device=self.device) % len(self._train)
        return compiled(self.net.encoder, self._prepare(self._train.x[rows]))

    def _load(self, received: State, private: State) -> State:
        """Put the received and the private tensors into the net, and nothing of the last client is left in it.

        Returns all that was received, the net's tensors in its own memory layout: how they came must not change the
        last bits of a sum over them.
        """
        mine = self._seen_by_clients(received)
        for name, buffer in self._bench.buffers.items():
            buffer.detach().copy_(self._buffers[name])
        for name, tensor in self._tensors.items():
            source = mine.get(name)
            tensor.copy_(private.get(name, self._initial[name]) if source is None else source)
        return mine

    def _seen_by_clients(self, received: State) -> State:
        """What was received, on this device; made once for all clients of a round, since none of them writes to it."""
        if self._download is None or self._download[0] is not received:
            mine = {name: self._received[name].copy_(t) for name, t in received.items() if name in self._initial}
            others = {name: tensor.to(self.device) for name, tensor in received.items() if name not in mine}
            self._download = received, {**others, **mine}
        return self._download[1]


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
