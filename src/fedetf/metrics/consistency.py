"""How far the clients of a round agree after their local training: Figures 1 and 5 of the paper."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedetf.metrics.cosines import EPS, Cosines


class Consistency:
    """Takes in one client of a round after the other. Most values are mean cosines of pairs of clients.

    - ``prototype_consistency``: of the class means of features, class by class, over those who hold the class. Features
      that are never negative, such as h, have large cosines whatever they are: ``prototype_consistency_centred`` takes
      the class means of each client less their mean, ``prototype_consistency_raw`` takes h for every method.
      ``prototype_classes`` is the number of classes with two holders or more, which the first rests on;
      ``prototypes_left_out`` that of class means without a direction.
    - ``classifier_consistency``: of the class vectors of the heads, class by class; ``classifier_consistency_flat``
      of the heads as one vector each.
    - ``model_consistency``: of the encoders' trained tensors; ``update_consistency`` of what local training added;
      ``updates_left_out`` is the number of clients whose training changed nothing.
    - ``drift``: mean length of that update, relative to the received model.

    Parameters
    ----------
    classes:
        C.
    encoder:
        The names of the encoder's trained tensors.
    received:
        The model w^t that the clients started from. Where an encoder is private there is no common start, and
        ``update_consistency`` and ``drift`` are NaN.
    """

    def __init__(self, classes: int, encoder: Sequence[str], received: Mapping[str, Tensor]):
        self._prototypes, self._centred, self._raw = Cosines(classes), Cosines(classes), Cosines(classes)
        self._classifiers = Cosines(classes)
        self._flat, self._models, self._updates = Cosines(1), Cosines(1), Cosines(1)
        self._encoder = encoder
        self._start = _vector(received, encoder)
        self._drifts: list[float] = []

    def add(self, trained: Mapping[str, Tensor], prototypes: Mapping[str, Tensor], classifier: Tensor | None) -> None:
        """One client.

        Parameters
        ----------
        trained:
            Its net after training, by name.
        prototypes:
            ``classes`` ``[m]`` that it holds, their ``means`` ``[m, d]`` and ``raw`` means of h ``[m, D]``; empty if it
            holds none.
        classifier:
            Its class vectors ``[C, d]``; None if its head has none.
        """
        if prototypes:
            means, held = prototypes["means"], prototypes["classes"]
            self._prototypes.add(means, held)
            self._raw.add(prototypes["raw"], held)
            if len(means) > 1:
                self._centred.add(means - means.mean(dim=0), held)
        if classifier is not None:
            self._classifiers.add(classifier)
            self._flat.add(classifier.reshape(1, -1))
        model = _vector(trained, self._encoder)
        if model is None:
            return
        self._models.add(model[None])
        if self._start is not None:
            update = model - self._start
            self._updates.add(update[None])
            length = float(torch.linalg.vector_norm(self._start))
            self._drifts.append(float(torch.linalg.vector_norm(update)) / length if length >= EPS else torch.nan)

    def values(self) -> dict[str, float]:
        """What the clients so far give; NaN where there is nothing to compare."""
        return {
            "prototype_consistency": self._prototypes.mean(),
            "prototype_consistency_centred": self._centred.mean(),
            "prototype_consistency_raw": self._raw.mean(),
            "prototype_classes": float(self._prototypes.rows()),
            "prototypes_left_out": float(self._prototypes.left_out),
            "classifier_consistency": self._classifiers.mean(),
            "classifier_consistency_flat": self._flat.mean(),
            "model_consistency": self._models.mean(),
            "update_consistency": self._updates.mean(),
            "updates_left_out": float(self._updates.left_out),
            "drift": sum(self._drifts) / len(self._drifts) if self._drifts else torch.nan,
        }


def _vector(state: Mapping[str, Tensor], names: Sequence[str]) -> Tensor | None:
    """The named tensors as one vector; None if they are not all there."""
    if not names or any(name not in state for name in names):
        return None
    return torch.cat([state[name].detach().flatten().to("cpu", torch.float64) for name in names])
