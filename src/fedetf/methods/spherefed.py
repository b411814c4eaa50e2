"""SphereFed."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedetf.core.client import Batch, Client
from fedetf.core.forms import Rows, Vector
from fedetf.core.server import Server
from fedetf.core.state import State
from fedetf.methods.base import Method, Scope, check_trainable
from fedetf.nn.heads import Net, SphereHead, unit
from fedetf.rng import derive

CUT = 1e-10  # eigenvalues below this share of the largest count as 0: with few samples V is singular


class SphereFed(Method):
    """Unit features, a fixed orthonormal classifier and a squared loss; in the end the classifier is fitted once.

    With more classes than features the classifier's rows have unit length, but cannot be orthogonal.
    """

    name: ClassVar = "spherefed"
    summary: ClassVar = "unit features, a fixed orthonormal classifier, and least squares in the end"
    citation: ClassVar = "Dong et al., ECCV 2022"
    family: ClassVar = "fixed classifier"
    suggested_rate: ClassVar = 55.0
    finishes: ClassVar = True
    summaries: ClassVar = {"sums": Rows(torch.float64, 1), "gram": Vector(("features", "features"), torch.float64)}

    def build(self, encoder: nn.Module, features: int, classes: int, seed: int) -> Net:
        """Encoder u in front of W, which all parties make from the same seed."""
        check_trainable(self, encoder)
        return Net(encoder, SphereHead(features, classes, derive(seed, "sphere")))

    def scope(self, name: str) -> Scope:
        """W travels nowhere before it is fitted."""
        return Scope.FIXED if name == "head.W" else Scope.SHARED

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The mean over batch and classes of (W r − onehot(y))², r = h/‖h‖."""
        cosines = client.net.head(batch.h)
        return F.mse_loss(cosines, F.one_hot(batch.y, cosines.shape[1]).to(cosines.dtype))

    def summarise(self, client: Client) -> State:
        """The sum of r for each class that the client holds, and Σ r rᵀ over all its samples, in double precision."""
        per_class = [(c, unit(h.to("cpu", torch.float64))) for c, h in client.class_features()]
        grams = [r.T @ r for _, r in per_class]
        features = client.net.features
        gram = torch.stack(grams).sum(dim=0) if grams else torch.zeros(features, features, dtype=torch.float64)
        if not per_class:
            return {"gram": gram}
        classes = torch.tensor([c for c, _ in per_class])
        return {"classes": classes, "sums": torch.stack([r.sum(dim=0) for _, r in per_class]), "gram": gram}

    def server_state(self, net: Net) -> State:
        """W as it starts, to have its shape when it is fitted."""
        return {"W": net.state_dict()["head.W"]}

    def finish(self, server: Server, summaries: Iterable[State]) -> None:
        """W_c ← V⁺ U_c, with V = Σ r rᵀ and U_c = Σ_{y=c} r over all samples: the least squares fit of the labels."""
        W = server.own["W"]
        U = torch.zeros(W.shape, dtype=torch.float64)
        V = torch.zeros(W.shape[1], W.shape[1], dtype=torch.float64)
        for summary in summaries:
            V += summary["gram"].cpu()
            if "classes" in summary:
                U.index_add_(0, summary["classes"].cpu(), summary["sums"].cpu())
        if V.any():
            server.state["head.W"] = (U @ torch.linalg.pinv(V, rtol=CUT, hermitian=True)).to(W)

    def embed(self, net: Net, h: Tensor) -> Tensor:
        """r = h/‖h‖."""
        return unit(h)

    def class_vectors(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """The rows of W."""
        return state.get("head.W")
