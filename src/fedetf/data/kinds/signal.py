"""Signals: recordings of one or more channels, cut into windows that overlap by half, each channel standardised."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fedetf.data.frames import Frame
from fedetf.data.kinds.base import Note, Raw, Seen, Sums, Word, column_sums, spread_of
from fedetf.errors import UserError
from fedetf.settings import DataSettings, Positive

LENGTH = 128  # steps in a window
MOST_RATIO, LEAST_RATIO = 500, 1 / 64  # of the rates before and after resampling
MOST_STEPS = 2**28  # of a recording after resampling, all channels together
RATES = ("rate", "sampling_rate")  # columns that say how many steps a second a recording has


class SignalNote(Note):
    """The column of signals, their channels, and the windows that they are cut into."""

    encoder = "cnn1d"
    cuts = True
    kind: Literal["signal"] = "signal"
    column: Word
    channels: Annotated[list[Seen], Field(min_length=1, max_length=4096)]
    length: Annotated[int, Field(ge=8, le=2**20)] = LENGTH
    rate: Positive | None = None  # steps a second that recordings are resampled to; None: as they are

    @property
    def shape(self) -> tuple[int, ...]:
        """A window: channels, steps."""
        return (len(self.channels), self.length)

    @property
    def dtype(self) -> torch.dtype:
        """Numbers as they were recorded."""
        return torch.float32

    @classmethod
    def begin(cls, frame: Frame, columns: Sequence[str], settings: DataSettings) -> "SignalNote":
        """As many channels as the first recording has."""
        first = _recording(frame.values(columns[0])[0], frame.row(0))
        return cls(column=columns[0], channels=[Seen()] * len(first), **_cut(settings))

    @classmethod
    def fit(cls, parts: Sequence[Sums], settings: DataSettings) -> "SignalNote":
        """Mean and standard deviation of each channel over all clients."""
        return cls(column=column_of(parts), channels=channels_of(parts), **_cut(settings))

    def with_own(self, own: Sums) -> "SignalNote":
        """Channels by one client's means and standard deviations."""
        return self.model_copy(update={"channels": channels_of([own])})

    def read(self, frame: Frame) -> Raw:
        """The windows of all recordings ``[windows, channels, length]``."""
        rates = _rates(frame, self.rate)
        windows, rows = [], []
        for row, value in enumerate(frame.values(self.column)):
            where = frame.row(row)
            recording = _recording(value, where)
            if len(recording) != len(self.channels):
                raise UserError(f"{where}: the signal has {len(recording)} channels, not {len(self.channels)}")
            if self.rate is not None:
                recording = resampled(recording, rates[row], self.rate)
            cut = windows_of(recording, self.length)
            windows.append(cut)
            rows += [row] * len(cut)
        return Raw(torch.from_numpy(np.concatenate(windows)), np.array(rows))

    def sums(self, x: Tensor) -> Sums:
        """Counts, sums, squares and ranges of each channel."""
        values = x.numpy().astype(np.float64)
        told = [column_sums(f"{self.column}/{c}", values[:, c].ravel()) for c in range(len(self.channels))]
        return Sums(kind=self.kind, rows=len(x), columns=told)

    def preparing(self) -> nn.Module:
        """Windows to standardised ones."""
        return Scale(self.channels)

    def sentence(self, named: bool) -> str:
        """Windows."""
        rate = "as recorded" if self.rate is None else f"at {self.rate:g} steps a second"
        return f"`[n, {len(self.channels)}, {self.length}]` float32, windows of raw signals: channels, steps ({rate})."

    def describe(self) -> list[list[str]]:
        """What was seen of each channel."""
        rows = [["channel", "holds", "seen in training"]]
        for number, c in enumerate(self.channels):
            rows.append([f"{self.column}, channel {number}", "signal, unit unknown", c.in_words])
        return rows


class Scale(nn.Module):
    """Channels ``[n, C, T]`` -> (x − mean)/std of each."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: Sequence[Seen]):
        super().__init__()
        for name in ("mean", "std"):
            values = torch.tensor([getattr(channel, name) for channel in channels], dtype=torch.float32)
            self.register_buffer(name, values[:, None], persistent=False)  # the note in the model's file has them

    def forward(self, x: Tensor) -> Tensor:
        """Standardise one batch."""
        return (x - self.mean) / self.std


def channels_of(parts: Sequence[Sums]) -> list[Seen]:
    """The channels from what clients tell, in order; they must agree on how many there are."""
    if len({len(part.columns) for part in parts}) != 1:
        raise UserError("the sites hold signals with different numbers of channels; make them agree")
    spreads = [spread_of([part.columns[c] for part in parts]) for c in range(len(parts[0].columns))]
    return [Seen(mean=s.mean, std=s.std, low=s.low, high=s.high) for s in spreads]


def windows_of(recording: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Windows ``[w, C, length]`` of a recording ``[C, T]``, each beginning half a window after the one before.

    A recording that is too short for one window is filled with zeros; what is left over at the end is dropped.
    """
    missing = length - recording.shape[1]
    if missing > 0:
        recording = np.pad(recording, ((0, 0), (0, missing)))
    windows = np.lib.stride_tricks.sliding_window_view(recording, length, axis=1)[:, :: max(1, length // 2)]
    return np.ascontiguousarray(windows.swapaxes(0, 1))


def resampled(recording: NDArray[np.float32], rate: float, to: float) -> NDArray[np.float32]:
    """A recording ``[C, T]`` at another number of steps a second."""
    from fractions import Fraction

    from scipy.signal import resample_poly

    # A header may say anything, and memory follows from it.
    possible = rate > 0 and LEAST_RATIO <= rate / to <= MOST_RATIO
    if not possible or recording.size * to / rate > MOST_STEPS:
        raise UserError(f"a recording with {rate:g} steps a second cannot be brought to {to:g}; fix its rate")
    ratio = Fraction(to / rate).limit_denominator(1000)
    if ratio == 1:
        return recording
    changed: NDArray[np.float32] = resample_poly(recording, ratio.numerator, ratio.denominator, axis=1)
    return changed.astype(np.float32)


def _cut(settings: DataSettings) -> dict[str, Any]:
    return {"length": settings.length or LENGTH, "rate": settings.rate}


def column_of(parts: Sequence[Sums]) -> str:
    """The name of the column whose channels clients told of."""
    return parts[0].columns[0].name.rpartition("/")[0]


def _recording(value: Any, where: str) -> NDArray[np.float32]:
    """A cell as ``[channels, steps]``: a list of numbers, or of rows with a number for each channel."""
    try:
        numbers = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise UserError(f"{where}: the signal is no list of numbers, or its rows differ in length; fix it") from None
    if numbers.ndim not in (1, 2) or not numbers.size:
        raise UserError(f"{where}: the signal is empty, or no list of numbers or of rows of numbers; fix it")
    if not np.isfinite(numbers).all():
        raise UserError(f"{where}: the signal holds missing or infinite values; fill them in")
    return numbers[None] if numbers.ndim == 1 else numbers.T


def _rates(frame: Frame, rate: float | None) -> list[float]:
    if rate is None:
        return []
    column = next((name for name in RATES if name in frame.columns), None)
    if column is None:
        raise UserError(f"{frame.where} has no column {RATES[0]!r} of steps a second, so data.rate cannot be reached")
    values = frame.values(column)
    if not all(isinstance(value, (int, float)) and value > 0 for value in values):
        raise UserError(f"{frame.where}: the column {column!r} has rows without a positive number; fill them in")
    return [float(value) for value in values]
