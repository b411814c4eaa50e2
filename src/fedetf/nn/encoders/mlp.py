"""A multilayer perceptron: the encoder for tables, with embeddings of their categories."""

import torch
from torch import Tensor, nn

from fedetf.nn.encoders.base import Encoder

WIDEST = 16  # of an embedding; one of k categories has half of them, at most so many


class MLP(Encoder):
    """Two hidden layers of 128 and 64 units; images are flattened first.

    ``blocks`` are the sizes of one-hot blocks at the end of an input, one for each column of categories. Each is
    embedded: a row of its matrix is the vector of a category. The embeddings stand beside the other numbers.

    It has no BatchNorm, so it also serves as the model without running statistics to average.
    """

    def __init__(self, inputs: int, blocks: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.features = 64
        self.sizes = (inputs - sum(blocks), *blocks)
        widths = [min(WIDEST, (size + 1) // 2) for size in blocks]
        pairs = zip(blocks, widths, strict=True)
        self.embeddings = nn.ModuleList(nn.Linear(size, width, bias=False) for size, width in pairs)
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(self.sizes[0] + sum(widths), 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, self.features),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors [B, L] or images [B, C, H, W] to features [B, D]."""
        if len(self.sizes) > 1:
            numbers, *slots = x.split(self.sizes, dim=1)
            embedded = [embed(slot) for embed, slot in zip(self.embeddings, slots, strict=True)]
            x = torch.cat([numbers, *embedded], dim=1)
        features: Tensor = self.layers(x)
        return features
