"""What a method costs beyond FedAvg, found on a net rather than said.

``methods/costs.json`` holds it for fedetf's own methods, so that a list of them need not wait for torch; it is written
by ``tools/method_costs.py``, and a test finds it again.
"""

from dataclasses import dataclass

from torch import Tensor

from fedetf.core.forms import Sizes
from fedetf.core.state import State, nbytes
from fedetf.engines.worker import sent_parameters
from fedetf.methods import METHODS, Method, Scope
from fedetf.nn.encoders import build_encoder
from fedetf.rng import global_stream

MODEL, SHAPE, CLASSES = "resnet20", (3, 32, 32), 10  # the net of the comparison: the paper's, on CIFAR-10


@dataclass(frozen=True)
class Costs:
    """Of one client with samples of every class; all in bytes but the names."""

    extra_bytes_down: int  # each round, beyond FedAvg's
    extra_bytes_up: int
    extra_bytes_end: int  # sent once after the last round
    client_state_bytes: int  # kept from round to round
    client_state: list[str]  # what that is, by the first part of the tensors' names


def costs_of(method: Method) -> Costs:
    """What a method costs with a ResNet-20 and ten classes."""
    down, up, end, kept = _traffic(method)
    usual_down, usual_up, _, _ = _traffic(METHODS["fedavg"]())
    names = list(dict.fromkeys(name.partition(".")[0] for name in kept))
    return Costs(down - usual_down, up - usual_up, end, nbytes(kept), names)


def _traffic(method: Method) -> tuple[int, int, int, State]:
    """The bytes down and up in a round and up in the end, and what a client keeps."""
    with global_stream(0, "init-encoder"):
        encoder = build_encoder(MODEL, SHAPE)
    net = method.build(encoder, encoder.features, CLASSES, seed=0)
    state: dict[str, Tensor] = net.state_dict()
    shared, received, private = (method.scoped(state, s) for s in (Scope.SHARED, Scope.RECEIVED, Scope.PRIVATE))
    sizes = Sizes(CLASSES, encoder.features, sent_parameters(method, net))
    kept = {**private, **method.client_state(net)}
    if method.pools:
        return 0, 0, 0, kept
    down = nbytes(shared) + nbytes(received) + sizes.nbytes(method.downloads)
    return down, nbytes(shared) + sizes.nbytes(method.uploads), sizes.nbytes(method.summaries), kept
