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
from fedetf.nn.encoders.cnn1d import CNN1d
from fedetf.nn.encoders.densenet import DenseNet
from fedetf.nn.encoders.efficientnet import EfficientNetB0
from fedetf.nn.encoders.mlp import MLP
from fedetf.nn.encoders.mobilenetv2 import MobileNetV2
from fedetf.nn.encoders.resnet import ResNet
from fedetf.nn.encoders.text import TextBag, TextTransformer
from fedetf.nn.encoders.vgg import VGG
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
    "has_kernels",
    "is_model",
    "model_names",
    "models_for",
    "own_encoder",
    "registry",
]

Factory = Callable[..., nn.Module]  # of no argument, or of the shape of one input

# Inputs by kind, as arguments of build_encoder, for which the sizes of models are shown.
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "image": ((3, 32, 32),),
    "text": ((256,), "paper", "text", (2**14,)),
    "signal": ((6, 128),),
}
MIN_SIZE = 8  # pixels: densenet121 halves an image three times, rounding down, and one must be left


@dataclass(frozen=True)
class ModelInfo:
    """A model as shown to the user; the numbers are those for 3x32x32 images or EXAMPLES, None for a plug-in."""

    name: str
    description: str
    parameters: int | None
    features: int | None
    package: str = "fedetf"
    error: str | None = None


@dataclass(frozen=True)
class _Model:
    description: str
    build: Callable[..., Encoder]  # from the number of channels; for the mlp, of inputs
    takes: tuple[str, ...] = ("image",)  # kinds of data
    sizes: Callable[[tuple[int, ...], tuple[int, ...]], tuple[Any, ...]] = lambda shape, _: shape[:1]  # for build


_MODELS = {
    "cnn": _Model("small CNN with BatchNorm for quick experiments", CNN),
    "mlp": _Model(
        "perceptron with two hidden layers, for tables; embeds categories",
        MLP,
        ("table", "image", "signal", "sound"),
        lambda shape, blocks: (math.prod(shape), blocks),
    ),
    "textbag": _Model("mean of word vectors, for texts", TextBag, ("text",), lambda _, blocks: blocks),
    "transformer": _Model(
        "small transformer of two layers, for texts",
        TextTransformer,
        ("text",),
        lambda shape, blocks: (blocks[0], *shape, *blocks[1:]),
    ),
    "cnn1d": _Model("small CNN over time, for signals and sound", CNN1d, ("signal", "sound")),
    "resnet20": _Model("CIFAR ResNet of 20 layers", partial(ResNet, blocks=3, widths=(16, 32, 64))),
    "resnet32": _Model("CIFAR ResNet of 32 layers", partial(ResNet, blocks=5, widths=(16, 32, 64))),
    "resnet56": _Model("CIFAR ResNet of 56 layers", partial(ResNet, blocks=9, widths=(16, 32, 64))),
    "wrn56_4": _Model("resnet56 with four times the width", partial(ResNet, blocks=9, widths=(64, 128, 256))),
    "resnet18": _Model("ResNet-18 with a CIFAR stem", partial(ResNet, blocks=2, widths=(64, 128, 256, 512))),
    "vgg11": _Model(
        "VGG-11 with BatchNorm, for CIFAR",
        partial(VGG, stages=((64,), (128,), (256, 256), (512, 512), (512, 512))),
    ),
    "densenet121": _Model("DenseNet-121 with a CIFAR stem", partial(DenseNet, layers=(6, 12, 24, 16))),
    "mobilenetv2": _Model("MobileNetV2 with strides for CIFAR", MobileNetV2),
    "efficientnet_b0": _Model("EfficientNet-B0 with a CIFAR stem", EfficientNetB0),
}


def model_names() -> list[str]:
    """Return the names that `build_encoder` knows."""
    return list(_MODELS)


def models_for(kind: str) -> list[str]:
    """The names of those that take data of a kind: "image", "table", "text", "signal" or "sound"."""
    return [name for name, model in _MODELS.items() if kind in model.takes]


def is_model(name: str) -> bool:
    """Whether a name says where the encoder comes from: one of these, of a package, or code of the user's own."""
    return registry.is_known(name)


def has_kernels(name: str) -> bool:
    """Whether ``engine.compile`` has kernels for a model: they are for the residual networks."""
    return name in _MODELS and getattr(_MODELS[name].build, "func", None) is ResNet


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


def build_encoder(
    name: str, shape: tuple[int, ...], fidelity: str = "paper", kind: str | None = None, blocks: tuple[int, ...] = ()
) -> Encoder:
    """Build the encoder `name` for inputs of `shape`, (channels, height, width), (channels, steps) or (length,).

    `kind` is what the inputs are, found from the shape if it is left out: "image", "signal" or "table". `blocks` are
    the sizes of what is embedded: of each column of categories, whose one-hot slots are the end of an input.

    The weights are drawn from PyTorch's global random generator, as the encoder's own paper has it or, with fidelity
    "authors", by PyTorch's default, which makes those in the blocks of a ResNet 1.7 to 2.5 times smaller. Raises
    UserError for an unknown name or a shape that the model cannot take.
    """
    if name not in _MODELS:
        raise unknown("model", name, registry.names(), "package.module:factory of your own")
    if len(shape) not in (1, 2, 3) or min(shape) < 1:
        raise UserError(f"inputs must be (channels, height, width), (channels, steps) or (length,), not {shape}")
    _check_takes(name, shape, kind or {1: "table", 2: "signal", 3: "image"}[len(shape)])
    model = _MODELS[name]
    encoder = model.build(*model.sizes(shape, blocks))
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


def encoder_shapes(
    name: str, shape: tuple[int, ...], kind: str | None = None, blocks: tuple[int, ...] = ()
) -> dict[str, torch.Size]:
    """The shapes of an encoder's tensors, by name, for inputs as for `build_encoder`; nothing is allocated for it."""
    with torch.device("meta"):  # shapes without memory or random numbers
        encoder = build_encoder(name, shape, kind=kind, blocks=blocks)
    return {key: tensor.shape for key, tensor in encoder.state_dict().items()}


def _describe(name: str) -> ModelInfo:
    with torch.device("meta"):
        encoder = build_encoder(name, *EXAMPLES[next(kind for kind in EXAMPLES if kind in _MODELS[name].takes)])
    parameters = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    return ModelInfo(name, _MODELS[name].description, parameters, encoder.features)


def _check_takes(name: str, shape: tuple[int, ...], kind: str) -> None:
    """Raise UserError if a model is none for inputs of such a kind, or for images so small."""
    takes = _MODELS[name].takes
    if kind not in takes:
        fit = ", ".join(map(repr, models_for(kind)))
        raise UserError(f"{name} takes {' and '.join(takes)} data, not {kind} data: use the model {fit}")
    if takes == ("image",) and min(shape[1:]) < MIN_SIZE:
        raise UserError(f"{name} takes images of at least {MIN_SIZE}x{MIN_SIZE} pixels, not {shape[1]}x{shape[2]}")


def _checked(plugin: Any, name: str) -> Factory:
    if not callable(plugin):
        raise UserError(f"{name} is not a function that makes an encoder; see docs/guides/plugins.md")
    factory: Factory = plugin
    return factory


_FACTORIES = {name: partial(build_encoder, name) for name in _MODELS}
registry = Registry[Factory]("model", "fedetf.encoders", "--model", _FACTORIES, _checked)
