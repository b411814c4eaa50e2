"""Texts by a Hugging Face tokenizer: its whole definition is part of the note, so that a model needs nothing beside it.

Texts stay the raw inputs. Inside a graph of ONNX or PyTorch no tokenizer can run, so that an exported one takes ids.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedetf.errors import UserError, need
from fedetf.files import MIB, read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST = 16 * MIB  # characters of a tokenizer's definition
PADDING = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")  # as usual models call it


def definition(name: str) -> str:
    """The definition of a tokenizer, as JSON: of a file ``tokenizer.json``, or by its id on the hub."""
    need("text", "data.tokenizer", "tokenizers")
    from tokenizers import Tokenizer

    if Path(name).is_file():
        text = read_text(Path(name), MOST, links=True)
    elif name.endswith(".json") or name.startswith((os.sep, ".")):
        raise UserError(f"there is no file {name}; give data.tokenizer a tokenizer.json, or an id of the hub")
    else:
        try:
            text = Tokenizer.from_pretrained(name).to_str()
        except Exception as error:  # no network, no such model …: the library has no single error for that
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"the hub did not give the tokenizer {name!r} ({reason}); give a tokenizer.json") from None
    if len(text) > MOST:
        raise UserError(f"the tokenizer {name!r} is larger than {MOST // MIB} MiB; choose a smaller one")
    Subwords(text, 1).size  # noqa: B018  # is it one?
    return text


class Subwords(nn.Module):
    """UTF-8 bytes ``[n, length]`` -> ids ``[n, tokens]`` int64 of a tokenizer, its padding at the end."""

    def __init__(self, definition: str, tokens: int):
        super().__init__()
        self.definition, self.tokens = definition, tokens

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer itself."""
        need("text", "the model's tokenizer", "tokenizers")
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self.definition)
        except Exception as error:  # the library has no other
            reason = " ".join(str(error).split())[:160]
            raise UserError(f"this is no tokenizer of Hugging Face's library ({reason}); see data.tokenizer") from None
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.tokens)
        return tokenizer

    @property
    def size(self) -> int:
        """How many ids there are, that of padding included."""
        return max(int(self.tokenizer.get_vocab_size()), self.padding + 1)

    @property
    def padding(self) -> int:
        """The id after the end of a text: the tokenizer's own, or one more than it has."""
        known = (self.tokenizer.token_to_id(token) for token in PADDING)
        return next((number for number in known if number is not None), int(self.tokenizer.get_vocab_size()))

    def forward(self, x: Tensor) -> Tensor:
        """Tokenise one batch."""
        ids = torch.full((len(x), self.tokens), self.padding, dtype=torch.int64)
        for row, content in zip(ids, x.cpu().numpy(), strict=True):
            text = content.tobytes().rstrip(b"\0").decode("utf-8", "replace")
            found = self.tokenizer.encode(text).ids  # one by one: its threads do not survive a fork
            row[: len(found)] = torch.tensor(found, dtype=torch.int64)
        return ids.to(x.device)
