"""LG-FedAvg."""

from typing import ClassVar

from fedetf.methods.base import Method, Scope


class LGFedAvg(Method):
    """Every client keeps an encoder of its own; the head on top of them is shared. FedPer the other way round.

    The method's own code starts from a model that FedAvg trained; here all start from the common initial encoder.
    """

    name: ClassVar = "lgfedavg"
    summary: ClassVar = "a private encoder on each client, one shared head"
    citation: ClassVar = "Liang et al., 2020"
    family: ClassVar = "personal"
    has_global: ClassVar = False

    def scope(self, name: str) -> Scope:
        """Only the head travels."""
        return Scope.SHARED if name.startswith("head.") else Scope.PRIVATE
