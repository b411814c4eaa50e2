"""What the encoders share: their type, global average pooling and the initialisation of convolutions."""

import math

from torch import Tensor, nn


class Encoder(nn.Module):
    """Turns a batch of inputs [B, ...] into feature vectors [B, features]; it has no classifier."""

    features: int


class ConvEncoder(Encoder):
    """A convolutional encoder: stem, stages, head, then the average over all positions.

    Averaging over however many positions are left is what lets one encoder take images of any size.
    """

    def __init__(self, stem: nn.Module, stages: nn.Sequential, head: nn.Module, features: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = stages
        self.head = head
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to features [B, D]."""
        x = self.head(self.stages(self.stem(x)))  # [B, D, h, w]
        return x.mean(dim=(2, 3))


def init_convs(module: nn.Module) -> None:
    """Draw every convolution of `module` from N(0, 2 / fan_out), and set its bias, if any, to zero.

    He et al.'s own initialisation of ResNet, kept by the official code of DenseNet and EfficientNet and
    by torchvision's MobileNetV2: 2 / fan_out keeps the size of the gradients through ReLU layers.
    It is written out because `nn.init.kaiming_normal_` ignores `groups`: an output of a depthwise
    convolution sees one channel, so its fan-out is k·k, not channels·k·k.
    """
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d):
            fan_out = conv.out_channels // conv.groups * math.prod(conv.kernel_size)
            nn.init.normal_(conv.weight, std=math.sqrt(2 / fan_out))
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
