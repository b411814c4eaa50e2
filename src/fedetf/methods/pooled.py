"""All data in one place: the ceiling of a comparison."""

from typing import ClassVar

from fedetf.core.client import Client
from fedetf.errors import UserError
from fedetf.methods.base import Method
from fedetf.settings import Settings


class Pooled(Method):
    """One model on the union of all training splits, by as many image passes as the federated run has.

    A round's epoch sees as many samples as the round's participants hold, drawn from all. With one client it is FedAvg,
    to the bit. The personal stage is FedAvg's, on each client's own data.
    """

    name: ClassVar = "pooled"
    summary: ClassVar = "all data in one place: the ceiling of a comparison"
    citation: ClassVar = ""
    family: ClassVar = "reference"
    pools: ClassVar = True

    def check(self, settings: Settings) -> None:
        """There is nobody to hide from the server."""
        if settings.update.noise:
            raise UserError("pooled has all data in one place, where noise hides nobody; leave out update.noise")

    def personalise(self, client: Client) -> None:
        """One more local training; momentum that was kept of the rounds is of all data, and no client's."""
        client.memory.clear()
        super().personalise(client)
