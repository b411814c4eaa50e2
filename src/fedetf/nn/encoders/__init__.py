"""The encoders by name: networks from an input to a feature vector, without a classifier.

All convolutional ones are made for small images (a 3x3 stem of stride 1, no pooling after it) and take any
number of channels and any size from 8x8 on.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fedetf.errors import UserError, unknown
from fedetf.nn.encoders.base import Encoder
from fedetf.nn.encoders.cnn import CNN
from fedetf.nn.encoders.densenet import DenseNet
from fedetf.nn.encoders.efficientnet import EfficientNetB0
from fedetf.nn.encoders.mlp import MLP
from fedetf.nn.encoders.mobilenetv2 import MobileNetV2
from fedetf.nn.encoders.resnet import ResNet
from fedetf.own_code import guarded
from fedetf.plugins import Registry, first_line
from fedetf.rng import global_stream

__all__ = [
    "Encoder",
    "ModelInfo",
    "build_encoder",
    "check_model",
    "describe_models",
    "encoder_shapes",
    "is_model",
    "model_names",
    "own_encoder",
    "registry",
]

Factory = Callable[..., nn.Module]  # of no argument, or of the shape of one input

MIN_SIZE = 8  # pixels: densenet121 halves an image three times, rounding down, and one must be left


@dataclass(frozen=True)
class ModelInfo:
    """A model as shown to the user; the numbers are those of the encoder for 3x32x32 images, None for a plug-in."""

    name: str
    description: str
    parameters: int | None
    features: int | None
    package: str = "fedetf"
    error: str | None = None


@dataclass(frozen=True)
class _Model:
    description: str
    build: Callable[[int], Encoder]  # from the number of channels; for the mlp, of inputs


_MODELS = {
    "cnn": _Model("small CNN with BatchNorm for quick experiments", CNN),
    "mlp": _Model("perceptron with two hidden layers, for plain vectors too", MLP),
    "resnet20": _Model("CIFAR ResNet of 20 layers", partial(ResNet, blocks=3, widths=(16, 32, 64))),
    "resnet32": _Model("CIFAR ResNet of 32 layers", partial(ResNet, blocks=5, widths=(16, 32, 64))),
    "resnet56": _Model("CIFAR ResNet of 56 layers", partial(ResNet, blocks=9, widths=(16, 32, 64))),
    "wrn56_4": _Model("resnet56 with four times the width", partial(ResNet, blocks=9, widths=(64, 128, 256))),
    "resnet18": _Model("ResNet-18 with a CIFAR stem", partial(ResNet, blocks=2, widths=(64, 128, 256, 512))),
    "densenet121": _Model("DenseNet-121 with a CIFAR stem", partial(DenseNet, layers=(6, 12, 24, 16))),
    "mobilenetv2": _Model("MobileNetV2 with strides for CIFAR", MobileNetV2),
    "efficientnet_b0": _Model("EfficientNet-B0 with a CIFAR stem", EfficientNetB0),
}


def model_names() -> list[str]:
    """Return the names that `build_encoder` knows."""
    return list(_MODELS)


def is_model(name: str) -> bool:
    """Whether a name says where the encoder comes from: one of these, of a package, or code of the user's own."""
    return registry.is_known(name)


def check_model(name: str) -> None:
    """Raise UserError if there is no such model, or its code cannot be imported."""
    registry.find(name)


def own_encoder(name: str, shape: tuple[int, ...], seed: int) -> nn.Module | None:
    """The encoder of an installed package, ``package.module:factory`` or ``FILE.py:factory``; None for one of fedetf's.

    The factory takes the ``shape`` of one input, or nothing, and gives any ``nn.Module`` from a batch of inputs to
    ``[batch, features]``. What it draws from PyTorch's global generator is the same whenever the seed is.
    """
    if name in _MODELS:
        return None
    factory = registry.find(name)
    given = [shape] if _takes_shape(factory) else []
    with global_stream(seed, "init-encoder"):
        encoder = guarded(lambda: factory(*given), f"the encoder {name} cannot be made")
    if not isinstance(encoder, nn.Module):
        raise UserError(f"{name} gives {type(encoder).__name__}, not a torch.nn.Module")
    return encoder


def _takes_shape(factory: Factory) -> bool:
    """Whether a factory has a parameter that must be given."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # of a class or function that is not written in Python
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)


def build_encoder(name: str, shape: tuple[int, ...], fidelity: str = "paper") -> Encoder:
    """Build the encoder `name` for inputs of `shape`, (channels, height, width) or (length,).

    The weights are drawn from PyTorch's global random generator, as the encoder's own paper has it or, with fidelity
    "authors", by PyTorch's default, which makes those in the blocks of a ResNet 1.7 to 2.5 times smaller. Raises
    UserError for an unknown name or a shape that the model cannot take.
    """
    if name not in _MODELS:
        raise unknown("model", name, registry.names(), "package.module:factory of your own")
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise UserError(f"inputs must be (channels, height, width) or (length,), not {shape}")
    size = math.prod(shape) if name == "mlp" else _channels(name, shape)
    encoder = _MODELS[name].build(size)
    if fidelity == "authors":
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
    return encoder


def describe_models() -> list[ModelInfo]:
    """Return all models: fedetf's own with their sizes, and those of installed packages, which are not built."""
    plugins = [listed for listed in registry.listing() if listed.name not in _MODELS or listed.error]
    return [_describe(name) for name in _MODELS] + [
        ModelInfo(each.name, first_line(each.thing), None, None, each.package, each.error) for each in plugins
    ]


def encoder_shapes(name: str, shape: tuple[int, ...]) -> dict[str, torch.Size]:
    """The shapes of an encoder's tensors, by name, for inputs of `shape`; nothing is allocated for it."""
    return {key: tensor.shape for key, tensor in _unallocated(name, shape).state_dict().items()}


def _unallocated(name: str, shape: tuple[int, ...]) -> Encoder:
    with torch.device("meta"):  # shapes without memory or random numbers
        return build_encoder(name, shape)


def _describe(name: str) -> ModelInfo:
    encoder = _unallocated(name, (3, 32, 32))
    parameters = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    return ModelInfo(name, _MODELS[name].description, parameters, encoder.features)


def _channels(name: str, shape: tuple[int, ...]) -> int:
    """Return the number of channels of images that a convolutional model can take."""
    if len(shape) == 1:
        raise UserError(f"{name} takes images, not vectors of length {shape[0]}: use the model 'mlp'")
    channels, height, width = shape
    if min(height, width) < MIN_SIZE:
        raise UserError(f"{name} takes images from {MIN_SIZE}x{MIN_SIZE} pixels on, not {height}x{width}")
    return channels


def _checked(found: Any, name: str) -> Factory:
    if not callable(found):
        raise UserError(f"{name} is not a function that makes an encoder; see docs/guides/plugins.md")
    factory: Factory = found
    return factory


_FACTORIES = {name: partial(build_encoder, name) for name in _MODELS}
registry = Registry[Factory]("model", "fedetf.encoders", "--model", _FACTORIES, _checked)
