"""Texts: a raw input is the text itself, its UTF-8 bytes; words are found and hashed inside the model.

So a model needs no file of words beside it, nobody has to tell which words occur, and an exported graph takes texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from fedetf.data.frames import Frame, of_columns
from fedetf.data.kinds.base import ColumnSums, Note, Raw, Sums, Word
from fedetf.data.kinds.subwords import MOST, Subwords, definition
from fedetf.files import read_text
from fedetf.settings import DataSettings

LENGTH, TOKENS, BUCKETS = 2048, 256, 2**14  # bytes that are read, words that are kept, numbers that they are hashed to
LONGEST = 32  # bytes of a word that count, its last ones
PRIME, FACTOR = 2**31 - 1, 1_000_003  # of the hash: products stay below 2**63


class TextNote(Note):
    """The column of texts, and how much of each is read."""

    encoder = "textbag"
    fitted = False
    kind: Literal["text"] = "text"
    column: Word
    length: Annotated[int, Field(ge=8, le=2**20)] = LENGTH
    tokens: Annotated[int, Field(ge=1, le=2**16)] = TOKENS
    buckets: Annotated[int, Field(ge=2, le=2**22)] = BUCKETS
    tokenizer: Annotated[str, Field(max_length=MOST)] | None = None  # a Hugging Face one, as JSON; None: hashed words

    @model_validator(mode="after")
    def _check_tokens(self) -> "TextNote":
        if self.tokens > self.length:
            raise ValueError("more words than bytes")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The bytes of a text, with zeros after its end."""
        return (self.length,)

    @property
    def dtype(self) -> torch.dtype:
        """Bytes."""
        return torch.uint8

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many numbers there are for words, and which one is none, if that is not 0."""
        module = self.preparing()
        return (module.size, module.padding) if isinstance(module, Subwords) else (self.buckets,)

    @classmethod
    def begin(cls, frame: Frame, columns: Sequence[str], settings: DataSettings) -> "TextNote":
        """Nothing of the texts themselves."""
        return cls._of(columns[0], settings)

    @classmethod
    def fit(cls, parts: Sequence[Sums], settings: DataSettings) -> "TextNote":
        """Nothing is fitted: words are hashed, or a tokenizer knows them."""
        tokenizer = None if settings.tokenizer is None else definition(settings.tokenizer)
        return cls._of(parts[0].columns[0].name, settings).model_copy(update={"tokenizer": tokenizer})

    @classmethod
    def _of(cls, column: str, settings: DataSettings) -> "TextNote":
        length = settings.length or LENGTH
        return cls(column=column, length=length, tokens=min(TOKENS, length))

    def read(self, frame: Frame) -> Raw:
        """The first bytes of each text, cut between characters; a missing text is an empty one."""
        block = np.zeros((len(frame), self.length), np.uint8)
        for row, text in zip(block, frame.values(self.column), strict=True):
            content = ("" if text is None else str(text)).encode("utf-8", "replace")[: self.length]
            whole = content.decode("utf-8", "ignore").encode()
            row[: len(whole)] = np.frombuffer(whole, np.uint8)
        return Raw(torch.from_numpy(block), np.arange(len(frame)))

    def of_files(self, paths: Sequence[Path]) -> Frame:
        """Files of text."""
        return of_columns({self.column: [read_text(path, links=True) for path in paths]}, "the files")

    def sums(self, x: Tensor) -> Sums:
        """The name of the column, and how many texts there are."""
        return Sums(kind=self.kind, rows=len(x), columns=[ColumnSums(name=self.column, count=len(x))])

    def preparing(self) -> nn.Module:
        """Bytes to the numbers of words."""
        if self.tokenizer is not None:
            return Subwords(self.tokenizer, self.tokens)
        return Tokenise(self.length, self.tokens, self.buckets)

    def sentence(self, named: bool) -> str:
        """Bytes; a graph without its tokenizer takes ids."""
        if self.tokenizer is not None:
            where = "which is in the file, under `inputs` in the JSON called `fedetf`"
            ids = f"`[n, {self.tokens}]` int64, ids of the tokenizer, {where}; padded with {self.blocks[1]}"
            return f"texts, by `fedetf.load(…).rows`; in ONNX and `torch.export` files {ids}."
        return f"`[n, {self.length}]` uint8, the UTF-8 bytes of each text, cut to this length or filled with zeros."

    def describe(self) -> list[list[str]]:
        """What is read of the column."""
        if self.tokenizer is not None:
            kept = f"the first {self.length} bytes, as {self.tokens} of the tokenizer's {self.blocks[0]} ids at most"
            return [["column", "holds", "what is read"], [self.column, "text", kept]]
        rest = f"the first {self.length} bytes, {self.tokens} words at most, hashed to {self.buckets} numbers"
        return [["column", "holds", "what is read"], [self.column, "text", rest]]


class Tokenise(nn.Module):
    """UTF-8 bytes ``[n, length]`` -> numbers of words ``[n, tokens]`` int64, in their order, with zeros at the end.

    A word is a run of letters, digits and bytes beyond ASCII, in small letters. Its number is a polynomial in its bytes
    modulo a prime, h ← h·p + byte, for all positions at once: after d steps of doubling, a position knows the
    polynomial of the last 2^d bytes of its word.
    """

    def __init__(self, length: int, tokens: int, buckets: int):
        super().__init__()
        self.length, self.tokens, self.buckets = length, tokens, buckets

    def forward(self, x: Tensor) -> Tensor:
        """Tokenise one batch."""
        x = x.to(torch.int64)
        x = torch.where((x >= 65) & (x <= 90), x + 32, x)
        inside = ((x >= 97) & (x <= 122)) | ((x >= 48) & (x <= 57)) | (x >= 128)
        factor, value = inside * FACTOR, inside * (x + 1)
        step = 1
        while step < LONGEST:
            value = (value + factor * _later(value, step)) % PRIME
            factor = factor * _later(factor, step) % PRIME
            step *= 2
        ends = inside & ~F.pad(inside[:, 1:], (0, 1))
        place = torch.arange(self.length, device=x.device)
        first = torch.where(ends, place, place + self.length).topk(self.tokens, dim=1, largest=False).values
        words = (1 + value % (self.buckets - 1)).gather(1, first % self.length)
        return torch.where(first < self.length, words, 0)


def _later(x: Tensor, steps: int) -> Tensor:
    """Everything so many positions later, with zeros before."""
    return F.pad(x, (steps, 0))[:, : x.shape[1]]
