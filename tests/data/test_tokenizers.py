"""Texts by a Hugging Face tokenizer: its own ids, inside the model, wherever that is used."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedetf
import fedetf.api
from fedetf import UserError
from fedetf.data.own import as_table
from fedetf.models.export import export

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["the heart beats well", "a broken heart, and pain", "no pain at all", "pain in the chest again"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A byte-pair tokenizer whose padding is not 0, with marks at both ends, as pretrained ones have them."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=special))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def sites(n: int = 24) -> dict[str, pd.DataFrame]:
    tables = {}
    for seed, name in enumerate(("north", "south")):
        texts = np.random.default_rng(seed).choice(TEXTS, n)
        tables[name] = pd.DataFrame({"text": texts, "label": ["pain" if "pain" in t else "none" for t in texts]})
    return tables


def trained(tokenizer: Path, out: Path, model: object = "textbag") -> fedetf.api.Result:
    settings = {"data.tokenizer": str(tokenizer), "train.lr": 0.1, "personal.rounds": 1, "train.batch_size": 8}
    return fedetf.run(data=sites(), model=model, rounds=2, epochs=2, settings=settings, engine="serial", out=out)


def ids_of(path: Path, texts: list[str], tokens: int = 256) -> torch.Tensor:
    """What the library itself gives."""
    made = tokenizers.Tokenizer.from_file(str(path))
    made.enable_padding(pad_id=1, pad_token="<pad>", length=tokens)
    return torch.tensor([encoded.ids for encoded in made.encode_batch(texts)])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["textbag", "transformer"])
def test_the_tokenizer_is_inside_the_model(model: str, tokenizer: Path, tmp_path: Path) -> None:
    result = trained(tokenizer, tmp_path / "run", model)
    rows = pd.DataFrame({"text": [*TEXTS, "unheard, of!", ""]})
    ids = ids_of(tokenizer, list(rows["text"]))
    note = result.job.dataset.note
    assert torch.equal(note.module()(note.read(as_table(rows, "rows")).x), ids)
    tokenizer.unlink()  # nothing but the model's own file is needed from here on
    used = fedetf.load(tmp_path / "run")
    probabilities = used.rows(rows)
    assert probabilities.shape == (6, 2)

    import onnxruntime

    card = export(tmp_path / "run", tmp_path / "m.onnx").read_text()
    assert "`[n, 256]` int64, ids of the tokenizer" in card
    assert "padded with 1" in card
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
    assert np.abs(found - probabilities.numpy()).max() < 1e-5
    export(tmp_path / "run", tmp_path / "m.safetensors")
    assert torch.equal(fedetf.load(tmp_path / "m.safetensors").rows(rows), probabilities)


def test_padding_counts_for_nothing(tokenizer: Path, tmp_path: Path) -> None:
    encoder = trained(tokenizer, tmp_path / "run").model().encoder
    ids = ids_of(tokenizer, TEXTS)
    longer = nn.functional.pad(ids, (0, 9), value=1)
    assert torch.allclose(encoder(ids), encoder(longer), atol=1e-7)


class Pretrained(nn.Module):
    """Any network on the ids of its own tokenizer."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.vectors = nn.Embedding.from_pretrained(torch.randn(60, 8, generator=generator), freeze=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        there = (ids != 1).unsqueeze(-1)
        return (self.vectors(ids) * there).sum(1) / there.sum(1)


def test_a_frozen_pretrained_encoder_of_texts(tokenizer: Path, tmp_path: Path) -> None:
    trained(tokenizer, tmp_path / "run", Pretrained())
    rows = pd.DataFrame({"text": TEXTS})
    used = fedetf.load(tmp_path / "run", model=Pretrained())
    h = Pretrained()(ids_of(tokenizer, TEXTS))
    assert torch.allclose(used.net.encoder(used.prepare(used.inputs.note.read(as_table(rows, "r")).x)), h)
    assert used.rows(rows).argmax(1).tolist() == [used.classes.index("pain" if "pain" in t else "none") for t in TEXTS]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no file"), ("{}", "no tokenizer of Hugging Face's library")]
)
def test_what_is_no_tokenizer_is_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        trained(path, tmp_path / "run")
