"""Kernels for ``engine.compile`` on a CPU: BatchNorm, residual and ReLU in one, and 3×3 convolutions by Winograd.

The kernels (fused.cpp, winograd.cpp) are built once by the system's C++ compiler, within seconds, and kept in the
user's cache. What models call, :func:`norm_relu` and :class:`Conv3x3`, is plain torch unless :func:`enable` was called
on the encoder.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from fedetf.errors import UserError
from fedetf.files import make_folder, move, packaged, read_text, user_cache, write_whole

FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared"]
SOURCES = ("vectors.h", "fused.cpp", "winograd.cpp")
WIDTH = 16  # channels come in multiples of it
_G = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
SPREAD = torch.kron(_G, _G)  # G w G' of weights with their 9 places in a row, [16, 9]; see winograd.cpp


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual), ``[B, C, H, W]``."""
    if _fits(norm, x) and norm.training and len(x) * x.shape[2] * x.shape[3] > 1:
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        fused: Tensor = _NormRelu.apply(  # type: ignore[no-untyped-call]  # torch gives it no types
            x, residual, *tensors, norm.momentum, norm.eps
        )
        return fused
    out: Tensor = norm(x)
    return relu(out if residual is None else out + residual, inplace=True)


class Conv3x3(nn.Conv2d):
    """A 3×3 convolution without bias, ``[B, inputs, H, W]`` -> ``[B, outputs, H / stride, W / stride]``."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        whole = self.stride == (1, 1) and self.out_channels % WIDTH == x.shape[2] % 2 == x.shape[3] % 2 == 0
        if whole and self.training and _fits(self, x):
            fused: Tensor = _Conv3x3.apply(x, self.weight)  # type: ignore[no-untyped-call]  # torch gives none
            return fused
        return super().forward(x)


def enable(encoder: nn.Module) -> bool:
    """Let an encoder use the kernels, and tell whether it can; raises a UserError if they cannot be built."""
    if not any(isinstance(module, Conv3x3) for module in encoder.modules()):
        return False
    _kernels()
    for module in encoder.modules():
        vars(module)["fused"] = isinstance(module, (Conv3x3, nn.BatchNorm2d))
    return True


def build_ahead() -> None:
    """Begin to build the kernels, beside whatever comes next; an encoder that wants them waits until they are there."""

    def build() -> None:
        with contextlib.suppress(Exception):  # whoever wants them meets the same error, and says it
            _build()

    threading.Thread(target=build, daemon=True).start()


def _fits(module: nn.Module, x: Tensor) -> bool:
    """Whether the kernels are enabled and can take ``x``."""
    enabled = getattr(module, "fused", False) and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return enabled and x.shape[1] % WIDTH == 0 and x.is_contiguous(memory_format=torch.channels_last)


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
    ) -> Tensor:
        C, out = x.shape[1], torch.empty_like(x)
        mean, inverse_std = torch.empty_like(weight), torch.empty_like(weight)
        if residual is not None:
            residual = residual.contiguous(memory_format=torch.channels_last)
        statistics = _at(weight, bias, running_mean, running_var)
        numbers = (momentum, eps, *_at(mean, inverse_std), 1)
        _kernels().norm_forward(*_at(x, residual, out), x.numel() // C, C, *statistics, *numbers)
        ctx.save_for_backward(x, None if residual is None else out, weight, bias, mean, inverse_std)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, out, weight, bias, mean, inverse_std = ctx.saved_tensors
        C, grad = x.shape[1], grad.contiguous(memory_format=torch.channels_last)
        behind = None if out is None else torch.empty_like(x)
        grad_x, grad_weight, grad_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        inputs = (1 if out is None else 2, *_at(grad, x, out, behind, grad_x), x.numel() // C, C)
        _kernels().norm_backward(*inputs, *_at(weight, bias, mean, inverse_std, grad_weight, grad_bias))
        return grad_x, behind, grad_weight, grad_bias, None, None, None, None


class _Conv3x3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolved(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        B, C, H, W = x.shape
        outputs, grad_x, grad_weight = len(weight), None, None
        if ctx.needs_input_grad[0]:
            grad_x = _convolved(grad, weight.flip(2, 3).transpose(0, 1))
        if ctx.needs_input_grad[1]:
            points = x.new_empty(len(SPREAD), C * outputs)
            _kernels().weight_gradient(*_at(x, grad, points), B, H, W, C, outputs)
            found = (SPREAD.T @ points).view(3, 3, C, outputs)
            grad_weight = found.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        return grad_x, grad_weight


def _convolved(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution of ``x`` ``[B, C, H, W]`` with ``weight`` ``[O, C, 3, 3]``."""
    B, C, H, W = x.shape
    out = torch.empty((B, len(weight), H, W), dtype=x.dtype, memory_format=torch.channels_last)
    points = SPREAD @ weight.permute(2, 3, 1, 0).reshape(9, -1)
    _kernels().convolve(*_at(x, points, out), B, H, W, C, len(weight))
    return out


def _at(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


@cache
def _kernels() -> ctypes.CDLL:
    """The built kernels."""
    P, L, D, N = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
    library = ctypes.CDLL(str(_build()))
    library.norm_forward.argtypes = [P, P, P, L, L, P, P, P, P, D, D, P, P, N]
    library.norm_backward.argtypes = [N, P, P, P, P, P, L, L, P, P, P, P, P, P]
    for function in (library.convolve, library.weight_gradient):
        function.argtypes = [P, P, P, L, L, L, L, L]
    for function in (library.norm_forward, library.norm_backward, library.convolve, library.weight_gradient):
        function.restype = None
    return library


def _build() -> Path:
    """Build the kernels for this machine, unless they are in the cache; whole or not at all, whoever else does."""
    sources = {name: packaged("nn", "encoders", name) for name in SOURCES}
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise UserError("there is no C++ compiler (c++, g++ or clang++, or $CXX)")
    cpu = Path("/proc/cpuinfo")
    machine = read_text(cpu).split("\n\n")[0] if cpu.exists() else platform.processor()
    steady = [line for line in machine.splitlines() if line.startswith(("model", "flags", "vendor", "Features"))]
    key = hashlib.blake2b("\n".join([*sources.values(), compiler, *FLAGS, *steady]).encode(), digest_size=8).hexdigest()
    folder = user_cache()
    built = folder / f"fused-{key}.so"
    if built.exists():
        return built
    make_folder(folder, private=True)  # code is loaded from it
    with FileLock(built.with_suffix(".lock")):  # who comes while another builds finds it done
        if built.exists():
            return built
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            here = Path(temporary)
            for name, source in sources.items():
                write_whole(here / name, source.encode())
            parts = [str(here / name) for name in SOURCES if name.endswith(".cpp")]
            command = [compiler, *FLAGS, "-o", str(here / "fused.so"), *parts]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise UserError(f"{compiler} cannot build the kernels: {done.stderr.strip().splitlines()[-1:]}")
            move(here / "fused.so", built)
    return built
