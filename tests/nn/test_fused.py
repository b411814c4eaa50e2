"""The CPU kernels against torch's own layers."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import fedetf
from fedetf.engines.compiled import with_kernels
from fedetf.nn.encoders import build_encoder, fused, has_kernels, model_names

pytestmark = pytest.mark.skipif(
    not any(map(fused.shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


def grads(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, gradients of input and parameters, buffers, of one training step."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = module(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    (out * weights).sum().backward()
    found = [out.detach(), x.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    return [tensor.to(torch.float64) for tensor in found]


@pytest.mark.parametrize(
    ("channels", "batch", "size"), [(16, 8, 12), (32, 3, 7), (64, 5, 4), (48, 2, 1), (16, 128, 32)]
)
@pytest.mark.parametrize("residual", [False, True])
def test_norm_relu(channels: int, batch: int, size: int, residual: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = (3 * torch.randn(batch, channels, size, size) + 50).contiguous(memory_format=torch.channels_last)
    shortcut = torch.randn_like(x)

    class Block(nn.Module):
        def __init__(self, norm: nn.Module):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return fused.norm_relu(self.norm, x, 0.5 * x + shortcut.to(x) if residual else None)

    exact = grads(Block(copy.deepcopy(norm).double()), x.double())
    norm.fused = True
    mine = grads(Block(norm), x)
    assert fused._fits(norm, x)
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-4)


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch", "height", "width"),
    [
        (16, 16, 3, 8, 8),
        (32, 64, 2, 6, 14),
        (16, 48, 1, 2, 2),
        (64, 16, 2, 4, 150),
        (16, 16, 2, 36, 34),
        (128, 96, 5, 4, 4),
    ],
)
def test_convolution(inputs: int, outputs: int, batch: int, height: int, width: int) -> None:
    torch.manual_seed(0)
    conv = fused.Conv3x3(inputs, outputs).to(memory_format=torch.channels_last)
    x = torch.randn(batch, inputs, height, width).contiguous(memory_format=torch.channels_last)
    exact = grads(copy.deepcopy(conv).double(), x.double())
    plain = grads(conv, x)
    conv.zero_grad()
    conv.fused = True
    mine = grads(conv, x)
    assert not all(map(torch.equal, mine, plain))  # Winograd's sums have other last bits: it was used
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "stride", "height", "width"), [(16, 1, 5, 8), (16, 1, 8, 7), (3, 1, 8, 8), (16, 2, 8, 8)]
)
def test_what_the_kernels_cannot_do_is_left_to_torch(inputs: int, stride: int, height: int, width: int) -> None:
    torch.manual_seed(0)
    conv = fused.Conv3x3(inputs, 16, stride).to(memory_format=torch.channels_last)
    x = torch.randn(2, inputs, height, width).contiguous(memory_format=torch.channels_last)
    plain = grads(conv, x)
    conv.zero_grad()
    conv.fused = True
    assert all(map(torch.equal, grads(conv, x), plain))


@pytest.mark.parametrize("model", ["resnet20", "resnet18"])
def test_a_whole_network(model: str) -> None:
    torch.manual_seed(0)
    plain = build_encoder(model, (3, 16, 16)).to(memory_format=torch.channels_last).train()
    fast = copy.deepcopy(plain)
    assert fused.enable(fast)
    x = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fast(x), plain(x), atol=1e-4, rtol=1e-4)
    fast.eval(), plain.eval()
    assert torch.equal(fast(x), plain(x)) or torch.allclose(fast(x), plain(x), atol=1e-4)


def test_encoders_without_such_layers_are_told_apart() -> None:
    assert not fused.enable(build_encoder("mlp", (3, 8, 8)))


@pytest.mark.slow
def test_a_run_learns_the_same_and_engines_agree() -> None:
    options = {"clients": 2, "rounds": 2, "epochs": 1, "model": "resnet20", "settings": {"data.limit": 100}}
    plain = fedetf.run(engine="serial", compile=False, **options)
    fast = fedetf.run(engine="serial", compile=True, **options)
    workers = fedetf.run(engine="processes", workers=2, **options)  # by default, too
    assert fast.rounds[0].loss == pytest.approx(plain.rounds[0].loss, rel=1e-3)
    assert fast.rounds[0].loss != plain.rounds[0].loss
    assert all(torch.equal(tensor, workers.outcome.model[name]) for name, tensor in fast.outcome.model.items())


@pytest.mark.parametrize("choice", ["auto", True])
def test_without_a_compiler_it_falls_back_with_a_word(choice: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_kernels", fused._build)
    monkeypatch.setattr(fused.shutil, "which", lambda _: None)
    options = {"clients": 2, "rounds": 1, "epochs": 1, "model": "resnet20", "settings": {"data.limit": 40}}
    with pytest.warns(UserWarning, match=r"used as it is \(there is no C\+\+ compiler") as said:
        fast = fedetf.run(engine="serial", compile=choice, **options)
    assert len(said) == 1
    plain = fedetf.run(engine="serial", compile=False, **options)
    assert all(torch.equal(tensor, fast.outcome.model[name]) for name, tensor in plain.outcome.model.items())


def test_by_default_only_what_is_built_in_seconds_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("torch.compile takes up to a minute")

    monkeypatch.setattr(torch, "compile", refuse)
    assert with_kernels(encoder := build_encoder("cnn", (3, 8, 8)), torch.device("cpu")) is encoder
    for_images = [name for name in model_names() if name not in ("textbag", "transformer", "cnn1d")]
    assert [name for name in model_names() if has_kernels(name)] == [
        name
        for name in for_images
        if any(isinstance(m, fused.Conv3x3) for m in build_encoder(name, (3, 8, 8)).modules())
    ]


def test_kernels_are_built_once_however_many_want_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the loading of data, say, and by a worker that comes too early."""
    built, run = [], fused.subprocess.run
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fused.subprocess, "run", lambda command, **how: built.append(command) or run(command, **how))
    fused.build_ahead()
    path = fused._build()
    assert path.stat().st_size > 0
    assert len(built) == 1
