"""Mean cosine of pairs of vectors, one vector at a time."""

import torch
from torch import Tensor

from fedetf.core.state import State

EPS = 1e-12  # a shorter vector has no direction


class Cosines:
    """For each of several rows, the mean cosine over all pairs of the vectors that were added to it.

    m unit vectors x_i have the mean (‖Σ x_i‖² − m)/(m(m − 1)), so that their sum is all that is kept. A row with fewer
    than two vectors has no pairs: its value is NaN. A vector of no length is left out and counted.

    Examples
    --------
    >>> cosines = Cosines(rows=1)
    >>> for direction in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]):
    ...     cosines.add(torch.tensor([direction]))
    >>> round(cosines.mean(), 6)
    0.471405
    """

    def __init__(self, rows: int):
        self.number = torch.zeros(rows, dtype=torch.float64)  # m, of each row
        self.left_out = 0
        self._sums: Tensor | None = None

    @classmethod
    def of(cls, sums: State) -> "Cosines":
        """That of all vectors, from the added :meth:`sums` of some and of others."""
        cosines = cls(len(sums["number"]))
        cosines.number, cosines.left_out, cosines._sums = sums["number"], int(sums["left_out"]), sums.get("vectors")
        return cosines

    def sums(self) -> State:
        """All that is kept of the vectors."""
        vectors = {} if self._sums is None else {"vectors": self._sums}
        return {"number": self.number, "left_out": torch.tensor(self.left_out), **vectors}

    def add(self, vectors: Tensor, rows: Tensor | None = None) -> None:
        """Add vectors ``[r, d]`` to the rows ``[r]``; left out: one to every row, in order."""
        vectors = vectors.detach().to("cpu", torch.float64)
        rows = torch.arange(len(self.number)) if rows is None else rows.cpu()
        if self._sums is None:
            self._sums = torch.zeros(len(self.number), vectors.shape[1], dtype=torch.float64)
        norms = torch.linalg.vector_norm(vectors, dim=1)
        sound = norms >= EPS
        self.left_out += int((~sound).sum())
        self._sums.index_add_(0, rows[sound], vectors[sound] / norms[sound, None])
        self.number.index_add_(0, rows[sound], torch.ones(int(sound.sum()), dtype=torch.float64))

    def values(self) -> Tensor:
        """The mean cosine of each row, NaN where there are no pairs: ``[rows]``."""
        if self._sums is None:
            return torch.full_like(self.number, torch.nan)
        pairs = self.number * (self.number - 1)
        return torch.where(pairs > 0, (self._sums.square().sum(dim=1) - self.number) / pairs, torch.nan)

    def rows(self) -> int:
        """How many rows have pairs."""
        return int((self.number > 1).sum())

    def mean(self) -> float:
        """The mean over the rows that have pairs, each with the same weight; NaN if none has."""
        values = self.values()
        return float(values[~values.isnan()].mean())
