"""The steps that a run is made of, and what comes of each."""

from dataclasses import dataclass, field
from typing import Literal

from fedetf.core.state import State
from fedetf.methods import Upload
from fedetf.metrics import Values

NOBODY = -1  # the client of a step that concerns the global model


@dataclass(frozen=True)
class Step:
    """One piece of work that any worker can do."""

    kind: Literal["train", "summarise", "personalise", "evaluate", "validate", "test"]
    cost: int  # how much work it is, in images
    client: int = NOBODY  # whose step it is; for evaluate, whose own model is meant
    round: int = 0  # for train; for summarise and personalise the last one, 0 being that of the settings
    pooled: int | None = None  # for train: of all clients' samples, the number that an epoch sees; None: its own
    passes: int = 0  # for train on all clients' samples: about how many are trained on, epochs counted
    start: int = 0  # for evaluate: this part of the test set
    stop: int = 0

    def __str__(self) -> str:
        what = {"train": f"round {self.round}", "evaluate": f"evaluation of images {self.start} to {self.stop}"}
        where = {"summarise": "statistics", "personalise": "personal stage"}
        where |= {"validate": "validation", "test": "test of the global model"}
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


@dataclass
class Scored:
    """What was measured of the global model on the test split of one client."""

    client: int
    values: Values  # nothing if the split is empty


@dataclass(frozen=True)
class Missing:
    """A step of which nothing came: its client was away, late, or failed. The run goes on without it."""

    client: int
    why: str
    refused: bool = False  # an update arrived but was rejected


# Of train; of summarise, evaluate and validate; of personalise; of test; of none.
Result = Trained | State | Personal | Scored | Missing
