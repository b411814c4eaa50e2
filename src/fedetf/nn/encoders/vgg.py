"""VGG for small images (Simonyan and Zisserman, 2015, https://arxiv.org/abs/1409.1556), with BatchNorm.

The variant is the usual one for CIFAR: the convolutions of the paper, and in the place of its three large linear
layers nothing but the average over positions.
"""

from itertools import pairwise

from torch import nn

from fedetf.nn.encoders.base import ConvEncoder, init_convs


class VGG(ConvEncoder):
    """A stage of 3x3 convolutions for each entry of `stages`, their widths; each stage ends at half the resolution.

    Pooling rounds up, so that an image of fewer than 32 pixels, which five halvings would leave nothing of, is
    kept at 1x1; from 32 pixels on that makes no difference for powers of two.
    """

    def __init__(self, channels: int, stages: tuple[tuple[int, ...], ...]) -> None:
        widths = [channels, *(width for stage in stages for width in stage)]
        layers = (_conv_bn_relu(*pair) for pair in pairwise(widths))
        stem = nn.Sequential(*next(layers))
        rest = nn.Sequential()
        for number, stage in enumerate(stages):
            convs = [module for _ in stage[number == 0 :] for module in next(layers)]  # the stem is the first of all
            rest.append(nn.Sequential(*convs, nn.MaxPool2d(2, ceil_mode=True)))
        super().__init__(stem, rest, head=nn.Identity(), features=widths[-1])
        init_convs(self)


def _conv_bn_relu(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)  # with the bias of the paper, which had no BatchNorm
    return conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
