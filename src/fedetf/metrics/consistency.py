"""How far the clients of a round agree after their local training: Figures 1 and 5 of the paper."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.metrics.base import Metric, Participant, Quantity, Values
from fedetf.metrics.cosines import EPS, Cosines


class Consistency(Metric):
    """The agreement of the participants of a round. Most values are mean cosines of pairs of clients.

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

    A value with nothing to compare is NaN; where an encoder is private there is no common start, and so no update.
    """

    name: ClassVar = "consistency"
    personal: ClassVar = False
    watches_clients: ClassVar = True

    @classmethod
    def quantities(cls) -> Sequence[Quantity]:
        """Those that the report shows first come first."""
        return QUANTITIES

    def client_part(self, client: Participant) -> State:
        """The sums that :class:`Cosines` keeps, of this client alone, and its drift."""
        rows = {**dict.fromkeys(BY_CLASS, client.classes), **dict.fromkeys(WHOLE, 1)}
        cosines = {name: Cosines(count) for name, count in rows.items()}
        if client.prototypes:
            means, classes = client.prototypes["means"], client.prototypes["classes"]
            cosines["prototypes"].add(means, classes)
            cosines["raw"].add(client.prototypes["raw"], classes)
            if len(means) > 1:
                cosines["centred"].add(means - means.mean(dim=0), classes)
        if client.vectors is not None:
            cosines["classifiers"].add(client.vectors)
            cosines["flat"].add(client.vectors.reshape(1, -1))
        drift: State = {}
        if client.encoder:
            model = _vector(client.encoder)
            cosines["models"].add(model[None])
            if client.start:
                start = _vector(client.start)
                cosines["updates"].add((model - start)[None])
                drift = {"drift": _relative(model - start, start), "drifts": torch.tensor(1)}
        return {f"{name}.{key}": t for name, c in cosines.items() for key, t in c.sums().items()} | drift

    def value(self, sums: State) -> Values:
        """What all participants together give."""
        of = {name: Cosines.of(_inside(name, sums)) for name in (*BY_CLASS, *WHOLE)}
        return {
            "prototype_consistency": of["prototypes"].mean(),
            "prototype_consistency_centred": of["centred"].mean(),
            "prototype_consistency_raw": of["raw"].mean(),
            "prototype_classes": float(of["prototypes"].rows()),
            "prototypes_left_out": float(of["prototypes"].left_out),
            "classifier_consistency": of["classifiers"].mean(),
            "classifier_consistency_flat": of["flat"].mean(),
            "model_consistency": of["models"].mean(),
            "update_consistency": of["updates"].mean(),
            "updates_left_out": float(of["updates"].left_out),
            "drift": float(sums["drift"]) / int(sums["drifts"]) if "drift" in sums else torch.nan,
        }


BY_CLASS = ("prototypes", "centred", "raw", "classifiers")  # one vector for each class
WHOLE = ("flat", "models", "updates")  # one for each client

QUANTITIES = (
    Quantity(
        "prototype_consistency",
        "Prototype consistency",
        "higher",
        "Do clients place a class in the same direction of feature space? 1 is full agreement.",
        short="protos",
        main=True,
    ),
    Quantity(
        "classifier_consistency",
        "Classifier consistency",
        "higher",
        "Do clients' classifiers point the same way, class by class? This is classifier bias, turned round: 1 is no"
        " bias. A fixed classifier has 1 by construction.",
        short="heads",
        main=True,
    ),
    Quantity(
        "model_consistency",
        "Local model consistency",
        "higher",
        "How alike the clients' encoders are after local training. 1 is identical.",
        short="encoders",
        main=True,
    ),
    Quantity(
        "prototype_consistency_raw",
        "Prototype consistency of the encoder's features",
        "higher",
        "Of h for every method, FedETF's included.",
        short="protos of h",
    ),
    Quantity(
        "prototype_consistency_centred",
        "Prototype consistency, centred",
        "higher",
        "What is common to all classes of a client does not count.",
        short="protos centred",
    ),
    Quantity("classifier_consistency_flat", "Classifier consistency, whole matrix", "higher", "1 is equal."),
    Quantity("update_consistency", "Consistency of updates", "higher", "1: all clients move the same way."),
    Quantity("drift", "Drift", "lower", "Length of a client's update relative to the model."),
    Quantity(
        "prototypes_left_out",
        "Class means of clients without a direction",
        about="Left out of prototype consistency.",
    ),
    Quantity(
        "updates_left_out", "Clients whose training changed nothing", about="Left out of the consistency of updates."
    ),
    Quantity("prototype_classes", "Classes with two holders or more", about="What prototype consistency rests on."),
)


def _vector(state: State) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.detach().flatten().to("cpu", torch.float64) for tensor in state.values()])


def _relative(update: Tensor, start: Tensor) -> Tensor:
    """The length of an update, relative to what was updated; NaN if that has none."""
    length = torch.linalg.vector_norm(start)
    return torch.linalg.vector_norm(update) / length if length >= EPS else torch.full((), torch.nan, dtype=start.dtype)


def _inside(name: str, sums: State) -> State:
    """The sums whose names begin with a name and a full stop, without those."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in sums.items() if key.startswith(f"{name}.")}
