"""Two small encoders of texts, which take the numbers of words ``[B, T]``; one of them, 0 or another, is no word."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedetf.nn.encoders.base import Encoder

WIDTH = 64


class TextBag(Encoder):
    """A bag of words: the mean of the words' vectors, and one hidden layer on it (fastText, Joulin et al. 2017)."""

    def __init__(self, words: int, none: int = 0) -> None:
        super().__init__()
        self.none = none
        self.features = WIDTH
        self.embedding = nn.Embedding(words, WIDTH, padding_idx=none)
        self.hidden = nn.Linear(WIDTH, self.features)

    def forward(self, x: Tensor) -> Tensor:
        """Map numbers of words [B, T] to features [B, D]."""
        return F.relu(self.hidden(_mean(self.embedding(x), x != self.none)))


class TextTransformer(Encoder):
    """Two layers of self-attention with four heads over word vectors, and the mean over words."""

    def __init__(self, words: int, length: int, none: int = 0) -> None:
        super().__init__()
        self.none = none
        self.features = WIDTH
        self.embedding = nn.Embedding(words, WIDTH, padding_idx=none)
        self.place = nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.layers = nn.ModuleList(_Layer(WIDTH, heads=4) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map numbers of words [B, T] to features [B, D]."""
        there = (x != self.none)[:, None, None, :]
        there = there | ~there.any(dim=-1, keepdim=True)  # a text without words attends to all of nothing
        h = self.embedding(x) + self.place
        for layer in self.layers:
            h = layer(h, there)
        return _mean(self.norm(h), x != self.none)


class _Layer(nn.Module):
    """Attention and a hidden layer, each normalised before and added to what it got."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, h: Tensor, there: Tensor) -> Tensor:
        B, T, D = h.shape
        parts = self.project(self.norms[0](h)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=there)
        h = h + self.join(attended.transpose(1, 2).reshape(B, T, D))
        added: Tensor = h + self.hidden(self.norms[1](h))
        return added


def _mean(vectors: Tensor, words: Tensor) -> Tensor:
    """The mean of the vectors [B, T, D] where there are words [B, T]; 0 where there are none."""
    there = words.unsqueeze(-1).to(vectors.dtype)
    return (vectors * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
