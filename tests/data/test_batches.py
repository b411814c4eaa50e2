import numpy as np
import pytest
import torch

from fedetf.data.batches import Normalize, crop_flip

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "mean", "std"),
    [
        ("half", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("none", (0, 0, 0), (1, 1, 1)),
    ],
)
def test_normalising(kind: str, mean: tuple, std: tuple) -> None:
    x = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x = x.to(memory_format=torch.channels_last)
    got = Normalize(kind, 3, CPU)(x)
    wanted = (x.numpy() / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-5)
    assert got.dtype == torch.float32
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_grey_images_take_the_mean_of_imagenets_channels() -> None:
    got = Normalize("imagenet", 1, CPU)(torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    assert got.unique().item() == pytest.approx(-np.mean([0.485, 0.456, 0.406]) / np.mean([0.229, 0.224, 0.225]))


def test_floating_inputs_pass_as_they_are() -> None:
    x = torch.randn(3, 7)
    assert Normalize("half", 7, CPU)(x) is x


def test_crop_flip_shifts_and_mirrors_each_image_on_its_own() -> None:
    H = W = 6
    x = torch.arange(1, H * W + 1, dtype=torch.uint8).view(1, 1, H, W).repeat(300, 1, 1, 1)
    out = crop_flip(x, torch.Generator().manual_seed(0), padding=2)
    assert out.shape == x.shape
    assert out.dtype == torch.uint8
    seen = set()
    padded = np.pad(x[0, 0].numpy(), 2)
    for image in out[:, 0].numpy():
        matches = [
            (dy, dx, flip)
            for dy in range(5)
            for dx in range(5)
            for flip in (False, True)
            if np.array_equal(image, padded[dy : dy + H, dx : dx + W][:, :: -1 if flip else 1])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 50  # all 25 shifts, mirrored or not, among 300 images
    again = crop_flip(x, torch.Generator().manual_seed(0), padding=2)
    assert torch.equal(out, again)
