"""From files and tables to tensors: images of any mode become one uint8 block, labels become 0 … C−1."""

import io
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedetf.errors import UserError
from fedetf.files import PICTURE, read_bytes

# What is read as a picture. Pillow knows more kinds, among them PostScript, for which it starts Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")

Pixels = NDArray[np.uint8]
Picture = bytes | Path | Image.Image


def stack_images(pictures: Sequence[Picture], size: int | None, where: str) -> Tensor:
    """Decode pictures into ``[N, channels, height, width]`` uint8: one channel if all are grey, else three.

    The memory layout is channels_last, which convolutions are fastest with.
    """

    def decode(picture: Picture) -> Pixels:
        return picture_pixels(picture, None if size is None else (size, size), where)

    with ThreadPoolExecutor() as pool:  # Pillow decodes outside Python's lock
        arrays = list(pool.map(decode, pictures, chunksize=256))
    if not arrays:
        raise UserError(f"{where} is empty")
    _check_sizes(arrays, where)
    channels = max(a.shape[2] for a in arrays)
    stacked = np.stack([a if a.shape[2] == channels else np.repeat(a, channels, axis=2) for a in arrays])
    return torch.from_numpy(stacked).permute(0, 3, 1, 2)


def picture_pixels(picture: Picture, size: tuple[int, int] | None, where: str) -> Pixels:
    """Decode a picture into ``[height, width, channels]``, one channel if it is grey; ``size`` is (width, height)."""
    try:
        image = picture if isinstance(picture, Image.Image) else Image.open(_file(picture), formats=FORMATS)
        if image.mode[0] in "IF":  # 16 or 32 bits; a scanner may use twelve of them, and most of the grey would be lost
            raise UserError(
                f"{_name(picture, where)} has more than 8 bits a pixel ({image.mode}), of unknown range; scale its "
                "values to 0 to 255 and save it with 8 bits"
            )
        image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a damaged picture: whatever the readers of the many formats stumble over
        unidentified = isinstance(error, UnidentifiedImageError)
        reason = "not an image that Pillow knows" if unidentified else str(error).replace("\n", " ")
        raise UserError(f"cannot read {_name(picture, where)}: {reason}; replace or remove it") from None
    if size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _name(picture: Picture, where: str) -> str:
    return str(picture) if isinstance(picture, Path) else f"an image of {where}"


def _file(picture: bytes | Path) -> io.BytesIO:
    return io.BytesIO(picture if isinstance(picture, bytes) else read_bytes(picture, PICTURE, links=True))


def _check_sizes(arrays: Sequence[Pixels], where: str) -> None:
    sizes = Counter(a.shape[:2] for a in arrays)
    if len(sizes) > 1:
        shown = ", ".join(f"{w}×{h}" for (h, w), _ in sizes.most_common(3))
        raise UserError(
            f"{where} has images of {len(sizes)} sizes ({shown}, …); give one, for example --set data.size=32"
        )


def same_channels(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Make grey images colour if the others are: two blocks ``[N, C, H, W]`` with equal C."""
    channels = max(a.shape[1], b.shape[1])
    a, b = (x if x.shape[1] == channels else x.repeat(1, channels, 1, 1) for x in (a, b))
    return a.contiguous(memory_format=torch.channels_last), b.contiguous(memory_format=torch.channels_last)


def class_name(label: Any) -> str:
    """What a label is called; a whole number has no fraction, whatever its type."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def label_encoder(train_labels: Sequence[Any], names: list[str] | None) -> tuple[list[str], Callable[..., Tensor]]:
    """The class names, and a function that turns labels into ``[N]`` int64.

    With ``names`` (a ClassLabel column) labels are integers already. Without, the distinct training labels, sorted, are
    the classes, whether they are strings or numbers.
    """
    if names is None:
        try:
            distinct = sorted({label for label in train_labels if label is not None})
        except TypeError:
            raise UserError("labels must be numbers or text, all of one kind; check data.label_column") from None
        index = {label: i for i, label in enumerate(distinct)}
        names = [class_name(label) for label in distinct]
    else:
        index = {i: i for i in range(len(names))}

    def encode(labels: Sequence[Any], where: str, sites: Sequence[str] = ()) -> Tensor:
        missing = Counter(label for label in labels if label not in index)
        if missing:
            label, times = missing.most_common(1)[0]
            what = "no label" if label in (None, -1) else f"the label {label!r}, which is not a training class"
            place = _place(list(labels).index(label), sites)
            what += f", the first in {place}"
            raise UserError(f"{times} samples of {where} have {what}; label them, or leave them out")
        return torch.tensor([index[label] for label in labels], dtype=torch.int64)

    return names, encode


def unlabelled(labels: Sequence[Any], where: str = "") -> str | None:
    """What is wrong if samples have no label (None), and which is the first; None if all have one."""
    if None not in labels:
        return None
    first = f"the first in {_place(list(labels).index(None), ())}"
    return f"{labels.count(None)} samples{where} have no label, {first}; label them, or leave them out"


def _place(position: int, sites: Sequence[str]) -> str:
    """What a row is called, counted within its site's own table if each site has one.

    >>> _place(2, []), _place(2, ["north", "south", "south"])
    ('row 3', 'row 2 of south')
    """
    if not sites:
        return f"row {position + 1}"
    site = sites[position]
    return f"row {list(sites[: position + 1]).count(site)} of {site}"
