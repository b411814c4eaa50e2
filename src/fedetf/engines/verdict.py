"""Whether what a client sent may be folded in."""

import math

from fedetf.core.forms import Sizes, misfit
from fedetf.core.soundness import Glance, defect, other_type, unsound
from fedetf.core.state import State
from fedetf.engines.steps import Trained
from fedetf.methods import Method, Scope, Upload


class Verdict:
    """Judges what clients made of the server's ``state`` in one round."""

    def __init__(self, method: Method, state: State, sizes: Sizes, max_ratio: float):
        self._method, self._sizes, self._max_ratio = method, sizes, max_ratio
        self._shared = method.scoped(state, Scope.SHARED)
        self._glance = Glance(self._shared, max_ratio)

    def unfit(self, result: Trained) -> str | None:
        """What makes a result of training unfit to be folded in; None if nothing does."""
        sent, shared, images = result.upload.state, self._shared, result.upload.images
        if not result.private and not self._method.uploads and self._glance.passes(sent, images):
            return None
        extras = {name: tensor for name, tensor in sent.items() if name not in shared}
        return (
            other_type(sent, shared)
            or unsound(sent, shared, images, self._max_ratio)
            or misfit(extras, self._method.uploads, self._sizes, result.upload.samples)
            or defect(result.private, {})
        )


def unlikely_distance(upload: Upload, classes: int) -> str | None:
    """What is wrong with how far a client says its classes are from an even mix, for ``server.weights = "disco"``."""
    most = math.log(classes)
    if upload.distance is not None and 0 <= upload.distance <= most + 1e-9:
        return None
    return f"the distance of its classes from an even mix is not a number from 0 to {most:.4g}"
