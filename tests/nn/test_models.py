"""The encoders: their published sizes, the shapes they map, and what their papers say of their parts."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedetf.errors import UserError
from fedetf.nn.encoders import ModelInfo, build_encoder, describe_models, model_names
from fedetf.nn.encoders.densenet import DenseLayer, Transition
from fedetf.nn.encoders.efficientnet import DropConnect, MBConv, SqueezeExcite
from fedetf.nn.encoders.mobilenetv2 import InvertedResidual
from fedetf.nn.encoders.resnet import BasicBlock

pytestmark = pytest.mark.slow

NAMES = [
    "cnn",
    "mlp",
    "resnet20",
    "resnet32",
    "resnet56",
    "wrn56_4",
    "resnet18",
    "vgg11",
    "densenet121",
    "mobilenetv2",
    "efficientnet_b0",
]
CONV_NAMES = [name for name in NAMES if name != "mlp"]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# sizes -----------------------------------------------------------------------------------------------


def conv(inputs: int, outputs: int, size: int) -> int:
    return inputs * outputs * size * size


def norm(width: int) -> int:
    return 2 * width


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def basic_resnet(n: int, *widths: int) -> int:
    """Parameters of n basic blocks per width, summed by hand from He et al. 2016, sections 3.3 and 4.2."""
    total = conv(3, widths[0], 3) + norm(widths[0])
    total += sum(n * (2 * conv(w, w, 3) + 2 * norm(w)) for w in widths)
    for before, w in pairwise(widths):  # where a stage begins at half the width:
        total -= conv(w, w, 3) - conv(before, w, 3)  # its first convolution reads fewer channels
        total += conv(before, w, 1) + norm(w)  # and its shortcut is a projection
    return total


class Size(NamedTuple):
    parameters: int
    features: int


# Published totals less the parameters of their classifiers.
OTHER_KINDS = ("textbag", "transformer", "cnn1d")  # for texts, signals and sound: tests/nn has them elsewhere

SIZES = {
    # The design in the words of this project: 32, 64 and 128 channels, 128 and 64 units.
    "cnn": Size(sum(conv(i, o, 3) + norm(o) for i, o in [(3, 32), (32, 64), (64, 128)]), 128),
    "mlp": Size(linear(3 * 32 * 32, 128) + linear(128, 64), 64),
    # osmr/imgclsmob, pytorch/README.md, CIFAR-10: ResNet-20 272,474 and ResNet-56 855,770.
    # EvgenyKashin/SRMnet, README.md: ResNet32 466,906.
    # chenyaofo/pytorch-cifar-models, README.md (projection shortcuts): 0.27, 0.47 and 0.86 million.
    "resnet20": Size(272_474 - linear(64, 10), 64),
    "resnet32": Size(466_906 - linear(64, 10), 64),
    "resnet56": Size(855_770 - linear(64, 10), 64),
    # No published total was found; the widths are those of WRN56_4 in tomgoldstein/loss-landscape,
    # cifar10/models/resnet.py, whose stem is four times as wide too.
    "wrn56_4": Size(basic_resnet(9, 64, 128, 256), 256),
    # laisimiao/classification-cifar10-pytorch, README.md (the models of kuangliu/pytorch-cifar).
    "resnet18": Size(11_173_962 - linear(512, 10), 512),
    # Table 7 of Sun et al., NeuralFuse (arXiv 2306.16869), VGG11 on CIFAR-10.
    "vgg11": Size(9_231_114 - linear(512, 10), 512),
    # num_params of torchvision's DenseNet121_Weights.IMAGENET1K_V1, with a 3x3 convolution in the place of
    # the 7x7 stem with BatchNorm.
    "densenet121": Size(7_978_856 - linear(1024, 1000) - (conv(3, 64, 7) + norm(64)) + conv(3, 64, 3), 1024),
    # https://pytorch.org/vision/stable/models/generated/torchvision.models.mobilenet_v2.html: num_params
    "mobilenetv2": Size(3_504_872 - linear(1280, 1000), 1280),
    # https://pytorch.org/vision/stable/models/generated/torchvision.models.efficientnet_b0.html: num_params
    "efficientnet_b0": Size(5_288_548 - linear(1280, 1000), 1280),
}


def test_there_are_exactly_these_models() -> None:
    assert [name for name in model_names() if name not in OTHER_KINDS] == NAMES
    assert [info.name for info in describe_models()] == model_names()
    assert list(SIZES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_size_is_the_published_one(name: str) -> None:
    encoder = build_encoder(name, (3, 32, 32))
    assert sum(p.numel() for p in encoder.parameters()) == SIZES[name].parameters
    assert encoder.features == SIZES[name].features


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet20", basic_resnet(3, 16, 32, 64)),
        ("resnet32", basic_resnet(5, 16, 32, 64)),
        ("resnet56", basic_resnet(9, 16, 32, 64)),
        ("resnet18", basic_resnet(2, 64, 128, 256, 512)),
        # num_params of torchvision's VGG11_BN_Weights.IMAGENET1K_V1 less its three linear layers
        ("vgg11", 132_868_840 - linear(512 * 7 * 7, 4096) - linear(4096, 4096) - linear(4096, 1000)),
        # a second source, for the network with the CIFAR stem: laisimiao/classification-cifar10-pytorch
        ("densenet121", 6_956_298 - linear(1024, 10)),
    ],
)
def test_second_derivation_of_the_published_size_agrees(name: str, count: int) -> None:
    assert SIZES[name].parameters == count


def test_describe_models_tells_the_sizes_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    infos = describe_models()
    assert torch.equal(torch.get_rng_state(), before)
    sizes = {info.name: Size(info.parameters, info.features) for info in infos if info.name not in OTHER_KINDS}
    assert sizes == SIZES
    assert all(isinstance(info, ModelInfo) and info.description for info in infos)
    assert not any("\n" in info.description for info in infos)


# strides ---------------------------------------------------------------------------------------------


def trace(name: str) -> tuple[int, tuple[int, ...]]:
    """Multiply-adds for one 3x32x32 image, and the height and width before pooling; computes no numbers."""
    macs = 0

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        nonlocal macs
        assert isinstance(module, nn.Conv2d)
        macs += output.numel() * module.weight[0].numel()

    with torch.device("meta"):
        encoder = build_encoder(name, (3, 32, 32)).eval()
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(count)
        before_pooling: list[Tensor] = []
        encoder.get_submodule("head").register_forward_hook(lambda *args: before_pooling.append(args[2]))
        encoder(torch.empty(1, 3, 32, 32))
    return macs, tuple(before_pooling[0].shape[2:])


# chenyaofo/pytorch-cifar-models, README.md, CIFAR-10, column #MAdds(M): with a classifier of 10 classes.
@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet20", 40.81), ("resnet32", 69.12), ("resnet56", 125.75), ("mobilenetv2", 87.98)],
)
def test_multiply_adds_are_the_published_ones(name: str, millions: float) -> None:
    macs, _ = trace(name)
    assert round((macs + 10 * SIZES[name].features) / 1e6, 2) == millions


def test_multiply_adds_of_vgg11_are_the_published_ones() -> None:
    """153.5 million in the table named above, which counts what it counts by a tool: all layers, not convolutions only.

    One operation for each activation in a bias and in ReLU, two in BatchNorm, one for each input of a pooling.
    """
    macs, _ = trace("vgg11")
    activations = 64 * 32**2 + 128 * 16**2 + 2 * 256 * 8**2 + 2 * 512 * 4**2 + 2 * 512 * 2**2
    pooled = 64 * 32**2 + 128 * 16**2 + 256 * 8**2 + 512 * 4**2 + 512 * 2**2
    assert round((macs + 4 * activations + pooled + linear(512, 10)) / 1e6, 1) == 153.5


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vgg11", 1),  # five poolings
        ("cnn", 8),  # two poolings
        ("wrn56_4", 8),  # tomgoldstein/loss-landscape, cifar10/models/resnet.py ends in avg_pool2d(out, 8)
        ("resnet18", 4),  # ... and here in avg_pool2d(out, 4)
        ("densenet121", 4),  # kuangliu/pytorch-cifar, models/densenet.py: avg_pool2d(out, 4)
        ("mobilenetv2", 4),  # 1/32 of an image in table 2 of Sandler et al., without two of the strides
        ("efficientnet_b0", 2),  # 1/32 in table 1 of Tan & Le, without the stride of the stem
    ],
)
def test_resolution_before_pooling(name: str, size: int) -> None:
    assert trace(name)[1] == (size, size)


# shapes and values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_maps_a_batch_to_finite_features(name: str, shape: tuple[int, ...]) -> None:
    encoder = build_encoder(name, shape).eval()
    with torch.no_grad():
        features = encoder(torch.randn(2, *shape))
    assert features.shape == (2, SIZES[name].features)
    assert features.isfinite().all()
    # entries are averages of activations: of ReLU, or of SiLU, whose least value is -0.2785
    assert features.min() >= (-0.28 if name == "efficientnet_b0" else 0)
    assert features.std() > 0


@pytest.mark.parametrize(
    ("name", "shape"), [("resnet18", (3, 64, 64)), ("resnet20", (1, 28, 28)), ("mlp", (64,)), ("mlp", (5,))]
)
def test_maps_other_shapes(name: str, shape: tuple[int, ...]) -> None:
    features = build_encoder(name, shape)(torch.randn(2, *shape))
    assert features.shape == (2, SIZES[name].features)


@pytest.mark.parametrize("name", CONV_NAMES)
def test_one_encoder_takes_images_of_any_size(name: str) -> None:
    encoder = build_encoder(name, (2, 32, 32)).eval()
    with torch.no_grad():
        for size in [(8, 8), (9, 15), (24, 8)]:
            assert encoder(torch.randn(2, 2, *size)).shape == (2, encoder.features)


def test_features_are_the_average_over_positions() -> None:
    encoder = build_encoder("cnn", (1, 8, 8)).eval()
    maps: list[Tensor] = []
    encoder.get_submodule("stages").register_forward_hook(lambda *args: maps.append(args[2]))
    features = encoder(torch.randn(3, 1, 8, 8))
    assert maps[0].shape == (3, 128, 2, 2)
    torch.testing.assert_close(features, maps[0].sum(dim=3).sum(dim=2) / 4)


def test_mlp_flattens_images() -> None:
    encoder = build_encoder("mlp", (3, 4, 4))
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(encoder(images), encoder(images.reshape(2, 48)))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name: str) -> None:
    encoder = build_encoder(name, (3, 16, 16)).train()
    features = encoder(torch.randn(6, 3, 16, 16))
    (features * torch.randn_like(features)).sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


def assert_equal_to_rounding(actual: Tensor, expected: Tensor) -> None:
    """For float64; relative to the largest entry, as the features of an untrained network can be tiny."""
    tolerance = 1e-9 * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_treats_samples_one_by_one(name: str) -> None:
    encoder = build_encoder(name, (3, 8, 8)).double().eval()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        features = encoder(images)
        assert torch.equal(encoder(images), features)
        assert_equal_to_rounding(encoder(images[:1]), features[:1])


@pytest.mark.parametrize("name", CONV_NAMES)
def test_channels_last_gives_the_same_features(name: str) -> None:
    encoder = build_encoder(name, (3, 8, 8)).double().eval()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = encoder(images)
        encoder.to(memory_format=torch.channels_last)
        assert_equal_to_rounding(encoder(images.to(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize(
    "block",
    [
        BasicBlock(8, 16, stride=2),
        DenseLayer(8),
        Transition(8, 4),
        InvertedResidual(8, 8, stride=1, expansion=6),
        MBConv(8, 8, stride=1, expansion=6, kernel_size=3, drop=0.2),
    ],
    ids=lambda block: type(block).__name__,
)
def test_blocks_compile_into_one_graph(block: nn.Module) -> None:
    compiled = torch.compile(block.train(), backend="eager", fullgraph=True)  # a break is an error
    x = torch.randn(4, 8, 8, 8)
    torch.manual_seed(1)
    expected = block(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)


# weights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in build_encoder(name, (1, 8, 8)).parameters()])

    first = weights(1)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "densenet121", "mobilenetv2", "efficientnet_b0"])
def test_convolutions_have_variance_two_over_fan_out(name: str) -> None:
    encoder = build_encoder(name, (3, 8, 8))
    for key, module in encoder.named_modules():
        if isinstance(module, nn.Conv2d):
            # of a depthwise convolution, each input reaches one output channel
            outputs = 1 if module.groups > 1 else module.out_channels
            z = module.weight.detach() * math.sqrt(outputs * module.kernel_size[0] ** 2 / 2)
            assert abs(z.mean().item()) < 5 / math.sqrt(z.numel()), key
            assert abs(z.square().mean().item() - 1) < 5 * math.sqrt(2 / z.numel()), key
            assert module.bias is None or not module.bias.any(), key


def test_state_names_are_readable() -> None:
    for name in CONV_NAMES:
        assert "stem.0.weight" in build_encoder(name, (1, 8, 8)).state_dict()
    assert "stages.1.0.conv1.weight" in build_encoder("resnet20", (1, 8, 8)).state_dict()
    assert "stages.1.0.shortcut.0.weight" in build_encoder("resnet20", (1, 8, 8)).state_dict()


# blocks ----------------------------------------------------------------------------------------------


def test_basic_block_adds_its_input() -> None:
    block = BasicBlock(4, 4, stride=1)
    nn.init.zeros_(block.bn2.weight)  # silences the residual branch
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), x.relu())


def test_dense_layer_keeps_its_input_and_appends_to_it() -> None:
    x = torch.randn(2, 8, 4, 4)
    out = DenseLayer(8)(x)
    assert out.shape == (2, 8 + 32, 4, 4)
    assert torch.equal(out[:, :8], x)
    assert out[:, 8:].min() < 0  # new channels come straight from the convolution


# blocks per stage in the papers' tables, less the first of each, which changes the width
@pytest.mark.parametrize(("name", "count"), [("mobilenetv2", 10), ("efficientnet_b0", 9)])
def test_input_is_added_only_where_it_fits(name: str, count: int) -> None:
    added: list[bool] = []

    def record(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        added.append(output.shape == inputs[0].shape and torch.equal(output, inputs[0] + 1))

    encoder = build_encoder(name, (3, 8, 8)).eval()
    for block in encoder.modules():
        if isinstance(block, InvertedResidual | MBConv):
            last = block.project[-1]
            assert isinstance(last, nn.BatchNorm2d)
            nn.init.zeros_(last.weight)  # the branch now gives 1 everywhere, whatever its input
            nn.init.ones_(last.bias)
            block.register_forward_hook(record)
    encoder(torch.randn(1, 3, 8, 8))
    assert sum(added) == count


def test_squeeze_excite_scales_the_channels_of_each_sample() -> None:
    x = torch.randn(2, 8, 4, 4)
    scale = SqueezeExcite(8, squeezed=2)(x) / x
    torch.testing.assert_close(scale, scale[:, :, :1, :1].expand_as(x))
    assert scale.min() > 0
    assert scale.max() < 1
    assert scale[:, :, 0, 0].unique().numel() == 2 * 8


def test_drop_connect_is_off_in_evaluation() -> None:
    x = torch.randn(8, 3, 2, 2)
    assert torch.equal(DropConnect(0.9).eval()(x), x)


def test_drop_connect_drops_whole_samples_and_keeps_the_mean() -> None:
    x = torch.ones(10_000, 2, 2, 2)
    out = DropConnect(0.2).train()(x)
    assert torch.equal(out, out[:, :1, :1, :1].expand_as(out))
    assert set(out.unique().tolist()) == {0.0, 1.25}
    assert out.mean().item() == pytest.approx(1, abs=0.025)  # five standard deviations


def test_drop_connect_grows_linearly_from_zero() -> None:
    """0.2 · index / 16 as in tensorflow/tpu, models/official/efficientnet/efficientnet_model.py."""
    modules = build_encoder("efficientnet_b0", (3, 8, 8)).modules()
    rates = [module.rate for module in modules if isinstance(module, DropConnect)]
    assert rates == pytest.approx([0.2 * index / 16 for index in range(16)])
    assert rates[0] == 0
    x = torch.randn(64, 3, 2, 2)
    assert torch.equal(DropConnect(rates[0]).train()(x), x)


def test_drop_connect_acts_on_the_residual_branch_in_training() -> None:
    block = MBConv(8, 8, stride=1, expansion=6, kernel_size=3, drop=0.5).train()
    x = torch.randn(64, 8, 4, 4)
    kept = (block(x) != x).flatten(1).any(dim=1)
    assert 0 < kept.sum() < 64


def test_batch_norm_settings() -> None:
    """PyTorch's own, but EfficientNet's official eps; its momentum of 0.01 is too slow for a client's few steps."""
    for name in CONV_NAMES:
        modules = build_encoder(name, (3, 8, 8)).modules()
        found = {(module.eps, module.momentum) for module in modules if isinstance(module, nn.BatchNorm2d)}
        assert found == {(1e-3 if name == "efficientnet_b0" else 1e-5, 0.1)}


# errors ----------------------------------------------------------------------------------------------


def test_unknown_name_is_answered_with_the_nearest_and_all_names() -> None:
    with pytest.raises(UserError, match=r"'mobilenet_v2'.*did you mean 'mobilenetv2'") as caught:
        build_encoder("mobilenet_v2", (3, 32, 32))
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("name", CONV_NAMES)
def test_vectors_are_sent_to_the_mlp(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*mlp"):
        build_encoder(name, (64,))


@pytest.mark.parametrize("size", [(7, 8), (8, 7), (1, 1)])
def test_too_small_images(size: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="8x8"):
        build_encoder("resnet20", (3, *size))


@pytest.mark.parametrize("shape", [(), (1, 3, 8, 8), (0, 8, 8), (0,), (3, -8, 8)])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_shapes_that_are_neither_images_nor_vectors(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="channels, height, width"):
        build_encoder(name, shape)
