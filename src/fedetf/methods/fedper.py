"""FedPer."""

from typing import ClassVar

from fedetf.methods.base import Method, Scope


class FedPer(Method):
    """The encoder is shared, the head stays private; both train together.

    As for FedRep, general accuracy is that of the averaged encoder with the initial head, which nobody trains. All
    clients start from that head.
    """

    name: ClassVar = "fedper"
    summary: ClassVar = "a shared encoder and a private head, trained together"
    citation: ClassVar = "Arivazhagan et al., 2019"
    family: ClassVar = "personal"

    def scope(self, name: str) -> Scope:
        """The head stays with the client."""
        return Scope.PRIVATE if name.startswith("head.") else Scope.SHARED
