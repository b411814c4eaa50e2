"""All that a worker must know before the first round."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedetf.data.batches import Normalize
from fedetf.data.partition import Partition
from fedetf.data.samples import Dataset
from fedetf.errors import UserError
from fedetf.methods import Method, method_of
from fedetf.metrics import Suite, make_suite
from fedetf.nn.encoders import build_encoder, own_encoder
from fedetf.nn.heads import Net
from fedetf.rng import global_stream
from fedetf.settings import MethodSettings, Settings

Prepare = Callable[[Tensor], Tensor]


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
        encoder = encoder if encoder is not None else own_encoder(settings.model.name, dataset.shape, settings.seed)
        section = MethodSettings(name=settings.method.name, **method.model_dump(exclude_none=True))
        completed = settings.model_copy(update={"method": section})
        return cls(completed, method, dataset, partition, encoder, make_suite(settings.measure.chosen))

    def build_net(self) -> Net:
        """A net with the initial weights: the same encoder for every method with the same seed."""
        return build_net(self.settings, self.method, self.dataset.train.x[:2], len(self.dataset.classes), self.encoder)


def build_net(settings: Settings, method: Method, example: Tensor, classes: int, own: nn.Module | None) -> Net:
    """An encoder with the method's head, with initial weights; ``example`` are two inputs as they are stored."""
    if own is not None:
        encoder, features = copy.deepcopy(own), _feature_length(own, settings, example)
    else:
        with global_stream(settings.seed, "init-encoder"):
            built = build_encoder(settings.model.name, tuple(example.shape[1:]), settings.fidelity)
        encoder, features = built, built.features
    net = method.build(encoder, features, classes, settings.seed)
    net.features = features
    return net


def preparation(settings: Settings, encoder: nn.Module, shape: tuple[int, ...], device: torch.device) -> Prepare:
    """The function that turns a stored batch into what the encoder sees: its own ``preprocess``, if it has one."""
    own = getattr(encoder, "preprocess", None)
    return own if callable(own) else Normalize(settings.data.normalize, shape[0], device)


def placed(net: nn.Module, shape: tuple[int, ...], device: torch.device) -> nn.Module:
    """The net on its device, in the memory layout in which convolutions are fastest."""
    net = net.to(device)
    return net.to(memory_format=torch.channels_last) if len(shape) == 3 else net  # type: ignore[call-overload]  # torch's stubs lack it


def _feature_length(encoder: nn.Module, settings: Settings, example: Tensor) -> int:
    """How long the vectors are that the user's own encoder gives, found by trying it on two samples."""
    probe = copy.deepcopy(encoder).cpu().eval()
    shape = tuple(example.shape[1:])
    prepare = preparation(settings, probe, shape, torch.device("cpu"))
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
