"""FedDisco's weights of the mean (``server.weights = "disco"``; Ye et al., ICML 2023).

A client counts by its size, less by how far its class mix is from an even one. It sends that distance, one number; its
class counts stay with it.
"""

import math
from collections.abc import Sequence

from torch import Tensor


def label_distance(counts: Tensor) -> float:
    """d_k = KL(π_k ‖ even mix) = ln C − H(π_k) from class counts ``[C]``; 0 for a client without samples."""
    total = int(counts.sum())
    mix = [n / total for n in counts.tolist() if n]
    return max(0.0, math.log(len(counts)) + sum(p * math.log(p) for p in mix)) if total else 0.0


def disco(sizes: Sequence[int], distances: Sequence[float], a: float, b: float) -> list[float]:
    """q_k = max(0, p_k − a·d_k/Σd + b/n) over the n participants, p_k = n_k/Σn; not yet brought to sum 1.

    The paper has b = 0.1 for ten participants: as the other two terms shrink with their number, so does b here. Where
    no weight is positive, and with a = b = 0, the sizes are the weights.
    """
    if a == b == 0:
        return [float(size) for size in sizes]
    total, apart = sum(sizes), sum(distances) or 1.0
    weights = [
        max(0.0, size / total - a * distance / apart + b / len(sizes))
        for size, distance in zip(sizes, distances, strict=True)
    ]
    return weights if any(weights) else [float(size) for size in sizes]
