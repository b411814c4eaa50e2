"""Sound: waveforms cut into windows like signals; inside the model they become log-mel spectrograms, standardised."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.threads import cpu_threads
from fedetf.data.frames import Frame
from fedetf.data.kinds.base import Note, Raw, Seen, Sums, Word, column_sums
from fedetf.data.kinds.signal import Scale, channels_of, column_of, resampled, windows_of
from fedetf.errors import UserError
from fedetf.files import PICTURE, read_bytes
from fedetf.settings import DataSettings

RATE = 8000.0  # steps a second
FASTEST = 200_000  # the memory of a spectrum grows by the square of the rate
BANDS = 40
FRAME = 0.032  # seconds of a spectrum; the next begins half of it later


class SoundNote(Note):
    """The column of sounds, the windows that they are cut into, and the bands of their spectrograms."""

    encoder = "cnn1d"
    cuts = True
    chunk = 1  # how a product of matrices is summed up may depend on the number of rows
    kind: Literal["sound"] = "sound"
    column: Word
    bands: Annotated[list[Seen], Field(min_length=BANDS, max_length=BANDS)] = [Seen()] * BANDS
    rate: Annotated[float, Field(ge=100, le=FASTEST)] = RATE
    length: Annotated[int, Field(ge=8, le=2**20)] = int(RATE)

    @property
    def shape(self) -> tuple[int, ...]:
        """A window of the waveform."""
        return (self.length,)

    @property
    def dtype(self) -> torch.dtype:
        """From −1 to 1."""
        return torch.float32

    @classmethod
    def begin(cls, frame: Frame, columns: Sequence[str], settings: DataSettings) -> "SoundNote":
        """Nothing of the sounds themselves."""
        return cls(column=columns[0], **_cut(settings))

    @classmethod
    def fit(cls, parts: Sequence[Sums], settings: DataSettings) -> "SoundNote":
        """Mean and standard deviation of each band over all clients."""
        return cls(column=column_of(parts), bands=channels_of(parts), **_cut(settings))

    def with_own(self, own: Sums) -> "SoundNote":
        """Bands by one client's means and standard deviations."""
        return self.model_copy(update={"bands": channels_of([own])})

    def read(self, frame: Frame) -> Raw:
        """The windows of all recordings ``[windows, length]``; several channels become one, their mean."""
        frame.check(self.column)
        windows, rows = [], []
        for row, value in enumerate(frame.table[self.column].to_pylist()):
            rate, wave = waveform(value, frame.row(row))
            cut = windows_of(resampled(wave[None], rate, self.rate), self.length)[:, 0]
            windows.append(cut)
            rows += [row] * len(cut)
        return Raw(torch.from_numpy(np.concatenate(windows)), np.array(rows))

    def of_files(self, paths: Sequence[Path]) -> Frame:
        """WAV files."""
        content = [read_bytes(path, PICTURE, links=True) for path in paths]
        return Frame(pyarrow.table({self.column: pyarrow.array(content, pyarrow.binary())}), "the files")

    def sums(self, x: Tensor) -> Sums:
        """Counts, sums, squares and ranges of each band of the log-mel spectrograms."""
        mel = LogMel(self.rate, self.length)
        with cpu_threads(1):
            spectra = [mel(window[None])[0] for window in x]  # one by one, see chunk
        bands = torch.cat(spectra, dim=1).double().numpy() if spectra else np.empty((BANDS, 0))
        told = [column_sums(f"{self.column}/{band}", bands[band]) for band in range(BANDS)]
        return Sums(kind=self.kind, rows=len(x), columns=told)

    def preparing(self) -> nn.Module:
        """Waveforms to standardised spectrograms ``[n, bands, frames]``."""
        return nn.Sequential(LogMel(self.rate, self.length), Scale(self.bands))

    def sentence(self, named: bool) -> str:
        """Windows of the waveform."""
        return f"`[n, {self.length}]` float32, waveforms from −1 to 1 at {self.rate:g} steps a second."

    def describe(self) -> list[list[str]]:
        """What becomes of the waveform."""
        seconds = f"windows of {self.length / self.rate:g} s, as spectrograms of {BANDS} mel bands"
        return [["column", "holds", "what becomes of it"], [self.column, "sound", seconds]]


class LogMel(nn.Module):
    """Waveforms ``[n, length]`` -> log-mel spectrograms ``[n, bands, frames]``: log(mel · |Fourier|² + 10⁻⁶).

    The Fourier transform of a frame is written as a product with cosines and sines, which every format can hold.
    """

    places: Tensor
    cosines: Tensor
    sines: Tensor
    mel: Tensor

    def __init__(self, rate: float, length: int):
        super().__init__()
        size = max(4, min(length, int(FRAME * rate)))
        hop = max(1, size // 2)
        starts = np.arange(0, length - size + 1, hop)
        angle = 2 * np.pi * np.outer(np.arange(size), np.arange(size // 2 + 1)) / size
        hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size))[:, None]
        buffers = {
            "places": torch.from_numpy(starts[:, None] + np.arange(size)),
            "cosines": torch.from_numpy((hann * np.cos(angle)).astype(np.float32)),
            "sines": torch.from_numpy((hann * np.sin(angle)).astype(np.float32)),
            "mel": torch.from_numpy(mel_bands(rate, size).astype(np.float32)),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)  # they follow from rate and length

    def forward(self, x: Tensor) -> Tensor:
        """The spectrograms of one batch."""
        frames = x[:, self.places]  # [n, frames, size]
        power = (frames @ self.cosines).square() + (frames @ self.sines).square()
        return (power @ self.mel + 1e-6).log().transpose(1, 2)


def mel_bands(rate: float, size: int) -> NDArray[np.float64]:
    """Triangles ``[size/2 + 1, bands]`` over the frequencies of a spectrum, evenly spaced in mel (O'Shaughnessy)."""
    highest = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, BANDS + 2) / 2595) - 1)
    f = np.linspace(0, rate / 2, size // 2 + 1)[:, None]
    low, centre, high = corners[:-2], corners[1:-1], corners[2:]
    triangles: NDArray[np.float64] = np.minimum((f - low) / (centre - low), (high - f) / (high - centre)).clip(0)
    return triangles


def waveform(value: Any, where: str) -> tuple[float, NDArray[np.float32]]:
    """The rate and the waveform ``[T]`` from −1 to 1 of a WAV file's bytes."""
    from scipy.io import wavfile

    content = value.get("bytes") if isinstance(value, dict) else value
    if not content:
        raise UserError(f"{where}: there is no sound; remove the row")
    try:
        rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # whatever a damaged file does to its reader
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{where}: not a readable WAV file ({reason}); convert it to WAV") from None
    if not samples.size:
        raise UserError(f"{where}: the sound is empty; remove the row")
    if samples.dtype == np.uint8:
        wave = samples.astype(np.float32) / 128 - 1
    elif samples.dtype.kind == "i":
        wave = samples.astype(np.float32) / np.float32(np.iinfo(samples.dtype).max + 1)
    else:
        wave = samples.astype(np.float32)
    if not np.isfinite(wave).all():
        raise UserError(f"{where}: the sound holds infinite values; record it again")
    return float(rate), wave if wave.ndim == 1 else wave.mean(axis=1)


def _cut(settings: DataSettings) -> dict[str, Any]:
    rate = settings.rate or RATE
    if not 100 <= rate <= FASTEST:
        raise UserError(f"sounds have 100 to {FASTEST:,} steps a second; give another data.rate")
    return {"rate": rate, "length": settings.length or int(rate)}
