"""From stored samples to what an encoder sees: normalising and augmenting whole batches."""

import torch
from torch import Tensor, nn

STATISTICS = {
    "half": ((0.5,), (0.5,)),  # what the authors use for CIFAR
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # and for Tiny-ImageNet
    "none": ((0.0,), (1.0,)),
}


class Normalize(nn.Module):
    """uint8 images ``[B, C, H, W]`` -> float32, (x/255 − mean)/std per channel; float inputs pass as they are."""

    scale: Tensor
    shift: Tensor

    def __init__(self, kind: str, channels: int, device: torch.device):
        super().__init__()
        mean, std = (torch.tensor(values, device=device) for values in STATISTICS[kind])
        if len(mean) not in (1, channels):  # ImageNet's statistics on grey images
            mean, std = mean.mean(), std.mean()
        self.register_buffer("scale", (1 / (255 * std)).view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", (mean / std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch."""
        if x.dtype != torch.uint8:
            return x
        return x.to(torch.float32).mul_(self.scale).sub_(self.shift)


def crop_flip(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift each image by up to ``padding`` pixels, zeros coming in at the edge, and mirror half of them.

    ``x``: ``[B, C, H, W]``; the draws come from ``generator``, one set for the whole batch.
    """
    B, _, H, W = x.shape
    dy, dx = torch.randint(0, 2 * padding + 1, (2, B, 1), generator=generator).to(x.device)
    mirrored = torch.rand(B, 1, generator=generator).to(x.device) < 0.5
    columns = torch.arange(W, device=x.device)
    rows = torch.arange(H, device=x.device) + dy
    columns = torch.where(mirrored, columns.flip(0), columns) + dx
    padded = torch.nn.functional.pad(x, (padding,) * 4)
    batch = torch.arange(B, device=x.device)
    picked = padded.permute(0, 2, 3, 1)[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)  # channels_last again
