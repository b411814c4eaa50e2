"""A multilayer perceptron: the only encoder here for plain vectors."""

from torch import Tensor, nn

from fedetf.nn.encoders.base import Encoder


class MLP(Encoder):
    """Two hidden layers of 128 and 64 units; images are flattened first.

    It has no BatchNorm, so it also serves as the model without running statistics to average.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.features = 64
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, self.features),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors [B, L] or images [B, C, H, W] to features [B, D]."""
        features: Tensor = self.layers(x)
        return features
