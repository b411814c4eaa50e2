"""What FedGELA and FedDr+ have in common: features compared with a simplex ETF that every party makes from the seed."""

from collections.abc import Mapping

from torch import Tensor

from fedetf.methods.base import Method
from fedetf.nn.heads import ETFHead, Net


class OnETF(Method):
    """A method whose head is an :class:`ETFHead`."""

    def embed(self, net: Net, h: Tensor) -> Tensor:
        """μ, of unit length."""
        assert isinstance(net.head, ETFHead)
        return net.head.embed(h)

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """The columns of V."""
        return state["head.V"].T if "head.V" in state else None
