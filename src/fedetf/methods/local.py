"""Every client alone: the floor of a comparison."""

from typing import ClassVar

from fedetf.methods.base import Method, Scope


class Local(Method):
    """Every client trains alone, from the common initial model, in the rounds in which it would take part; then the
    personal stage. Nothing is sent. General accuracy is the mean of that of the clients' own models.
    """

    name: ClassVar = "local"
    summary: ClassVar = "every client alone: the floor of a comparison"
    citation: ClassVar = ""
    family: ClassVar = "reference"
    has_global: ClassVar = False
    measures_clients: ClassVar = True

    def scope(self, name: str) -> Scope:
        """All of the model stays with the client."""
        return Scope.PRIVATE
