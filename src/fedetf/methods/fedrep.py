"""FedRep."""

from typing import ClassVar

from fedetf.core.client import Client
from fedetf.methods.base import Method, Scope
from fedetf.settings import PersonalSettings


class FedRep(Method):
    """The encoder is shared, the head stays private.

    There is no trained global head: general accuracy is that of the averaged encoder with the initial one, as in the
    FedETF authors' code. Averages are weighted by data size; the method's own paper has clients of equal size.
    """

    name: ClassVar = "fedrep"
    summary: ClassVar = "a shared encoder and a private head, trained in turns"
    citation: ClassVar = "Collins et al., ICML 2021"
    family: ClassVar = "personal"

    def personal_phases(self, settings: PersonalSettings) -> int:
        """One for the head, one for the encoder."""
        return 2

    def scope(self, name: str) -> Scope:
        """The head stays with the client."""
        return Scope.PRIVATE if name.startswith("head.") else Scope.SHARED

    def local(self, client: Client) -> None:
        """E epochs on the head with the encoder frozen, then E on the encoder with the head frozen (appendix B)."""
        client.train(self.loss, ["head"])
        client.train(self.loss, ["encoder"])
