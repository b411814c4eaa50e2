"""Whether what a client sent may be folded in."""

import math

from fedetf.core.forms import Sizes, misfit
from fedetf.core.soundness import defect, other_type, unsound
from fedetf.core.state import State
from fedetf.engines.steps import Trained
from fedetf.methods import Method, Scope, Upload


def unfit(result: Trained, method: Method, state: State, sizes: Sizes, max_ratio: float) -> str | None:
    """What makes a result of training from the server's ``state`` unfit to be folded in; None if nothing does."""
    sent, shared = result.upload.state, method.scoped(state, Scope.SHARED)
    extras = {name: tensor for name, tensor in sent.items() if name not in shared}
    return (
        other_type(sent, shared)
        or unsound(sent, shared, result.upload.images, max_ratio)
        or misfit(extras, method.uploads, sizes, result.upload.samples)
        or defect(result.private, {})
    )


def unlikely_distance(upload: Upload, classes: int) -> str | None:
    """What is wrong with how far a client says its classes are from an even mix, for ``server.weights = "disco"``."""
    most = math.log(classes)
    if upload.distance is not None and 0 <= upload.distance <= most + 1e-9:
        return None
    return f"the distance of its classes from an even mix is no number from 0 to {most:.4g}"
