"""MobileNetV2 for small images (Sandler et al., 2018, https://arxiv.org/abs/1801.04381).

The paper's network but for two strides: the stem and the 24-channel stage keep the resolution, which
leaves 4x4 of a 32x32 image at the end instead of 1x1.
"""

from torch import Tensor, nn

from fedetf.nn.encoders.base import ConvEncoder, init_convs

# expansion, width, blocks, stride of the first block: table 2 of the paper
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),  # 2 in the paper
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(ConvEncoder):
    """Stages of inverted residual blocks, then a 1x1 convolution to 1280 channels."""

    def __init__(self, channels: int) -> None:
        width, features = 32, 1280
        stem = _conv_bn_relu6(channels, width, kernel_size=3)
        stages = nn.Sequential()
        for expansion, outputs, blocks, stride in STAGES:
            first = InvertedResidual(width, outputs, stride, expansion)
            rest = [InvertedResidual(outputs, outputs, 1, expansion) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            width = outputs
        super().__init__(stem, stages, _conv_bn_relu6(width, features, kernel_size=1), features)
        init_convs(self)


class InvertedResidual(nn.Module):
    """Expands the channels, filters each by itself, and projects back to few channels without a ReLU.

    The input is added only where it fits, at stride 1 and unchanged width.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = _conv_bn_relu6(inputs, hidden, kernel_size=1) if expansion > 1 else nn.Identity()
        self.depthwise = _conv_bn_relu6(hidden, hidden, kernel_size=3, stride=stride, groups=hidden)
        self.project = nn.Sequential(nn.Conv2d(hidden, outputs, kernel_size=1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + out if self.residual else out


def _conv_bn_relu6(inputs: int, outputs: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size, stride, kernel_size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )
