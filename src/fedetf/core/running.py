"""Running a net otherwise than as it is: with other weights in place, on a single sample."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.func import functional_call


def with_weights(net: nn.Module, weights: Mapping[str, Tensor], compute: Callable[[], Tensor]) -> Tensor:
    """What ``compute`` gives while these tensors stand in place of the net's own of the same names."""
    value: Tensor = functional_call(_Within(net), {f"net.{name}": t for name, t in weights.items()}, (compute,))
    return value


class _Within(nn.Module):
    """Calls what it is given, so that ``functional_call`` can put other tensors into the net meanwhile."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


@contextmanager
def lone_sample_safe(net: nn.Module, size: int) -> Iterator[None]:
    """For a client of one sample, use BatchNorm's running statistics instead of updating them.

    One sample has no variance: on a 1×1 map BatchNorm fails outright, on larger ones its statistics are noise.
    """
    norms = (
        [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training] if size == 1 else []
    )
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()
