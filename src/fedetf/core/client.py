"""What a method sees of a client: its data, a net, its random streams, and ``train``, the only SGD loop there is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedetf.core.batch import Batch
from fedetf.core.batches import batch_sizes, batches_in, shuffled
from fedetf.core.loss_scale import LossScale
from fedetf.core.running import lone_sample_safe, with_weights
from fedetf.core.state import State
from fedetf.data.batches import crop_flip
from fedetf.data.samples import Samples
from fedetf.metrics.accuracy import is_correct
from fedetf.nn.heads import Net
from fedetf.nn.optim import Name, Optimiser, make_optimiser, memorise, remember, uphill
from fedetf.rng import torch_stream
from fedetf.settings import PersonalSettings, TrainSettings

__all__ = ["EVALUATION_BATCH", "Batch", "Client", "Loss", "Share", "Split", "Workbench"]

Split = Literal["train", "test", "validation"]

EVALUATION_BATCH = 500  # large enough to keep a device busy; memory, not the result, depends on it


Loss = Callable[["Client", Batch], Tensor]


@dataclass(frozen=True)
class Workbench:
    """What all clients of a worker have in common: the net that is lent to one after the other, and how it trains."""

    net: Net
    state: State  # its tensors as its state dict has them, its own memory; and these, for the same reason: walking
    parameters: Mapping[str, Tensor]  # through modules for them takes longer than a small client's training
    buffers: Mapping[str, Tensor]
    modules: Sequence[nn.Module]
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
    drawn: int | None = None  # the number of training samples that an epoch sees; left out: all


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
        epochs: float,
        lr: float,
        steps: int | None = None,
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
        drawn = len(share.train) if share.drawn is None else share.drawn
        self._sizes = batch_sizes(drawn, bench.settings.batch_size)  # of an epoch's batches
        self.epochs = epochs if steps is None or not self._sizes else steps / len(self._sizes)
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
        self._scale = LossScale() if bench.precision == torch.float16 else None
        self._replaced = False  # whether other weights stand in place of the net's
        self._loss_sum, self._loss_images = torch.zeros((), device=share.counts.device), 0

    @property
    def state(self) -> State:
        """The net's tensors by name, as its state dict has them: its own memory, not a copy."""
        return self._bench.state

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
        epochs: float | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        optimiser: Name | None = None,
        plain: Sequence[str] = (),
        stream: str = "batches",
        samples: int | None = None,
        steps: int | None = None,
        repeat: int = 1,
        extra: Mapping[str, Tensor] | None = None,
        after_step: Callable[["Client"], None] | None = None,
        encode: bool = True,
        eval_frozen_encoder: bool = True,
    ) -> None:
        """Minimise ``loss(client, batch)`` over the client's batches by SGD, or what ``train.optimiser`` names.

        ``params`` names what trains, as module prefixes (``"encoder"``) or single tensors (``"head.V"``, which may be
        a buffer); all parameters if left out. What the maker of an encoder froze stays frozen. The rest is not handed
        to the optimiser at all, so that neither weight decay nor momentum can move it. A frozen encoder runs in eval
        mode, and once: its features are kept and reused until the encoder changes (``eval_frozen_encoder = False``,
        for methods/authors.py, leaves it in train mode). What ``plain`` names trains without momentum and weight
        decay. A phase that a method adds to the common one takes another ``stream``, so that it does not change the
        common one's batches. ``samples`` is the number of samples that an epoch sees, drawn anew for each; all if left
        out. ``steps`` is the number of steps after which the training ends early. ``repeat`` is the number of steps on
        each batch. ``extra`` names tensors outside the net that train along; ``plain`` can name them too.
        ``after_step`` is called after each step. ``encode = False`` is for losses that look at other weights only, by
        :meth:`loss_at`: the net itself does not run. The other arguments default to the settings of the current stage.
        """
        tensors = self._trained = {**self._unfreeze(params), **(extra or {})}
        sizes = self._sizes if samples is None else batch_sizes(samples, self.settings.batch_size)
        number = batches_in(self.epochs if epochs is None else epochs, len(sizes))
        if not tensors or number == 0 or self.samples == 0:
            return
        encoder_meant = params is None or any(f"{name}.".startswith("encoder.") for name in params)
        encoder_runs = not eval_frozen_encoder or (encoder_meant and not self._encoder_is_frozen())
        features = None if encoder_runs else self._frozen_features("train")
        optimisers = self._optimisers(optimiser or self.settings.optimiser, tensors, plain, lr, momentum, weight_decay)
        names = {id(tensor): f"{stream}.{name}" for name, tensor in tensors.items()}
        for each in optimisers if self.settings.keep_momentum else ():
            remember(each, names, self.memory)
        if not all(module.training for module in self._bench.modules):
            self.net.train()
        if not encoder_runs:
            self.net.encoder.eval()
        for rows in islice(self._batches(number, sizes, stream, repeat), steps):
            batch, value = self._gradient(loss, self._batch(rows, features), optimisers, encode)
            if self.settings.sam:
                with uphill(tensors.values(), self.net.buffers(), self.settings.sam):
                    self._gradient(loss, batch.part(slice(None)), optimisers, encode)
            for each in optimisers:
                each.step()
            if after_step is not None:
                after_step(self)
            self.images += len(batch)
            if stream == "batches":
                self.steps += 1
                self._loss_sum += value.detach() * len(batch)
                self._loss_images += len(batch)
        if encoder_runs:
            self._features.clear()
        for each in optimisers if self.settings.keep_momentum else ():
            memorise(each, names, self.memory)

    def _gradient(
        self, loss: Loss, batch: Batch, optimisers: Sequence[Optimiser], encode: bool
    ) -> tuple[Batch, Tensor]:
        """Give the trained tensors the gradient of a batch's loss; the batch and the loss."""
        with torch.enable_grad(), lone_sample_safe(self.net, len(batch)):
            if encode:
                _ = batch.h  # before the loss's own terms: in which order gradients are added up decides last bits
            value = loss(self, batch)
        for optimiser in optimisers:
            optimiser.zero_grad()
        if self._scale is None:
            value.backward()
        else:
            self._scale.backward(value, (tensor for optimiser in optimisers for tensor in optimiser.tensors))
        return batch, value

    def loss_at(self, weights: Mapping[str, Tensor], loss: Loss, batch: Batch) -> Tensor:
        """``loss(client, batch)`` where these weights stand in place of the net's own of the same names.

        Gradients flow to them. Buffers among them, such as BatchNorm's statistics, are updated instead of the net's.
        """
        batch, outer = batch.part(slice(None)), self._replaced
        self._replaced = True
        try:
            with lone_sample_safe(self.net, len(batch)):
                return with_weights(self.net, weights, lambda: loss(self, batch))
        finally:
            self._replaced = outer

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
        for name, tensor in (*self._bench.parameters.items(), *self._bench.buffers.items()):
            if tensor.requires_grad != (name in chosen) and tensor.is_floating_point():
                tensor.requires_grad_(name in chosen)
        return chosen

    def _encoder_is_frozen(self) -> bool:
        """Whether the encoder has parameters, but whoever made it froze them all."""
        names = [name for name in self._bench.parameters if name.startswith("encoder.")]
        return bool(names) and not any(name in self._bench.trainable for name in names)

    def _named(self, params: Sequence[str]) -> dict[str, Tensor]:
        """The tensors that ``params`` names: parameters by prefix, and any tensor by its whole name."""
        inside = tuple(f"{prefix}." for prefix in params)
        return {
            name: tensor
            for name, tensor in (*self._bench.parameters.items(), *self._bench.buffers.items())
            if name in params or (name in self._bench.trainable and name.startswith(inside))
        }

    def _optimisers(
        self,
        kind: Name,
        tensors: dict[str, Tensor],
        plain: Sequence[str],
        lr: float | None,
        momentum: float | None,
        weight_decay: float | None,
    ) -> list[Optimiser]:
        """Optimisers over ``tensors``, one for each rate; those that ``plain`` names have no momentum and decay."""
        named = self._named(plain)
        momentum = self.settings.momentum if momentum is None else momentum
        weight_decay = self.settings.weight_decay if weight_decay is None else weight_decay
        groups: dict[tuple[float, bool], list[Tensor]] = {}
        for name, tensor in tensors.items():
            rate = self._rate(name) if lr is None else lr
            groups.setdefault((rate, name in named or name in plain), []).append(tensor)
        return [
            make_optimiser(kind, group, rate, *((0, 0) if is_bare else (momentum, weight_decay)))
            for (rate, is_bare), group in groups.items()
        ]

    def _rate(self, name: str) -> float:
        """The learning rate of a tensor where a method gives none: heads, such as APFL's ``v.head``, have their own."""
        part, _, rest = name.partition(".")
        is_head = part == "head" or (part != "encoder" and rest.startswith("head."))
        return self.lr * self.settings.lr_head if is_head else self.lr

    def _batches(self, number: int, sizes: list[int], stream: str, repeat: int) -> Iterator[Tensor]:
        """Positions in the training split, in ``number`` batches, each ``repeat`` times."""
        for rows in shuffled(self.samples, sizes, number, self.stream(stream)):
            yield from [rows.to(self._train.device)] * repeat

    def _batch(self, rows: Tensor, features: Tensor | None) -> Batch:
        """The samples in these rows, with the kept features of a frozen encoder or with those of one that trains."""
        y = self._data.y[self._train[rows]]
        return Batch(self._encoded if features is None else features[rows], y, rows, lambda: self._inputs(rows))

    def _encoded(self, x: Tensor) -> Tensor:
        """Features of the encoder that trains; compiled code knows the net's own weights only."""
        encode = self.net.encoder if self._replaced else self._bench.encode
        with torch.autocast(x.device.type, self._bench.precision, enabled=self._bench.precision is not None):
            features: Tensor = encode(x)
        return features.float()  # in full precision for the head and the loss

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
