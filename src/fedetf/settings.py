"""The tree of settings: sections, types and ranges. Unknown keys are errors, and what is made is frozen.

Settings that ask for code come into being only with the user's consent, and what is written of an address holds no
password. ``config.py`` puts the layers together that they are made from.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedetf.own_code import CODE, Origin, asks_for_code
from fedetf.redact import bare, public_address

Tree = dict[str, Any]

Count = Annotated[int, Field(ge=1, le=2**31)]  # more of anything is a slip, and would only fill the memory
Times = Annotated[int, Field(ge=0, le=1_000_000)]  # how often something is done
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LAST = 5  # tables report the mean of the last five rounds, as the authors do
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]


def _whole(value: float) -> float:
    """A whole number as an int, so that it is written without a decimal point."""
    return int(value) if float(value).is_integer() else value


Epochs = Annotated[float, Field(ge=0, le=1_000_000), AfterValidator(_whole)]
Address = Annotated[str, PlainSerializer(public_address)]  # what is written of it is without user and password


Combine = Literal["mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "centred_clip"]


def counted(number: float, thing: str) -> str:
    """A number of things in words.

    >>> counted(1, "round"), counted(2, "round"), counted(0.5, "epoch")
    ('1 round', '2 rounds', '0.5 epochs')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _names(value: Any) -> Any:
    """Names with commas between them, as they are typed after ``--set``, or a list of them."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class Section(BaseModel):
    """A part of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class DataSettings(Section):
    """What the clients hold."""

    name: str = Field("digits", description="a dataset's name, a CSV or Parquet file, a folder, or a hub id")
    clients: Count = Field(20, description="K, the number of clients")
    partition: str = Field(
        "dirichlet", description="who holds what, see: fedetf list partitions; 'given' is for run(data=...) in Python"
    )
    alpha: Annotated[Positive, Field(le=1e6)] = Field(
        0.1, description="Dirichlet concentration: smaller is more skewed"
    )
    size_alpha: Annotated[Positive, Field(le=1e6)] | None = Field(
        None,
        description="Dirichlet concentration of the clients' sizes, for 'quantity' (left out: 0.5) and 'dirichlet' "
        "(left out: sizes follow from the shares of each class, as in the paper)",
    )
    shards: Count = Field(2, description="classes per client, for partition = 'shards'")
    min_size: Count = Field(4, description="fewest samples a client may hold; 4 keeps both splits non-empty")
    strict: bool = Field(False, description="true: a partition that needs a repair is an error")
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(0.3, description="of each client's data")
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="of each client's training split, held out to choose settings by; see docs/measures.md"
    )
    unseen: Annotated[int, Field(ge=0, le=2**31)] = Field(
        0, description="number of clients that never train: they personalise the final model, and are reported apart"
    )
    imbalance: Annotated[float, Field(ge=1, le=1e6)] = Field(
        1.0, description="long tail: ratio of training samples, first class to last"
    )
    shift: Literal["none", "rotate", "noise", "blur", "colour", "scale"] = Field(
        "none", description="how inputs look different at each client; for numbers: noise or scale"
    )
    shift_strength: Fraction = Field(0.5, description="how far clients are apart in what data.shift changes, up to 1")
    label_noise: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of a noisy client's training labels that are wrong"
    )
    noisy_clients: Fraction = Field(0.5, description="share of the clients that data.label_noise concerns")
    limit: Count | None = Field(None, description="largest number of training images, the same for each class")
    test_limit: Count | None = Field(None, description="largest number of images of the balanced test set")
    size: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="resize images to size × size pixels")
    normalize: Literal["half", "imagenet", "none"] = Field(
        "half",
        description="(x − 0.5)/0.5 per channel, ImageNet's mean and std, or only x/255; 'none' also leaves the "
        "numbers of run(data=...) as they are",
    )
    augment: Literal["none", "crop_flip"] = Field("none", description="random crop and flip of training batches")
    kind: Literal["image", "table", "text", "signal", "sound"] | None = Field(
        None, description="what the samples are; left out: found from the columns"
    )
    fit: Literal["shared", "own"] = Field(
        "shared",
        description="inputs are standardised by statistics of all sites together, or each site's by its own, which "
        "then leave it in no form",
    )
    categories: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="columns whose numbers are names of categories, such as codes"
    )
    leave_out: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="columns of a table that the model does not get"
    )
    tokenizer: str | None = Field(
        None, description="of texts, a Hugging Face one: a tokenizer.json or an id of the hub; left out: hashed words"
    )
    length: Annotated[int, Field(ge=8, le=2**20)] | None = Field(
        None, description="texts: bytes to read of each; signals and sound: steps in a window"
    )
    rate: Annotated[Positive, Field(le=1e6)] | None = Field(
        None, description="resample signals and sound to this many steps a second; sound: 8000 if left out"
    )
    column: str | None = Field(
        None, description="the column of images, texts, signals or sounds, if it is not found by itself"
    )
    image_column: str | None = Field(None, description="an older name of data.column")
    label_column: str | None = Field(None, description="the column of labels, if it is not found by itself")
    site_column: str | None = Field(
        None, description="a column that names each sample's site: every site is a client, nothing is drawn"
    )

    def describe(self) -> str:
        """How the data is dealt out and changed, in a few words."""
        return ", ".join([self.dealt(), *self.alterations()])

    def dealt(self) -> str:
        """How it is dealt out."""
        sizes = None if self.size_alpha is None else f"sizes with alpha = {self.size_alpha:g}"
        details = {
            "dirichlet": ", ".join(filter(None, [f"alpha = {self.alpha:g}", sizes])),
            "quantity": sizes or "skewed sizes",
            "shards": f"{self.shards} classes each",
        }
        if self.site_column is not None:
            return f"one for each {self.site_column}"
        return details.get(self.partition, self.partition)

    def alterations(self) -> list[str]:
        """What is special about the clients or changed of their data, a few words each."""
        noisy = f"{100 * self.label_noise:g} % wrong labels at {100 * self.noisy_clients:g} % of them"
        special = {
            f"{self.unseen} of them unseen": self.unseen,
            f"a long tail of {self.imbalance:g} to 1": self.imbalance > 1,
            f"each with a {self.shift} of its own": self.shift != "none",
            noisy: self.label_noise,
        }
        return [words for words, is_so in special.items() if is_so]


class ModelSettings(Section):
    """The encoder."""

    name: str = Field("auto", description="see: fedetf list models; auto: the one that fits the kind of data")


class TrainSettings(Section):
    """The rounds, and the local SGD (appendix B of the paper)."""

    rounds: Annotated[Times, Field(ge=1)] = Field(50, description="T, communication rounds")
    epochs: Annotated[Epochs, Field(gt=0)] = Field(3, description="E, local epochs a round; may be a part of one")
    steps: Annotated[Times, Field(ge=1)] | None = Field(
        None, description="local steps a round, the same number for every client; instead of train.epochs"
    )
    patience: Times = Field(
        0, description="stop after this many rounds without a better validation accuracy; 0: never stop early"
    )
    participation: Fraction = Field(1.0, description="share of the clients that takes part in a round")
    batch_size: Count = Field(128, description="local batch size")
    lr: NonNegative = Field(0.01, description="learning rate of the first round")
    lr_decay: Positive = Field(0.99, description="factor on the learning rate after each round")
    lr_head: NonNegative = Field(1.0, description="learning rate of the head, as a multiple of the encoder's")
    optimiser: Literal["sgd", "adam", "adamw"] = Field("sgd", description="of local training")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="momentum of local SGD, from zero in each round"
    )
    keep_momentum: bool = Field(
        False, description="true: a client keeps its optimiser's state, such as momentum, from round to round"
    )
    weight_decay: NonNegative = Field(5e-4, description="weight decay of local training, on every trained tensor")
    sam: NonNegative = Field(
        0.0,
        description="ρ of SAM: take the gradient at the worst point this far away, e.g. 0.05; 0: no SAM",
    )

    def rate(self, round: int) -> float:
        """The learning rate of a round; that after the last is the personal stage's."""
        return float(self.lr * self.lr_decay ** (round - 1))

    def images(self, samples: int) -> int:
        """How many images a client with ``samples`` trains on in one round of one phase, or slightly more."""
        batch = min(self.batch_size + 1, samples)  # a single sample that is left over joins a batch
        return max(math.ceil(self.epochs * samples), batch) if self.steps is None else self.steps * batch

    def describe(self) -> str:
        """How long the training is, in a few words."""
        local = counted(self.epochs, "epoch") if self.steps is None else counted(self.steps, "step")
        rounds = f"{counted(self.rounds, 'round')} of {local}"
        return f"{rounds}, patience {self.patience}" if self.patience else rounds


class MethodSettings(BaseModel):
    """The method and its own numbers, which the method itself checks."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field("fedetf", description="see: fedetf list methods")

    @model_validator(mode="after")
    def _hold_values(self) -> "MethodSettings":
        for name, value in (self.model_extra or {}).items():
            if isinstance(value, dict):
                raise PydanticCustomError("section", "{name} is a value, not a section", {"name": repr(name)})
        return self


class UpdateSettings(Section):
    """What becomes of a client's update on its way to the server."""

    max_ratio: Positive = Field(
        1e6, description="refuse an update whose norm is more than this many times the received model's"
    )
    top_k: Fraction = Field(1.0, description="share of each tensor's entries that is sent, the largest; 1: all")
    bits: Literal[1, 2, 4, 8, 32] = Field(32, description="bits for each number that is sent; 32: as it is")
    transform: str | None = Field(
        None, description="another transform, applied before top_k and bits; see: fedetf list transforms"
    )
    clip: Positive | None = Field(None, description="largest length of an update; a longer one is scaled down to it")
    noise: NonNegative = Field(
        0.0, description="noise on the mean of the updates, as a multiple of update.clip: differential privacy"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="with noise: of (epsilon, delta)")

    @model_validator(mode="after")
    def _make_sense_together(self) -> "UpdateSettings":
        if self.noise and self.clip is None:
            raise PydanticCustomError("noise", "noise needs a bound on every update; set update.clip too")
        if self.noise and (self.top_k < 1 or self.bits < 32 or self.transform is not None):
            raise PydanticCustomError(
                "noise", "what compression keeps back for the next round would escape the clipping; choose either"
            )
        return self


class ServerSettings(Section):
    """How the server makes one model of many, and how it moves to it."""

    combine: Literal["mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "centred_clip"] = (
        Field("mean", description="rule for combining models; all but mean tolerate some faulty ones")
    )
    faulty: Annotated[int, Field(ge=0, le=2**31)] | None = Field(
        None, description="number of faulty updates that trimmed_mean, krum and multi_krum tolerate; left out: a fifth"
    )
    radius: Positive = Field(10.0, description="how far one update can pull the centre of centred_clip")
    weights: Literal["size", "uniform", "disco"] = Field(
        "size",
        description="a model's weight in the mean: its samples, equal for all, or less for a skewed class mix",
    )
    disco_a: NonNegative = Field(0.5, description="of disco: how much a skewed class mix counts against a client")
    disco_b: NonNegative = Field(1.0, description="of disco: what every client gets, divided by their number")
    optimiser: Literal["none", "momentum", "adagrad", "adam", "yogi"] = Field(
        "none", description="the server's step towards the combined model; none: it takes that model"
    )
    lr: NonNegative | None = Field(
        None, description="of the server's optimiser; left out: 1 for momentum, 0.1 for adagrad, 0.01 for adam and yogi"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of server.optimiser = 'momentum'")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of adam and yogi")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.99, description="of adam and yogi")
    eps: Positive = Field(1e-3, description="of adagrad, adam and yogi")


class PersonalSettings(Section):
    """The personal stage after the last round (Algorithm 2 for FedETF)."""

    enabled: bool = Field(True, description="false leaves the stage out")
    epochs: Epochs | None = Field(None, description="epochs of each phase; left out: as in a round")
    lr: NonNegative | None = Field(None, description="learning rate; left out: the decayed one of round T+1")
    rounds: Times = Field(20, description="T_p, turns of ETF and projection (FedETF)")
    lr_etf: NonNegative = Field(0.1, description="learning rate of the ETF's turn (FedETF)")
    lr_proj: NonNegative = Field(0.05, description="learning rate of the projection's turn (FedETF)")


class SystemSettings(Section):
    """How clients behave; for simulations."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="probability that a participant fails in a round: it receives the model and sends nothing"
    )
    stragglers: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="probability that a participant finishes only a part of its local training, a random one"
    )


class EngineSettings(Section):
    """Where client steps run."""

    name: Literal["auto", "serial", "processes", "ray"] = Field(
        "auto",
        description="in this process, in worker processes, or on a Ray cluster; auto: processes if several can work",
    )
    workers: Count | None = Field(None, description="number of parallel workers; left out: one for each core")
    device: str = Field(
        "auto", description="cpu, cuda, cuda:1, mps, or several: cuda:0,cuda:1; auto takes the first there is"
    )
    threads: Annotated[Count, Field(le=4096)] = Field(
        1, description="CPU threads of a worker; results can depend on it in the last bits"
    )
    compile: Literal["auto"] | bool = Field(
        "auto",
        description="a faster training step: by fused kernels where there are some (auto), else torch.compile (true)",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of the encoder's training; the others are mixed precision, for GPUs that are fast at it"
    )
    checkpoint: Count = Field(1, description="rounds between checkpoints; the last round always has one")
    address: Address | None = Field(
        None, repr=False, description="of a Ray cluster, for example 'auto'; left out: one on this machine"
    )


class MeasureSettings(Section):
    """What is measured and recorded."""

    every: Count = Field(
        1, description="rounds between measurements of general accuracy; the last five are always measured"
    )
    metrics: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        ("accuracy",), description="what is measured, by name, or FILE.py:NAME of your own; accuracy always is"
    )
    collapse: bool = Field(False, description="true: the metrics collapse and consistency as well")
    tensorboard: bool = Field(True, description="write TensorBoard events into the run folder")
    mlflow: Address | None = Field(
        None, repr=False, description="an MLflow tracking URI to log to as well; needs fedetf[mlflow]"
    )

    wandb: Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")] | None = Field(
        None, description="a project, or TEAM/PROJECT, of Weights & Biases to log to as well; needs fedetf[wandb]"
    )

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of all metrics that are asked for."""
        return (*self.metrics, "collapse", "consistency") if self.collapse else self.metrics

    def due(self, t: int, rounds: int) -> bool:
        """Whether round ``t`` of ``rounds`` is measured."""
        return t % self.every == 0 or t > rounds - LAST


class Settings(Section):
    """Everything that determines a run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(7, description="seed of every random draw")
    fidelity: Literal["paper", "authors"] = Field(
        "paper", description="methods as their papers have them, or as in the FedETF authors' code"
    )
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    method: MethodSettings = MethodSettings()
    update: UpdateSettings = UpdateSettings()
    server: ServerSettings = ServerSettings()
    personal: PersonalSettings = PersonalSettings()
    system: SystemSettings = SystemSettings()
    engine: EngineSettings = EngineSettings()
    measure: MeasureSettings = MeasureSettings()

    @model_validator(mode="after")
    def _have_consent(self, info: ValidationInfo) -> "Settings":
        """Whoever makes settings says which of them may bring code; by default none may."""
        origin: Origin = info.context or Origin()
        values = {key: self._get(key) for key in (*CODE, "engine.name")}
        asked = {key: name for key, name in asks_for_code(values).items() if key not in origin.trusted}
        if asked:
            raise PydanticCustomError("consent", "{text}", {"text": origin.question(asked)})
        return self

    @model_validator(mode="after")
    def _noise_needs_the_mean(self) -> "Settings":
        if self.update.noise and self.server.combine != "mean":
            raise PydanticCustomError("noise", "update.noise is made for server.combine = 'mean'; choose either")
        return self

    def _get(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name, None)

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> "Settings":
        if self.train.patience and not self.data.validation_fraction:
            raise PydanticCustomError(
                "patience", "train.patience needs a validation split; set data.validation_fraction too, such as 0.2"
            )
        if self.train.patience and self.measure.every > 1:
            raise PydanticCustomError("patience", "train.patience looks at every round; leave out measure.every")
        return self

    @model_validator(mode="after")
    def _disco_needs_honest_clients(self) -> "Settings":
        if self.server.weights == "disco" and self.update.noise:
            raise PydanticCustomError(
                "disco", "server.weights = 'disco' needs a number of each client that no noise covers; choose either"
            )
        if self.server.weights == "disco" and self.server.combine != "mean":
            raise PydanticCustomError(
                "disco", "server.weights = 'disco' is made for server.combine = 'mean'; choose either"
            )
        return self

    @model_validator(mode="after")
    def _can_be_written(self) -> "Settings":
        """A run writes its settings down; what TOML has no word for would end it only then."""
        for key, value in flat(self.model_dump(exclude_none=True)).items():
            try:
                tomli_w.dumps({key: value}).encode()
            except (TypeError, ValueError, RecursionError):
                text = "{key} cannot be written to a file: it holds null, or a name that is not UTF-8; change it"
                raise PydanticCustomError("unwritable", text, {"key": key}) from None
        return self

    def portable(self) -> dict[str, Any]:
        """What a model's file says of its run: all but what concerns the machine, and of the data's path its end."""
        tree = self.model_dump(exclude_none=True, exclude={"engine", "measure"})
        tree["data"]["name"] = bare(self.data.name)
        if self.data.tokenizer is not None:
            tree["data"]["tokenizer"] = bare(self.data.tokenizer)
        return tree

    def to_toml(self) -> str:
        """The settings as TOML, without passwords; values that are left out are derived from others."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


ADDRESSES = frozenset({"engine.address", "measure.mlflow"})  # they may hold a password; what decides: runs/identity.py


def flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Nested settings by dotted key.

    >>> flat({"seed": 7, "data": {"name": "digits"}})
    {'seed': 7, 'data.name': 'digits'}
    """
    values: Tree = {}
    for key, value in tree.items():
        values.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return values
