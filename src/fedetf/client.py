"""What a method sees of a client: its data, a net, its random streams, and ``train``, the only SGD loop there is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from fedetf.config import PersonalSettings, TrainSettings
from fedetf.data.batches import crop_flip
from fedetf.data.samples import Samples
from fedetf.heads import Net
from fedetf.measure.accuracy import count_correct
from fedetf.rng import torch_stream
from fedetf.sgd import SGD
from fedetf.state import State

Loss = Callable[["Client", Tensor, Tensor], Tensor]

EVALUATION_BATCH = 500  # large enough to keep a device busy; memory, not the result, depends on it


class Client:
    """One client during one step: a round of training, or the personal stage.

    The net is lent: whoever makes the client has put the received tensors into it.
    """

    def __init__(
        self,
        *,
        id: int,
        round: int,
        seed: int,
        net: Net,
        trainable: frozenset[str],
        received: State,
        private: State,
        momentum: State,
        logits: Callable[[Net, Tensor], Tensor],
        data: Samples,
        train: Tensor,
        test: Tensor,
        counts: Tensor,
        prepare: Callable[[Tensor], Tensor],
        encode: Callable[[Tensor], Tensor],
        precision: torch.dtype | None,
        augment: bool,
        settings: TrainSettings,
        personal: PersonalSettings,
        epochs: int,
        lr: float,
    ):
        self.id = id
        self.round = round
        self.seed = seed
        self.net = net
        self._trainable = trainable  # parameters that are not frozen by whoever made the encoder
        self.received = received  # what the server sent; never written to
        self.private = private  # what the method keeps with this client besides the net's own private tensors
        self.momentum = momentum  # of its last round, by tensor; used only if the settings say so
        self.counts = counts  # n_{k,c} of the training split, [classes]
        self.personal = personal
        self.settings = settings
        self.epochs = epochs
        self.lr = lr
        self.images = 0  # trained on so far, epochs counted
        self.accuracies: list[float] = []  # on the client's test split, where the method noted it
        self._logits = logits
        self._data = data
        self._train = train  # indices into data, [n_k]
        self._test = test
        self._prepare = prepare
        self._encode = encode  # the net's encoder in training, perhaps compiled
        self._precision = precision  # of the encoder in training, if it is not float32
        self._augment = augment
        self._trained: dict[str, Tensor] = {}
        self._streams: dict[str, torch.Generator] = {}
        self._features: dict[str, Tensor] = {}  # of each split, for as long as the encoder stays as it is
        self._loss_sum, self._loss_images = torch.zeros((), device=counts.device), 0

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
        eval_frozen_encoder: bool = True,
    ) -> None:
        """Minimise ``loss(client, h, y)`` over the client's batches by SGD.

        ``params`` names what trains, as module prefixes (``"encoder"``) or single tensors (``"head.V"``, which may be
        a buffer); all parameters if left out. What the maker of an encoder froze stays frozen. The rest is not handed
        to the optimiser at all, so that neither weight decay nor momentum can move it. A frozen encoder runs in eval
        mode, and once: its features are kept and reused until the encoder changes (``eval_frozen_encoder = False``,
        for methods/authors.py, leaves it in train mode). What ``plain`` names trains without momentum and weight
        decay. A phase that a method adds to the common one takes another ``stream``, so that it does not change the
        common one's batches. The other arguments default to the settings of the current stage.
        """
        tensors = self._trained = self._unfreeze(params)
        epochs = self.epochs if epochs is None else epochs
        if not tensors or epochs == 0 or self.samples == 0:
            return
        encoder_meant = params is None or any(f"{name}.".startswith("encoder.") for name in params)
        encoder_runs = not eval_frozen_encoder or (encoder_meant and not self._encoder_is_frozen())
        features = None if encoder_runs else self._frozen_features("train")
        optimisers = self._optimisers(tensors, plain, lr, momentum, weight_decay)
        if self.settings.keep_momentum:
            self._restore_momentum(optimisers, tensors, stream)
        self.net.train()
        self.net.encoder.train(encoder_runs)
        for batch in self._batches(epochs, stream):
            with torch.enable_grad(), _lone_sample_safe(self.net, len(batch)):
                h = self._train_features(batch) if features is None else features[batch]
                value = loss(self, h, self._data.y[self._train[batch]])
            for optimiser in optimisers:
                optimiser.zero_grad()
            value.backward()
            for optimiser in optimisers:
                optimiser.step()
            self.images += len(batch)
            if stream == "batches":
                self._loss_sum += value.detach() * len(batch)
                self._loss_images += len(batch)
        if encoder_runs:
            self._features.clear()
        if self.settings.keep_momentum:
            self._store_momentum(optimisers, tensors, stream)

    def accuracy(self) -> float | None:
        """The accuracy of the net as it is on the client's test split; None if that is empty."""
        if len(self._test) == 0:
            return None
        h, y = self._frozen_features("test"), self._data.y[self._test]
        with torch.no_grad():
            return int(count_correct(self._logits(self.net, h), y)) / len(y)

    def note_accuracy(self) -> None:
        """Record how good the net is by now on the client's test split (Fig. 6b)."""
        accuracy = self.accuracy()
        if accuracy is not None:
            self.accuracies.append(accuracy)

    def trained_tensors(self) -> dict[str, Tensor]:
        """The tensors that the current training moves, by name."""
        return self._trained

    def class_features(self) -> Iterator[tuple[int, Tensor]]:
        """For each class that the client trains on, its number and the features ``[n_c, D]`` of its samples."""
        h, y = self._frozen_features("train"), self._data.y[self._train]
        for c in self.counts.nonzero().flatten().tolist():
            yield c, h[y == c]

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
        return bool(names) and not any(f"encoder.{name}" in self._trainable for name in names)

    def _named(self, params: Sequence[str]) -> dict[str, Tensor]:
        """The tensors that ``params`` names: parameters by prefix, and any tensor by its whole name."""
        inside = tuple(f"{prefix}." for prefix in params)
        return {
            name: tensor
            for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers())
            if name in params or (name in self._trainable and name.startswith(inside))
        }

    def _optimisers(
        self,
        tensors: dict[str, Tensor],
        plain: Sequence[str],
        lr: float | None,
        momentum: float | None,
        weight_decay: float | None,
    ) -> list[SGD]:
        """SGD over ``tensors``, from zero momentum; those that ``plain`` names without momentum and weight decay."""
        bare = self._named(plain)
        lr = self.lr if lr is None else lr
        momentum = self.settings.momentum if momentum is None else momentum
        weight_decay = self.settings.weight_decay if weight_decay is None else weight_decay
        usual = SGD([tensor for name, tensor in tensors.items() if name not in bare], lr, momentum, weight_decay)
        return [usual, SGD([tensors[name] for name in bare], lr)] if bare else [usual]

    def _restore_momentum(self, optimisers: list[SGD], tensors: dict[str, Tensor], stream: str) -> None:
        """Begin with the momentum that these tensors had at the end of the client's last training on ``stream``."""
        names = {id(tensor): f"{stream}.{name}" for name, tensor in tensors.items()}
        for optimiser in optimisers:
            kept = [self.momentum.get(names[id(tensor)]) for tensor in optimiser.tensors]
            pairs = zip(optimiser.tensors, kept, strict=True)
            optimiser.momenta = [None if m is None else torch.empty_like(tensor).copy_(m) for tensor, m in pairs]

    def _store_momentum(self, optimisers: list[SGD], tensors: dict[str, Tensor], stream: str) -> None:
        names = {id(tensor): f"{stream}.{name}" for name, tensor in tensors.items()}
        for optimiser in optimisers:
            for tensor, momentum in zip(optimiser.tensors, optimiser.momenta, strict=True):
                if momentum is not None:
                    self.momentum[names[id(tensor)]] = momentum

    def _batches(self, epochs: int, stream: str) -> Iterator[Tensor]:
        """Positions in the training split, reshuffled each epoch; the last batch may be smaller.

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
            yield from order.to(self._train.device).split(sizes)

    def _train_features(self, batch: Tensor) -> Tensor:
        """Features ``[B, D]`` of a batch in training; in full precision for the head and the loss."""
        x = self._inputs(batch)
        with torch.autocast(x.device.type, self._precision, enabled=self._precision is not None):
            return self._encode(x).float()

    def _inputs(self, batch: Tensor) -> Tensor:
        x = self._data.x[self._train[batch]]
        if self._augment:
            x = crop_flip(x, self.stream("augment"))
        return self._prepare(x)

    def _frozen_features(self, split: Literal["train", "test"]) -> Tensor:
        """Features ``[n, D]`` of a split in eval mode, computed once until the encoder changes."""
        self.net.eval()
        if split not in self._features:
            indices = self._train if split == "train" else self._test
            with torch.no_grad():
                chunks = indices.split(EVALUATION_BATCH)
                parts = [self.net.encoder(self._prepare(self._data.x[chunk])) for chunk in chunks]
            self._features[split] = torch.cat(parts)
        return self._features[split]


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
