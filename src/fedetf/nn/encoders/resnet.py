"""Residual networks for small images (He et al., 2016, https://arxiv.org/abs/1512.03385).

The variant is that of Li et al., 2018, 'Visualizing the loss landscape of neural nets': where the shape
changes, the shortcut is a 1x1 convolution with BatchNorm ('option B'), and a wide network multiplies all
widths, that of the stem included.
"""

from torch import Tensor, nn

from fedetf.nn.encoders.base import ConvEncoder, init_convs
from fedetf.nn.encoders.fused import Conv3x3, norm_relu


class ResNet(ConvEncoder):
    """Stages of `blocks` basic blocks each, one stage per entry of `widths`, each halving the resolution."""

    def __init__(self, channels: int, blocks: int, widths: tuple[int, ...]) -> None:
        width = widths[0]
        stem = Stem(Conv3x3(channels, width), nn.BatchNorm2d(width))
        stages = nn.Sequential()
        for outputs in widths:
            stride = 2 if len(stages) else 1  # the first stage works at full resolution
            first = BasicBlock(width, outputs, stride)
            rest = [BasicBlock(outputs, outputs, stride=1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            width = outputs
        super().__init__(stem, stages, head=nn.Identity(), features=width)
        init_convs(self)


class Stem(nn.Sequential):
    """A convolution, BatchNorm and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, H, W] to [B, width, H, W]."""
        conv, norm = self
        assert isinstance(norm, nn.BatchNorm2d)
        return norm_relu(norm, conv(x))


class BasicBlock(nn.Module):
    """relu(F(x) + shortcut(x)), with F two 3x3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = Conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()  # the identity, as long as it is empty
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H / stride, W / stride]."""
        out = norm_relu(self.bn1, self.conv1(x))
        return norm_relu(self.bn2, self.conv2(out), self.shortcut(x))
