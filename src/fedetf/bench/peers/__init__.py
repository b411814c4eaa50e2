"""Other packages on the same work, where they are installed: none of them is a dependency.

Each is a file of its own, and runs as a program of its own, as its documentation has it; once as it comes, and once as
tuned as that documentation allows.
"""

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Peer:
    """A package to compare with."""

    modules: tuple[str, ...]  # all of them must be there
    install: str  # what pip calls it
    tuned: str  # what tuned means

    @property
    def is_installed(self) -> bool:
        """Whether it can be tried."""
        return all(find_spec(module) is not None for module in self.modules)


PEERS = {
    "pfl": Peer(("pfl",), "pfl", "channels_last, a process for each core, users dealt out by size"),
    "fluke": Peer(("fluke",), "fluke-fl", "channels_last"),
    "fedlab": Peer(("fedlab",), "fedlab", "images channels_last, batches cut by hand"),
    "flower": Peer(("flwr", "ray"), "flwr[simulation]", "channels_last"),
}
