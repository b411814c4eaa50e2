"""FedETF written out in NumPy, gradients by hand: the outside truth for Algorithms 1 and 2.

The encoder is linear without bias, h = A x, and every batch is the whole training split, so nothing is left to chance.
"""

from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Weights:
    A: Array  # encoder, [D, F]
    P: Array  # projection, [d, D]
    b: Array  # its bias, [d]
    beta: float
    V: Array  # [d, C]


def gradients(w: Weights, x: Array, y: Array, offset: Array) -> Weights:
    """∂/∂w of the mean over the batch of −log softmax(β·Vᵀμ + offset)_y."""
    h = x @ w.A.T
    mu_hat = h @ w.P.T + w.b
    norm = np.linalg.norm(mu_hat, axis=1, keepdims=True)
    mu = mu_hat / norm
    cosines = mu @ w.V
    z = w.beta * cosines + offset
    q = np.exp(z - z.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    dz = (q - np.eye(len(offset))[y]) / len(y)
    dmu = w.beta * dz @ w.V.T
    dmu_hat = (dmu - mu * (mu * dmu).sum(axis=1, keepdims=True)) / norm
    return Weights(
        A=(dmu_hat @ w.P).T @ x,
        P=dmu_hat.T @ h,
        b=dmu_hat.sum(axis=0),
        beta=float((dz * cosines).sum()),
        V=w.beta * mu.T @ dz,
    )


def sgd(
    w: Weights, names: str, x: Array, y: Array, offset: Array, epochs: int, lr: float, momentum: float, decay: float
) -> Weights:
    """Full-batch SGD on the named weights: g + decay·w into the momentum buffer, from zero."""
    buffers: dict[str, Array] = {}
    for _ in range(epochs):
        g = gradients(w, x, y, offset)
        steps = {}
        for name in names.split():
            step = getattr(g, name) + decay * getattr(w, name)
            buffers[name] = momentum * buffers[name] + step if name in buffers else step
            steps[name] = getattr(w, name) - lr * buffers[name]
        w = replace(w, **steps)
    return w


def mean(models: list[Weights], sizes: list[int]) -> Weights:
    """Eq. 2."""
    total = sum(sizes)
    fields = {
        name: sum(n * getattr(m, name) for m, n in zip(models, sizes, strict=True)) / total
        for name in ("A", "P", "b", "beta")
    }
    return replace(models[0], **fields)
