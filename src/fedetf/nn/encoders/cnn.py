"""A small convolutional network, for quick experiments on images of 8x8 to 32x32 pixels."""

from torch import nn

from fedetf.nn.encoders.base import ConvEncoder


class CNN(ConvEncoder):
    """Three 3x3 convolutions of 32, 64 and 128 channels, each at half the resolution of the one before.

    Convolutions keep PyTorch's default initialisation: there is no paper to follow, and BatchNorm after
    each of them makes so shallow a network insensitive to the scale of its weights.
    """

    def __init__(self, channels: int) -> None:
        stem = nn.Sequential(*_conv_bn_relu(channels, 32))
        stages = nn.Sequential(
            nn.Sequential(nn.MaxPool2d(2), *_conv_bn_relu(32, 64)),
            nn.Sequential(nn.MaxPool2d(2), *_conv_bn_relu(64, 128)),
        )
        super().__init__(stem, stages, head=nn.Identity(), features=128)


def _conv_bn_relu(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)  # BatchNorm brings the bias
    return conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
