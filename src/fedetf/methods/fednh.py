"""FedNH."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedetf.core.client import Client
from fedetf.core.forms import Rows, class_means
from fedetf.core.server import Server, Upload
from fedetf.core.state import State
from fedetf.methods.base import Method, Scope
from fedetf.nn.heads import Net, PrototypeHead, unit
from fedetf.ranges import Range
from fedetf.rng import global_stream
from fedetf.settings import Positive


class FedNH(Method):
    """Unit class prototypes are the head; they stand still within a round and follow the clients' class means slowly.

    The model is averaged by data size, as everywhere here; the method's own code takes the plain mean.
    """

    name: ClassVar = "fednh"
    summary: ClassVar = "a head of unit prototypes that follow the clients' class means slowly"
    citation: ClassVar = "Dai et al., AAAI 2023"
    family: ClassVar = "prototypes"
    extra_passes: ClassVar = 1.0
    temperatures: ClassVar = ("head.scale",)
    uploads: ClassVar = {"counts": Rows(torch.int64, 0), "means": Rows(torch.float32, 1)}

    rho: Annotated[float, Range(0.5, 0.99, log=False)] = Field(
        0.9, ge=0, le=1, description="how much of the old prototypes stays each round"
    )  # appendix B
    scale: Positive = Field(1.0, description="factor on the cosines at the start")

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """Encoder u, learnable scale s, prototypes W."""
        with global_stream(seed, "init-head"):
            return Net(encoder, PrototypeHead(features, classes, self.scale))

    def scope(self, name: str) -> Scope:
        """W comes from the server; what goes back are the class means."""
        return Scope.RECEIVED if name == "head.W" else Scope.SHARED

    def upload(self, client: Client) -> State:
        """The model, and for each class that the client holds its mean and how much that counts."""
        per_class = [(c, n, mean) for c, n, mean in self.class_means(client) if mean.any()]
        return {**super().upload(client), **class_means(per_class)}

    def class_means(self, client: Client) -> list[tuple[int, int, Tensor]]:
        """Class, number of samples, and direction of the mean of h/‖h‖ in eval mode; 0 if features cancel out."""
        return [(c, len(h), unit(unit(h).mean(dim=0))) for c, h in client.class_features()]

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """The prototypes W."""
        return state.get("head.W")

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        """FedAvg for {u, s}; W_c ← unit(ρ W_c + (1−ρ) a_c), a_c the direction of the count-weighted sum of means."""
        W = server.state["head.W"]
        sums = torch.zeros_like(W)

        def noting_means() -> Iterator[Upload]:
            for upload in uploads:
                if "classes" in upload.state:
                    classes, counts, means = (upload.state[name] for name in ("classes", "counts", "means"))
                    sums.index_add_(0, classes, counts[:, None] * means)
                yield upload

        super().aggregate(server, noting_means())
        moved = unit(self.rho * W + (1 - self.rho) * unit(sums))
        moves = sums.any(dim=1) & moved.any(dim=1)  # opposite directions can cancel out: then W_c stays
        if self.rho < 1:
            W[moves] = moved[moves]
