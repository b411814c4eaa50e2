"""The steps that a run is made of, and what comes of each."""

from dataclasses import dataclass, field
from typing import Literal

from fedetf.core.state import State
from fedetf.methods import Upload
from fedetf.metrics import Values


@dataclass(frozen=True)
class Step:
    """One piece of work that any worker can do."""

    kind: Literal["train", "summarise", "personalise", "evaluate", "validate"]
    cost: int  # how much work it is, in images
    client: int = -1  # for all but evaluate
    round: int = 0  # for train
    start: int = 0  # for evaluate: this part of the test set
    stop: int = 0

    def __str__(self) -> str:
        what = {"train": f"round {self.round}", "evaluate": f"evaluation of images {self.start} to {self.stop}"}
        where = {"summarise": "statistics", "personalise": "personal stage", "validate": "validation"}
        client = f"client {self.client}, " if self.client >= 0 else ""
        return client + {**what, **where}[self.kind]


@dataclass
class Trained:
    """What a client's local training gave: what it sends, and what it keeps for its next round."""

    upload: Upload
    private: State
    prototypes: State = field(default_factory=dict)  # class means, where a metric wants them: metrics.Participant


@dataclass
class Personal:
    """What the personal stage of one client gave."""

    client: int
    accuracy: float | None  # on its own test split; None if that is empty
    curve: list[float]  # the same during the stage, where the method notes it
    epochs: float  # passes over its training split that the stage took
    state: State  # the whole net
    measures: Values = field(default_factory=dict)  # what else was measured on its test split
    validation: float | None = None  # accuracy on what it held out of its training split; None if that is nothing


@dataclass(frozen=True)
class Missing:
    """A step of which nothing came: its client was away, late, or failed. The run goes on without it."""

    client: int
    why: str
    refused: bool = False  # an update arrived but was rejected


Result = Trained | State | Personal | Missing  # of train; of summarise, evaluate and validate; of personalise; of none
