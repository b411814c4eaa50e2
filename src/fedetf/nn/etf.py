"""The simplex equiangular tight frame (ETF): the classifier that ideal training ends in, made up front."""

import math

import torch
from torch import Tensor

from fedetf.errors import UserError
from fedetf.rng import torch_stream


def simplex_etf(classes: int, dim: int, seed: int = 0) -> Tensor:
    """A randomly rotated simplex ETF (Eq. 3): ``classes`` unit vectors, each pair at cosine −1/(classes−1).

    The paper writes V = sqrt(C/(C−1)) U (I − 11ᵀ/C) with UᵀU = I, which needs dim ≥ C. The frame spans only C−1
    dimensions, so it is built from an orthonormal basis Q of the complement of 1 and a random orthonormal R:
    V = sqrt(C/(C−1)) R Qᵀ. For dim ≥ C that is the same family, and dim = C−1 works too.

    Parameters
    ----------
    classes:
        C, the number of vectors, at least 2.
    dim:
        d, the length of each vector, at least C−1.
    seed:
        The same seed gives the same frame everywhere, so it need not be sent.

    Returns
    -------
    Tensor of shape ``[dim, classes]``, float32; column c is the classifier vector of class c.

    Examples
    --------
    >>> V = simplex_etf(classes=3, dim=2)
    >>> torch.allclose(V.T @ V, 1.5 * torch.eye(3) - 0.5, atol=1e-6)
    True
    """
    if classes < 2:
        raise UserError(f"a simplex ETF needs at least 2 classes, not {classes}")
    if dim < classes - 1:
        raise UserError(
            f"a simplex ETF of {classes} classes needs dim >= {classes - 1}, not {dim}; "
            "raise method.dim or leave it out to use the number of classes"
        )
    C = classes
    centring = torch.eye(C, dtype=torch.float64) - 1 / C
    Q = torch.linalg.qr(centring).Q[:, : C - 1]  # C−1 of its columns are independent: a basis of 1's complement
    V: Tensor = math.sqrt(C / (C - 1)) * random_rotation(dim, C - 1, seed) @ Q.T
    return V.to(torch.float32)


def random_rotation(rows: int, columns: int, seed: int) -> Tensor:
    """A uniformly (Haar) distributed matrix with orthonormal columns, ``[rows, columns]``, float64."""
    gauss = torch.randn(rows, columns, generator=torch_stream(seed, "etf"), dtype=torch.float64)
    Q, R = torch.linalg.qr(gauss)
    rotation: Tensor = Q * R.diagonal().sign()  # QR alone leaves the signs to the implementation: not uniform
    return rotation
