"""What a metric is: sums over parts of the data, which merge, and the values that follow from them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedetf.core.state import State

Better = Literal["higher", "lower"]
Values = dict[str, float | None]


@dataclass(frozen=True)
class Quantity:
    """A number that a metric gives: what it is called, and what is better."""

    name: str
    title: str
    better: Better | None = None  # None: neither; it says what other numbers rest on
    about: str = ""  # a sentence or two for whoever reads a chart
    short: str = ""  # a few letters for the tables of the paper; without, it is not in them
    main: bool = False  # whether a report shows it without being asked

    @property
    def caption(self) -> str:
        """What it is, and which direction is better."""
        return " ".join(filter(None, (self.about, self.better and f"{self.better.capitalize()} is better.")))


@dataclass(frozen=True)
class Predictions:
    """Samples of a test set as a model sees them: all of it, or a part."""

    logits: Tensor  # [n, C]
    y: Tensor  # labels [n]
    z: Tensor  # features in the class vectors' space [n, d]: μ for FedETF, h for most others
    totals: Tensor  # how many samples of each class the whole test set has [C]


@dataclass(frozen=True)
class Participant:
    """A client of a round after its local training, as far as the server knows it."""

    classes: int  # C
    encoder: State  # its encoder's trained tensors; empty if some of them stay with the client
    start: State  # the same before its training; empty where clients have no common start
    prototypes: State  # ``classes`` [m] that it holds, their ``means`` [m, d] of z and ``raw`` means [m, D] of h
    vectors: Tensor | None  # its class vectors [C, d]; None if its head has none


_SUMMING = {"part", "client_part", "model_part", "merge", "concatenated"}  # what decides a metric's sums


class Metric(ABC):
    """A metric: what it sums up over parts of the data, and the values that follow from the sums.

    The parts may have any sizes, and are merged in a fixed order whichever engine made them: tensors of one name are
    added, or put one after the other if ``concatenated`` names them. :meth:`value` sees the merged ones. Parts come
    from the samples of a test set (:meth:`part`), from the participants of a round (:meth:`client_part`), and from the
    global model itself (:meth:`model_part`); a metric takes what it needs. It holds nothing: one object serves all
    models. A class without a name goes by its own name in small letters. One that takes over another's sums as they are
    and only values them anew shares them: they are computed and travel once.

    Examples
    --------
    >>> class Confidence(Metric):
    ...     title, better = "Mean confidence", "higher"
    ...
    ...     def part(self, seen):
    ...         return {"sum": seen.logits.softmax(1).amax(1).sum(), "count": torch.tensor(len(seen.y))}
    ...
    ...     def value(self, sums):
    ...         return {self.name: float(sums["sum"] / sums["count"])}
    """

    name: ClassVar[str] = "metric"
    basis: ClassVar[str] = "metric"  # the name of the metric whose sums these are
    title: ClassVar[str] = ""
    better: ClassVar[Better | None] = "higher"
    about: ClassVar[str] = ""
    concatenated: ClassVar[frozenset[str]] = frozenset()  # names of sums whose parts are joined instead of added
    personal: ClassVar[bool] = True  # False: it says nothing of a client's own model
    watches_clients: ClassVar[bool] = False  # True: it wants the participants of each measured round

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        if _SUMMING & vars(cls).keys():
            cls.basis = cls.name

    @classmethod
    def quantities(cls) -> Sequence[Quantity]:
        """What :meth:`value` gives, in the order in which it is shown; by default one number of the metric's name."""
        return [Quantity(cls.name, cls.title or cls.name, cls.better, cls.about)]

    def part(self, seen: Predictions) -> State:
        """The sums over some samples of a test set."""
        return {}

    def client_part(self, client: Participant) -> State:
        """What one participant of a round adds, where ``watches_clients`` is true."""
        return {}

    def model_part(self, heads: Sequence[Tensor]) -> State:
        """What the global model adds, once, from its class vectors ``[C, d]``.

        Where heads are private, ``heads`` are those of the round's participants; where they have none, it is empty.
        """
        return {}

    @abstractmethod
    def value(self, sums: State) -> Values:
        """The values that follow from merged sums; None, NaN or infinite where one is not defined."""

    def merge(self, sums: State, part: State) -> State:
        """The sums with one more part; neither is changed."""
        joined = {name: self._joined(name, sums[name], part[name]) for name in sums.keys() & part.keys()}
        return {**sums, **part, **joined}

    def of(self, seen: Predictions) -> Values:
        """The values of a test set in one piece."""
        return self.value(self.part(seen))

    def _joined(self, name: str, one: Tensor, other: Tensor) -> Tensor:
        return torch.cat([one, other]) if name in self.concatenated else one + other
