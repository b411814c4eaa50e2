"""What a method sees of a client: its data, a net, its random streams, and ``train``, the only SGD loop there is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedetf.core.state import State
from fedetf.data.batches import crop_flip
from fedetf.data.samples import Samples
from fedetf.metrics.accuracy import is_correct
from fedetf.nn.heads import Net
from fedetf.nn.optim import Optimiser, make_optimiser, memorise, remember, uphill
from fedetf.rng import torch_stream
from fedetf.settings import PersonalSettings, TrainSettings

Split = Literal["train", "test", "validation"]

EVALUATION_BATCH = 500  # large enough to keep a device busy; memory, not the result, depends on it


class Batch:
    """A batch of a client's training split, as a loss sees it.

    ``h`` are the features ``[B, D]`` that the net's encoder gives, ``y`` the labels ``[B]``, ``rows`` the positions of
    the samples in the training split ``[B]``, and ``x`` the inputs ``[B, ...]`` as the encoder sees them, augmented if
    the settings say so. Where features are kept because the encoder is frozen, ``x`` is made when it is asked for.
    """

    def __init__(self, h: Tensor, y: Tensor, rows: Tensor, inputs: Callable[[], Tensor]):
        self.h, self.y, self.rows = h, y, rows
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def x(self) -> Tensor:
        """The inputs ``[B, ...]``."""
        return self._inputs()


Loss = Callable[["Client", Batch], Tensor]


@dataclass(frozen=True)
class Workbench:
    """What all clients of a worker have in common: the net that is lent to one after the other, and how it trains."""

    net: Net
    trainable: frozenset[str]  # parameters that whoever made the encoder did not freeze
    data: Samples
    prepare: Callable[[Tensor], Tensor]  # from stored inputs to what the encoder sees
    encode: Callable[[Tensor], Tensor]  # the net's encoder in training, perhaps compiled
    logits: Callable[[Net, Tensor], Tensor]  # what a client's own model predicts from features
    seed: int
    settings: TrainSettings
    personal: PersonalSettings
    augment: bool
    precision: torch.dtype | None  # of the encoder in training, if it is not float32


@dataclass(frozen=True)
class Share:
    """What one client holds, as indices into the data."""

    train: Tensor  # [n_k]
    test: Tensor
    validation: Tensor
    counts: Tensor  # n_{k,c} of the training split, [classes]


class Client:
    """One client during one step: a round of training, or the personal stage.

    The net is lent: whoever makes the client has put the received tensors into it.
    """

    def __init__(
        self,
        bench: Workbench,
        share: Share,
        *,
        id: int,
        round: int,
        received: State,
        private: State,
        memory: State,
        epochs: int,
        lr: float,
    ):
        self.id = id
        self.round = round
        self.seed = bench.seed
        self.net = bench.net
        self.received = received  # what the server sent, see Method.download; never written to
        self.private = private  # what the method keeps with this client besides the net's own private tensors
        self.memory = memory  # of its optimisers, from its last round; used only if the settings say so
        self.counts = share.counts
        self.personal = bench.personal
        self.settings = bench.settings
        self.epochs = epochs
        self.lr = lr
        self.images = 0  # trained on so far, epochs counted
        self.steps = 0  # τ_k, optimiser steps of the common training phase so far
        self.accuracies: list[float] = []  # on the client's test split, where the method noted it
        self._bench = bench
        self._data = bench.data
        self._train = share.train
        self._splits = {"train": share.train, "test": share.test, "validation": share.validation}
        self._trained: dict[str, Tensor] = {}
        self._streams: dict[str, torch.Generator] = {}
        self._features: dict[str, Tensor] = {}  # of each split, for as long as the encoder stays as it is
        self._taught: dict[tuple[int, ...], tuple[State, Tensor]] = {}  # by other weights: these, and their features
        self._loss_sum, self._loss_images = torch.zeros((), device=share.counts.device), 0

    @property
    def samples(self) -> int:
        """n_k, the number of training samples."""
        return len(self._train)

    @property
    def mean_loss(self) -> float:
        """The mean loss per image of the common training phase so far; NaN before it."""
        return float(self._loss_sum) / self._loss_images if self._loss_images else float("nan")

    def train(
        self,
        loss: Loss,
        params: Sequence[str] | None = None,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        plain: Sequence[str] = (),
        stream: str = "batches",
        repeat: int = 1,
        extra: Mapping[str, Tensor] | None = None,
        after_step: Callable[["Client"], None] | None = None,
        eval_frozen_encoder: bool = True,
    ) -> None:
        """Minimise ``loss(client, batch)`` over the client's batches by SGD, or what ``train.optimiser`` names.

        ``params`` names what trains, as module prefixes (``"encoder"``) or single tensors (``"head.V"``, which may be
        a buffer); all parameters if left out. What the maker of an encoder froze stays frozen. The rest is not handed
        to the optimiser at all, so that neither weight decay nor momentum can move it. A frozen encoder runs in eval
        mode, and once: its features are kept and reused until the encoder changes (``eval_frozen_encoder = False``,
        for methods/authors.py, leaves it in train mode). What ``plain`` names trains without momentum and weight
        decay. A phase that a method adds to the common one takes another ``stream``, so that it does not change the
        common one's batches. ``repeat`` takes so many steps on each batch. ``extra`` names tensors outside the net that
        train along. ``after_step`` is called after each step. The other arguments default to the settings of the
        current stage.
        """
        tensors = self._trained = {**self._unfreeze(params), **(extra or {})}
        epochs = self.epochs if epochs is None else epochs
        if not tensors or epochs == 0 or self.samples == 0:
            return
        encoder_meant = params is None or any(f"{name}.".startswith("encoder.") for name in params)
        encoder_runs = not eval_frozen_encoder or (encoder_meant and not self._encoder_is_frozen())
        features = None if encoder_runs else self._frozen_features("train")
        optimisers = self._optimisers(tensors, plain, lr, momentum, weight_decay)
        names = {id(tensor): f"{stream}.{name}" for name, tensor in tensors.items()}
        for optimiser in optimisers if self.settings.keep_momentum else ():
            remember(optimiser, names, self.memory)
        self.net.train()
        self.net.encoder.train(encoder_runs)
        for rows in self._batches(epochs, stream, repeat):
            batch, value = self._gradient(loss, rows, features, optimisers)
            if self.settings.sam:
                with uphill(tensors.values(), self.net.buffers(), self.settings.sam):
                    self._gradient(loss, rows, features, optimisers, batch)
            for optimiser in optimisers:
                optimiser.step()
            if after_step is not None:
                after_step(self)
            self.images += len(batch)
            if stream == "batches":
                self.steps += 1
                self._loss_sum += value.detach() * len(batch)
                self._loss_images += len(batch)
        if encoder_runs:
            self._features.clear()
        for optimiser in optimisers if self.settings.keep_momentum else ():
            memorise(optimiser, names, self.memory)

    def _gradient(
        self,
        loss: Loss,
        rows: Tensor,
        features: Tensor | None,
        optimisers: Sequence[Optimiser],
        first: Batch | None = None,
    ) -> tuple[Batch, Tensor]:
        """Give the trained tensors the gradient of a batch's loss; the batch and the loss. For ``first`` see _batch."""
        with torch.enable_grad(), _lone_sample_safe(self.net, len(rows)):
            batch = self._batch(rows, features, first)
            value = loss(self, batch)
        for optimiser in optimisers:
            optimiser.zero_grad()
        value.backward()
        return batch, value

    def accuracy(self, split: Split = "test") -> float | None:
        """The accuracy of the net as it is on what the client holds out, to test or to validate; None of nothing."""
        held_out = self.features_of(split)
        if held_out is None:
            return None
        h, y = held_out
        with torch.no_grad():
            return int(is_correct(self._bench.logits(self.net, h), y).sum()) / len(y)

    def features_of(self, split: Split) -> tuple[Tensor, Tensor] | None:
        """Features ``[n, D]`` of one of the client's splits in eval mode, and its labels ``[n]``; None of nothing."""
        indices = self._splits[split]
        return (self._frozen_features(split), self._data.y[indices]) if len(indices) else None

    def note_accuracy(self) -> None:
        """Record how good the net is by now on the client's test split (Fig. 6b)."""
        accuracy = self.accuracy()
        if accuracy is not None:
            self.accuracies.append(accuracy)

    def trained_tensors(self) -> dict[str, Tensor]:
        """The tensors that the current training moves, by name."""
        return self._trained

    def class_features(self, state: Mapping[str, Tensor] | None = None) -> Iterator[tuple[int, Tensor]]:
        """For each class that the client trains on, its number and the features ``[n_c, D]`` of its samples.

        They are those of the net, or of other weights ``state``, such as ``client.received``; nothing is augmented.
        """
        y = self._data.y[self._train]
        if state is None:
            h = self._frozen_features("train")
        else:
            h = self._encode_by(self._encoder_of(state), self._plain_inputs("train"))
        for c in self.counts.nonzero().flatten().tolist():
            yield c, h[y == c]

    def encode(self, state: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Features ``[B, D]`` of a batch by other weights, such as ``client.received`` or those of last round.

        ``state`` names the encoder's tensors as the net does; what it lacks is the net's own. It runs in eval mode,
        with its own BatchNorm statistics and without gradients. Unless inputs are augmented, the features of all rows
        are computed once and kept: the tensors must not change meanwhile.
        """
        weights = self._encoder_of(state)
        if self._bench.augment:
            return self._encode_by(weights, [batch.x])
        key = tuple(map(id, weights.values()))
        if key not in self._taught:
            chunks = torch.arange(self.samples, device=self._train.device).split(EVALUATION_BATCH)
            self._taught[key] = weights, self._encode_by(weights, (self._inputs(rows) for rows in chunks))
        return self._taught[key][1][batch.rows]

    def _encoder_of(self, state: Mapping[str, Tensor]) -> State:
        """The encoder's tensors in a state of the net, by the encoder's own names."""
        encoder = self.net.encoder
        names = (*dict(encoder.named_parameters()), *dict(encoder.named_buffers()))
        return {name: state[f"encoder.{name}"] for name in names if f"encoder.{name}" in state}

    @torch.no_grad()
    def _encode_by(self, weights: State, inputs: Iterable[Tensor]) -> Tensor:
        encoder = self.net.encoder
        modes = [(module, module.training) for module in encoder.modules()]
        encoder.eval()
        try:
            return torch.cat([functional_call(encoder, weights, (x,)) for x in inputs])
        finally:
            for module, training in modes:
                module.training = training

    def stream(self, purpose: str) -> torch.Generator:
        """This client's random stream for ``purpose`` in this round; every call goes on where the last one ended."""
        if purpose not in self._streams:
            self._streams[purpose] = torch_stream(self.seed, purpose, self.round, self.id)
        return self._streams[purpose]

    def _unfreeze(self, params: Sequence[str] | None) -> dict[str, Tensor]:
        """Let gradients flow to the tensors that ``params`` names, and to no other; return them."""
        chosen = self._named(["encoder", "head"] if params is None else params)
        for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers()):
            if tensor.is_floating_point():
                tensor.requires_grad_(name in chosen)
        return chosen

    def _encoder_is_frozen(self) -> bool:
        """Whether the encoder has parameters, but whoever made it froze them all."""
        names = [name for name, _ in self.net.encoder.named_parameters()]
        return bool(names) and not any(f"encoder.{name}" in self._bench.trainable for name in names)

    def _named(self, params: Sequence[str]) -> dict[str, Tensor]:
        """The tensors that ``params`` names: parameters by prefix, and any tensor by its whole name."""
        inside = tuple(f"{prefix}." for prefix in params)
        return {
            name: tensor
            for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers())
            if name in params or (name in self._bench.trainable and name.startswith(inside))
        }

    def _optimisers(
        self,
        tensors: dict[str, Tensor],
        plain: Sequence[str],
        lr: float | None,
        momentum: float | None,
        weight_decay: float | None,
    ) -> list[Optimiser]:
        """An optimiser over ``tensors``; one more over those that ``plain`` names, without momentum and decay."""
        bare = self._named(plain)
        lr = self.lr if lr is None else lr
        momentum = self.settings.momentum if momentum is None else momentum
        weight_decay = self.settings.weight_decay if weight_decay is None else weight_decay
        kind, most = self.settings.optimiser, [tensor for name, tensor in tensors.items() if name not in bare]
        usual = make_optimiser(kind, most, lr, momentum, weight_decay)
        return [usual, make_optimiser(kind, [tensors[name] for name in bare], lr, 0, 0)] if bare else [usual]

    def _batches(self, epochs: int, stream: str, repeat: int) -> Iterator[Tensor]:
        """Positions in the training split, reshuffled each epoch; the last batch may be smaller. Each comes so often.

        A single sample that is left over joins the batch before: a step on one sample, with whatever statistics in
        BatchNorm, made training diverge (docs/architecture.md).
        """
        whole, rest = divmod(self.samples, self.settings.batch_size)
        sizes = [self.settings.batch_size] * whole
        if rest == 1 and sizes:
            sizes[-1] += 1
        elif rest:
            sizes.append(rest)
        for _ in range(epochs):
            order = torch.randperm(self.samples, generator=self.stream(stream))
            for rows in order.to(self._train.device).split(sizes):
                yield from [rows] * repeat

    def _batch(self, rows: Tensor, features: Tensor | None, first: Batch | None = None) -> Batch:
        """The samples in these rows, with the kept features of a frozen encoder or with those of one that trains.

        ``first`` is the same batch as it was encoded before: its inputs, however augmented, are taken once more.
        """
        y = self._data.y[self._train[rows]]
        if features is not None:
            return Batch(features[rows], y, rows, lambda: self._inputs(rows)) if first is None else first
        x = self._inputs(rows) if first is None else first.x
        with torch.autocast(x.device.type, self._bench.precision, enabled=self._bench.precision is not None):
            h = self._bench.encode(x).float()  # in full precision for the head and the loss
        return Batch(h, y, rows, lambda: x)

    def _inputs(self, rows: Tensor) -> Tensor:
        x = self._data.x[self._train[rows]]
        if self._bench.augment:
            x = crop_flip(x, self.stream("augment"))
        return self._bench.prepare(x)

    def _frozen_features(self, split: Split) -> Tensor:
        """Features ``[n, D]`` of a split in eval mode, computed once until the encoder changes."""
        self.net.eval()
        if split not in self._features:
            with torch.no_grad():
                self._features[split] = torch.cat([self.net.encoder(x) for x in self._plain_inputs(split)])
        return self._features[split]

    def _plain_inputs(self, split: Split) -> Iterator[Tensor]:
        """What the encoder sees of a split if nothing is augmented, in batches."""
        return (self._bench.prepare(self._data.x[chunk]) for chunk in self._splits[split].split(EVALUATION_BATCH))


@contextmanager
def _lone_sample_safe(net: nn.Module, size: int) -> Iterator[None]:
    """For a client of one sample, use BatchNorm's running statistics instead of updating them.

    One sample has no variance: on a 1×1 map BatchNorm fails outright, on larger ones its statistics are noise.
    """
    norms = (
        [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training] if size == 1 else []
    )
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
