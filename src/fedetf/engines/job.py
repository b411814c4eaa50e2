"""All that a worker must know before the first round."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedetf.core.batches import batch_sizes, batches_in, images_in
from fedetf.data.batches import Normalize
from fedetf.data.behaviour import share_done
from fedetf.data.kinds import Note
from fedetf.data.partition import Partition
from fedetf.data.samples import Dataset
from fedetf.errors import UserError
from fedetf.methods import Method, method_of
from fedetf.metrics import Suite, make_suite
from fedetf.nn.encoders import build_encoder, own_encoder
from fedetf.nn.heads import Net
from fedetf.rng import global_stream
from fedetf.settings import MethodSettings, ServerSettings, Settings, UpdateSettings

Prepare = Callable[[Tensor], Tensor]

AUTO, IMAGES = "auto", "cnn"  # model.name: the one that fits the kind; that of images


@dataclass(frozen=True)
class Job:
    """All that a worker must know before the first round. Nothing in it changes during a run."""

    settings: Settings
    method: Method
    dataset: Dataset
    partition: Partition
    encoder: nn.Module | None = None  # the user's own; None builds the one that the settings name
    metrics: Suite = field(default_factory=Suite)  # what is measured

    @classmethod
    def make(
        cls,
        settings: Settings,
        dataset: Dataset,
        partition: Partition,
        encoder: nn.Module | None = None,
        method: Method | None = None,
    ) -> "Job":
        """A job with the method, the encoder and the metrics that the settings name, unless they are at hand.

        The settings are completed by all of the method's own numbers.
        """
        method = method or method_of(settings)
        method.check(settings)
        settings = with_model(settings, dataset.note)
        if encoder is None:
            shape = input_shape(dataset.train.x[:2], dataset.note)
            encoder = own_encoder(settings.model.name, shape, settings.seed)
        section = MethodSettings(name=settings.method.name, **method.model_dump(exclude_none=True))
        completed = settings.model_copy(update={"method": section})
        return cls(completed, method, dataset, partition, encoder, make_suite(settings.measure.chosen))

    @property
    def exchange(self) -> Settings:
        """The settings of what becomes of updates on their way and at the server: nothing, where all data is."""
        if not self.method.pools:
            return self.settings
        return self.settings.model_copy(update={"update": UpdateSettings(), "server": ServerSettings()})

    def work_of(self, client: int, round: int) -> tuple[float, int | None]:
        """For how many epochs, or steps if they are set, a client trains in a round: a straggler for its share."""
        train = self.settings.train
        share = share_done(client, round, self.settings.system, self.settings.seed)
        return train.epochs * share, None if train.steps is None else max(1, math.ceil(train.steps * share))

    def images_of(self, client: int, round: int) -> int:
        """How many samples a client trains on in a round of one phase, epochs counted."""
        sizes = batch_sizes(len(self.partition.train[client]), self.settings.train.batch_size)
        epochs, steps = self.work_of(client, round)
        return images_in(batches_in(epochs, len(sizes)) if steps is None else steps, sizes)

    def build_net(self) -> Net:
        """A net with the initial weights: the same encoder for every method with the same seed."""
        data = self.dataset
        return build_net(self.settings, self.method, data.train.x[:2], len(data.classes), self.encoder, data.note)


def with_model(settings: Settings, note: Note | None) -> Settings:
    """The settings with a model: the one that fits the kind of data, if none is chosen."""
    if settings.model.name != AUTO:
        return settings
    model = settings.model.model_copy(update={"name": IMAGES if note is None else note.encoder})
    return settings.model_copy(update={"model": model})


def input_shape(example: Tensor, note: Note | None) -> tuple[int, ...]:
    """The shape of one input as an encoder sees it; ``example`` are some as they are stored."""
    return tuple((example if note is None else note.module()(example)).shape[1:])


def build_net(
    settings: Settings,
    method: Method,
    example: Tensor,
    classes: int,
    own: nn.Module | None,
    note: Note | None = None,
) -> Net:
    """An encoder with the method's head, with initial weights; ``example`` are two inputs as they are stored."""
    if own is not None:
        encoder, features = copy.deepcopy(own), _feature_length(own, settings, example, note)
    else:
        shape = input_shape(example, note)
        kind, blocks = (None, ()) if note is None else (note.kind, note.blocks)
        with global_stream(settings.seed, "init-encoder"):
            built = build_encoder(settings.model.name, shape, settings.fidelity, kind, blocks)
        encoder, features = built, built.features
    net = method.build(encoder, features, classes, settings.seed)
    net.features = features
    return net


def preparation(
    settings: Settings, encoder: nn.Module, shape: tuple[int, ...], device: torch.device, note: Note | None = None
) -> Prepare:
    """The function that turns a stored batch into what the encoder sees: its own ``preprocess``, if it has one."""
    own = getattr(encoder, "preprocess", None)
    if note is None or callable(own):
        return own if callable(own) else Normalize(settings.data.normalize, shape[0], device)
    return note.module().to(device)


def placed(net: nn.Module, shape: tuple[int, ...], device: torch.device) -> nn.Module:
    """The net on its device, in the memory layout in which convolutions are fastest."""
    net = net.to(device)
    return net.to(memory_format=torch.channels_last) if len(shape) == 3 else net  # type: ignore[call-overload]  # torch's stubs lack it


def _feature_length(encoder: nn.Module, settings: Settings, example: Tensor, note: Note | None) -> int:
    """How long the vectors are that the user's own encoder gives, found by trying it on two samples."""
    probe = copy.deepcopy(encoder).cpu().eval()
    shape = tuple(example.shape[1:])
    prepare = preparation(settings, probe, shape, torch.device("cpu"), note)
    try:
        with torch.no_grad():
            features = probe(prepare(example.clone()))  # it may work in place
    except Exception as error:  # whatever a user's module can raise
        reason = str(error).split("\n")[0]
        raise UserError(f"the encoder cannot take inputs of shape {shape}: {reason}") from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        kind = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the encoder must give [batch, features], but gives {kind}; flatten or pool its output")
    if features.dtype != torch.float32:
        raise UserError(f"the encoder gives {features.dtype}; convert it to float32 (encoder.float())")
    return features.shape[1]
