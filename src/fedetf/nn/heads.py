"""Heads: feature vector -> logits. And the net, which is an encoder with a head."""

import torch
from torch import Tensor, nn

from fedetf.errors import UserError
from fedetf.nn.etf import random_rotation, simplex_etf


class Net(nn.Module):
    """An encoder f_u and a head behind it: images ``[batch, ...]`` -> logits ``[batch, classes]``."""

    features: int  # D, the length of the encoder's output; known once the net is built for data

    def __init__(self, encoder: nn.Module, head: nn.Module):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.head(self.encoder(x))
        return logits


def unit(x: Tensor, eps: float = 1e-12) -> Tensor:
    """x/‖x‖ along the last dimension, and 0 without a gradient where ‖x‖ < eps.

    Dividing by max(‖x‖, eps), as is usual, sends a gradient of size 1/eps back from a vanishing feature.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    vanishes = norm < eps
    return (x / norm.masked_fill(vanishes, 1.0)).masked_fill(vanishes, 0.0)


class ETFHead(nn.Module):
    """The fixed simplex-ETF classifier behind a learnable projection, with a learnable temperature (Eq. 5 and 6).

    μ = g(p; h)/‖g(p; h)‖, logits z_c = β·v_cᵀμ. ``V`` is a buffer: it moves with the module and is saved with it, but
    no optimiser sees it and, being a function of the seed, it need not be sent.

    Parameters
    ----------
    features:
        D, the length of the encoder's feature vectors h.
    classes:
        C.
    dim:
        d, the dimension of the ETF; None takes C, as the paper does. Any d ≥ C−1 from 2 on.
    seed:
        Of the ETF.
    projection:
        False leaves the projection out (an ablation): then μ = h/‖h‖ and d = D.
    beta:
        The temperature at the start.
    learn_beta:
        False keeps β where it is (an ablation).

    Examples
    --------
    >>> head = ETFHead(features=64, classes=10)
    >>> head(torch.randn(5, 64)).shape
    torch.Size([5, 10])
    """

    V: Tensor
    beta: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        dim: int | None = None,
        seed: int = 0,
        projection: bool = True,
        beta: float = 1.0,
        learn_beta: bool = True,
    ):
        super().__init__()
        if dim is None:
            dim = classes if projection else features
        if not projection and dim != features:
            raise UserError(f"without a projection the ETF has the encoder's dimension {features}, not {dim}")
        if dim < 2 <= classes:
            raise UserError(
                "an ETF of dimension 1 cannot be trained towards: a number divided by its length has no gradient; "
                "take a dimension of 2 or more"
            )
        self.projection: nn.Module = nn.Linear(features, dim) if projection else nn.Identity()
        temperature = torch.tensor(float(beta))
        if learn_beta:
            self.beta = nn.Parameter(temperature)
        else:
            self.register_buffer("beta", temperature)
        self.register_buffer("V", simplex_etf(classes, dim, seed))

    def embed(self, h: Tensor) -> Tensor:
        """The normalised projected feature μ of Eq. 5: ``[batch, D]`` -> ``[batch, d]``."""
        return unit(self.projection(h))

    def forward(self, h: Tensor) -> Tensor:
        """Logits β·v_cᵀμ: ``[batch, D]`` -> ``[batch, C]``."""
        return self.beta * (self.embed(h) @ self.V)


class StretchedETFHead(ETFHead):
    """FedGELA's: an ETF head that also carries q ``[C]``, by which a client multiplies its logits; 1 at the start."""

    q: Tensor

    def __init__(self, features: int, classes: int, dim: int | None = None, seed: int = 0, beta: float = 1.0):
        super().__init__(features, classes, dim, seed, beta=beta)
        self.register_buffer("q", torch.ones(classes))


class SphereHead(nn.Module):
    """SphereFed's head: logits W_cᵀ h/‖h‖ with a random W that no optimiser trains.

    Its rows are orthonormal if there are at most as many classes as features; else they only have unit length.
    """

    W: Tensor

    def __init__(self, features: int, classes: int, seed: int = 0):
        super().__init__()
        few = classes <= features
        W = random_rotation(features, classes, seed).T if few else unit(random_rotation(classes, features, seed))
        self.register_buffer("W", W.to(torch.float32).contiguous())

    def forward(self, h: Tensor) -> Tensor:
        """``[batch, D]`` -> ``[batch, C]``."""
        return unit(h) @ self.W.T


class PrototypeHead(nn.Module):
    """FedNH's head: logits s·W_cᵀ h/‖h‖ with unit prototypes W that no optimiser trains, and a learnable scale s.

    The rows of W start orthonormal if there are at most as many classes as features; else they are the rows of an
    orthonormal basis of the classes' space, brought back to unit length.
    """

    W: Tensor

    def __init__(self, features: int, classes: int, scale: float):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.register_buffer("W", unit(nn.init.orthogonal_(torch.empty(classes, features))))

    def forward(self, h: Tensor) -> Tensor:
        """``[batch, D]`` -> ``[batch, C]``."""
        return self.scale * (unit(h) @ self.W.T)


class TwoHeads(nn.Module):
    """FedRoD's heads: a generic one G, and a private one P that is added to it for the client's own predictions."""

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.generic = nn.Linear(features, classes)
        self.private = nn.Linear(features, classes)
        self.private.load_state_dict(self.generic.state_dict())

    def forward(self, h: Tensor) -> Tensor:
        """The generic logits: ``[batch, D]`` -> ``[batch, C]``."""
        logits: Tensor = self.generic(h)
        return logits


class AnchoredHead(nn.Linear):
    """FedProto's linear head, which also carries the global prototypes ``[C, D]`` and which of them are known."""

    prototypes: Tensor
    known: Tensor

    def __init__(self, features: int, classes: int):
        super().__init__(features, classes)
        self.register_buffer("prototypes", torch.zeros(classes, features))
        self.register_buffer("known", torch.zeros(classes, dtype=torch.bool))
