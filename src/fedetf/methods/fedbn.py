"""FedBN."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedetf.core.state import State
from fedetf.methods.base import Method, Scope

STATISTICS = ".running_mean"  # a module whose state has it is a BatchNorm, whatever it is called


class FedBN(Method):
    """BatchNorm stays at home, its weights and its statistics; all else is averaged.

    There is no global model: without the statistics of any client the shared tensors classify nothing.
    """

    name: ClassVar = "fedbn"
    summary: ClassVar = "FedAvg, with all of BatchNorm private"
    citation: ClassVar = "Li et al., ICLR 2021"
    family: ClassVar = "personal"
    has_global: ClassVar = False

    def scoped(self, state: Mapping[str, Tensor], scope: Scope) -> State:
        """Told apart by structure, so ``state`` is the net's whole state dict, or has nothing of BatchNorm."""
        norms = {name.removesuffix(STATISTICS) for name in state if name.endswith(STATISTICS)}
        of = {True: Scope.PRIVATE, False: Scope.SHARED}
        return {name: tensor for name, tensor in state.items() if of[name.rpartition(".")[0] in norms] is scope}
