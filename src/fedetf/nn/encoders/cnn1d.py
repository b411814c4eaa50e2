"""A small convolutional network over time, for signals and spectrograms."""

from itertools import pairwise

from torch import Tensor, nn

from fedetf.nn.encoders.base import Encoder


class CNN1d(Encoder):
    """Three convolutions over time of 32, 64 and 128 channels, each at half the rate of the one before."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = 128
        widths = (channels, 32, 64, self.features)
        self.layers = nn.Sequential(*(_stage(a, b) for a, b in pairwise(widths)))

    def forward(self, x: Tensor) -> Tensor:
        """Map signals [B, C, T] to features [B, D], the mean over time."""
        features: Tensor = self.layers(x).mean(dim=2)
        return features


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv1d(inputs, outputs, kernel_size=5, padding=2, bias=False)  # BatchNorm brings the bias
    return nn.Sequential(conv, nn.BatchNorm1d(outputs), nn.ReLU(inplace=True), nn.MaxPool1d(2, ceil_mode=True))
