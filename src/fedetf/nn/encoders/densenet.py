"""Densely connected networks for small images (Huang et al., 2017, https://arxiv.org/abs/1608.06993).

Every layer reads the outputs of all layers before it in its block. As in the authors' networks for CIFAR,
the stem is one bare 3x3 convolution: the first layer of the first block begins with BatchNorm and ReLU.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from fedetf.nn.encoders.base import ConvEncoder, init_convs

GROWTH = 32  # channels that each layer adds


class DenseNet(ConvEncoder):
    """Stages of `layers[i]` dense layers, with a transition to half the width and resolution in between."""

    def __init__(self, channels: int, layers: tuple[int, ...]) -> None:
        width = 2 * GROWTH
        stem = nn.Sequential(nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False))
        stages = nn.Sequential()
        for count in layers:
            stage = nn.Sequential()
            if len(stages):
                stage.append(Transition(width, width // 2))
                width //= 2
            for _ in range(count):
                stage.append(DenseLayer(width))
                width += GROWTH
            stages.append(stage)
        head = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        super().__init__(stem, stages, head, features=width)
        init_convs(self)


class DenseLayer(nn.Module):
    """Appends GROWTH channels to its input; a 1x1 bottleneck keeps the 3x3 convolution cheap."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * GROWTH, kernel_size=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * GROWTH)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, inputs + GROWTH, H, W]."""
        out = self.conv1(relu(self.bn1(x), inplace=True))
        out = self.conv2(relu(self.bn2(out), inplace=True))
        return torch.cat([x, out], dim=1)


class Transition(nn.Module):
    """Compresses the channels between two dense blocks and halves the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H / 2, W / 2]."""
        return avg_pool2d(self.conv(relu(self.bn(x), inplace=True)), kernel_size=2)
