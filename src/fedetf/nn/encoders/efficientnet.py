"""EfficientNet-B0 for small images (Tan & Le, 2019, https://arxiv.org/abs/1905.11946).

The official network, except that the stem keeps the resolution (2x2 of a 32x32 image is left at the end) and that
BatchNorm's running statistics follow ten times faster, since a client takes few steps.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, silu

from fedetf.nn.encoders.base import ConvEncoder, init_convs

# expansion, width, blocks, stride of the first block, kernel size: table 1 of the paper
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
DROP_CONNECT = 0.2  # would be the rate of a block after the last


class EfficientNetB0(ConvEncoder):
    """Stages of MBConv blocks, then a 1x1 convolution to 1280 channels."""

    def __init__(self, channels: int) -> None:
        width, features = 32, 1280
        stem = _conv_bn_silu(channels, width, kernel_size=3)
        stages = nn.Sequential()
        total = sum(blocks for _, _, blocks, _, _ in STAGES)
        built = 0
        for expansion, outputs, blocks, stride, kernel_size in STAGES:
            stage = nn.Sequential()
            for _ in range(blocks):
                # deeper blocks are dropped more often: the rate grows linearly from 0 in the first
                drop = DROP_CONNECT * built / total
                stage.append(MBConv(width, outputs, stride, expansion, kernel_size, drop))
                width, stride, built = outputs, 1, built + 1
            stages.append(stage)
        super().__init__(stem, stages, _conv_bn_silu(width, features, kernel_size=1), features)
        init_convs(self)


class MBConv(nn.Module):
    """MobileNetV2's inverted residual block with squeeze-and-excitation and drop-connect."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel_size: int, drop: float) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = _conv_bn_silu(inputs, hidden, kernel_size=1) if expansion > 1 else nn.Identity()
        self.depthwise = _conv_bn_silu(hidden, hidden, kernel_size, stride, groups=hidden)
        self.excite = SqueezeExcite(hidden, squeezed=inputs // 4)  # of the input, not the expanded width
        self.project = nn.Sequential(nn.Conv2d(hidden, outputs, kernel_size=1, bias=False), _norm(outputs))
        self.drop = DropConnect(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        out: Tensor = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + self.drop(out) if self.residual else out


class SqueezeExcite(nn.Module):
    """Scales each channel by a number in (0, 1) computed from the averages of all channels."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, squeezed, kernel_size=1)
        self.expand = nn.Conv2d(squeezed, width, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, width, H, W] to the same shape."""
        average = x.mean(dim=(2, 3), keepdim=True)  # [B, width, 1, 1]
        return x * torch.sigmoid(self.expand(silu(self.reduce(average))))


class DropConnect(nn.Module):
    """In training, drops the whole residual branch of a sample with probability `rate`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to the same shape, each sample zeroed or divided by 1 - rate."""
        keep = dropout(x.new_ones(x.shape[0], 1, 1, 1), self.rate, self.training)
        return x * keep


def _conv_bn_silu(inputs: int, outputs: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size, stride, kernel_size // 2, groups=groups, bias=False),
        _norm(outputs),
        nn.SiLU(),
    )


def _norm(width: int) -> nn.BatchNorm2d:
    """BatchNorm with the official eps and PyTorch's momentum of 0.1.

    The official 0.01 (0.99 in TensorFlow) is for long training: after a hundred steps a third of what is tested with
    is still where the statistics began. docs/results.md has both.
    """
    return nn.BatchNorm2d(width, eps=1e-3)
