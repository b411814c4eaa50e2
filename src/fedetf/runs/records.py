"""What the files of a run folder are called, and the types of what they say; :mod:`fedetf.runs.read` reads them.

Whoever wrote them may be a stranger: what does not fit its type is an UnfitFile, one line that names it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, RootModel, ValidationError

from fedetf.errors import visible
from fedetf.files import UnfitFile

CONFIG = "config.toml"
PARTITION = "partition.json"
SCHEDULE = "schedule.json"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"  # written last: a run that has it is whole
TUNING = "tuning.json"  # in the folder of a comparison: how its settings were chosen, and what that cost
ERROR = "error.part"  # why a run of a comparison failed

M = TypeVar("M", bound=BaseModel)

MOST_INPUTS = 2**26  # numbers in one input: an image of 4,700 × 4,700 pixels in colour


def _finite_or_none(value: Any) -> Any:
    return None if value in (float("inf"), float("-inf")) or value != value else value


Count = Annotated[int, Field(ge=0, lt=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Maybe = Annotated[Number | None, BeforeValidator(_finite_or_none)]  # JSON as Python writes it may hold NaN
Name = Annotated[str, AfterValidator(visible)]  # of a class or a site, to be shown
Accuracy = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[Accuracy | None, BeforeValidator(_finite_or_none)]


class MeasuredLine(BaseModel):
    """What was measured of a global model."""

    general: Share = None
    validation: Share = None
    measures: dict[str, Maybe] = {}


class RoundLine(BaseModel):
    """A line of rounds.jsonl."""

    round: Count
    loss: Maybe = None
    general: Share = None
    validation: Share = None  # the same on what clients hold out to validate, balanced over classes
    bytes_up: Annotated[Number, Field(ge=0)] = 0
    bytes_down: Annotated[Number, Field(ge=0)] = 0
    images: Count = 0  # that clients trained on, every pass counted
    seconds: Number = 0.0
    measures: dict[str, Maybe] = {}
    refused: dict[int, str] = {}
    missing: dict[int, str] = {}
    completed: MeasuredLine | None = None  # of the model as it would be, had the run ended there

    def value(self, metric: str) -> float | None:
        """What tables and curves show: of the completed model, where a method completes it."""
        reported = self if self.completed is None else self.completed
        return reported.general if metric == "general" else {**self.measures, **reported.measures}.get(metric)


class RoundLines(RootModel[list[RoundLine]]):
    """rounds.jsonl."""


class Metrics(BaseModel):
    """What the chosen metrics gave, by name: of the final global model, and the mean over personal ones."""

    general: dict[str, Maybe] = {}
    personal: dict[str, Maybe] = {}


class PerClient(BaseModel):
    """The same on each client's own test split, by metric and client."""

    general: dict[str, list[Maybe]] = {}
    personal: dict[str, list[Maybe]] = {}


class ValidationResult(BaseModel):
    """What the samples that clients hold out to validate say of the final models."""

    general: Share = None
    general_last5: Share = None
    personal: Share = None
    personal_per_client: list[Share] = []
    classes_left_out: Count | None = None


class UnseenResult(BaseModel):
    """What the clients that never trained have of the final model."""

    clients: list[Count] = []
    general: Share = None
    personal: Share = None


class RunResult(BaseModel):
    """result.json."""

    method: str
    seed: Count
    clients: Annotated[Count, Field(ge=1)]
    rounds: Count
    general: Share = None
    general_last5: Share
    personal: Share
    personal_per_client: list[Share] = []
    personal_worst_decile: Share = None
    personal_majority: Share = None  # what a constant answer would reach
    majority_per_client: list[Share] = []
    personal_curve: list[Accuracy] = []
    validation: ValidationResult | None = None
    unseen: UnseenResult | None = None
    metrics: Metrics = Metrics()
    per_client: PerClient = PerClient()
    recall_per_class: list[Share] | None = None
    epochs_train: Number
    epochs_personal: Number
    bytes_up: Number
    bytes_down: Number
    image_passes: Count | None = None  # of all clients in all rounds

    @property
    def training(self) -> int:
        """How many clients could take part in rounds."""
        return max(1, self.clients - (len(self.unseen.clients) if self.unseen else 0))


class TunedMethod(BaseModel):
    """What tuning.json says of a method."""

    name: str  # as settings call it
    method: str  # as tables call it
    chosen: dict[str, Any]
    validation: Share
    image_passes: Count  # of all its trials


class TuningNote(BaseModel):
    """tuning.json, of a tuning and of the comparison that follows it."""

    methods: list[TunedMethod]


class Held(BaseModel):
    """What one client holds, of partition.json."""

    counts: list[Count]


class Holdings(BaseModel):
    """Who holds what: partition.json, less the indices."""

    classes: Annotated[list[Name], Field(min_length=1)]
    clients: Annotated[list[Held], Field(min_length=1)]
    sites: list[Name] = []  # the names of clients, if they have any
    elsewhere: bool = False  # with real sites, who tell nobody


class ModelNote(BaseModel):
    """What a model's file says of it."""

    method: str
    model: str
    dataset: str
    shape: Annotated[list[Annotated[int, Field(ge=1, le=MOST_INPUTS)]], Field(min_length=1, max_length=8)]
    dtype: Literal["uint8", "float32", "float64"]
    inputs: dict[str, Any] | None = None  # how they are read and prepared; see fedetf.data.kinds
    classes: Annotated[list[Name], Field(min_length=1, max_length=1_000_000)]
    held_out: Annotated[str, Field(max_length=200)] = ""  # what the global model was tested on
    sites: Annotated[list[Name], Field(max_length=1_000_000)] = []  # the names of the clients, where they have any
    recalls: list[Share] = []  # of each class, of the global model
    site_accuracies: dict[Name, Accuracy] = {}  # of personal models, in the file of the global one
    site_general: dict[Name, Accuracy] = {}  # of the global model on what each site held out
    site_majority: dict[Name, Accuracy] = {}  # what always the site's most frequent training class would reach there
    majority: Share = None  # the same, in the file of a personal model
    settings: dict[str, Any] | None = None  # of the run, in a file that is not in its folder
    client: Count | None = None
    accuracy: Share = None


class PersonalNote(BaseModel):
    """What a personal model's file says of the stage that it came from."""

    accuracy: Share
    curve: list[Accuracy]
    measures: dict[str, Maybe] = {}
    validation: Share = None
    epochs: Annotated[Number, Field(ge=0)]


@contextmanager
def mended_by_resume(path: Path) -> Iterator[None]:
    """Say of a file in a run folder that is unfit how it is made again."""
    try:
        yield
    except UnfitFile as error:
        raise UnfitFile(f"{error}; to fix the run, remove it and call: fedetf resume {path.parent}") from None


def fitting(kind: type[M], content: Any, where: str) -> M:
    """``content`` as ``kind``; the first thing that does not fit is said in one line."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnfitFile(f"{where} is damaged{f' ({place})' if place else ''}") from None
