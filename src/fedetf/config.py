"""One validated tree of settings: defaults < the dataset's own < a preset or file < flags and ``--set``.

Unknown keys are errors. What comes out is frozen, complete, and can be written as TOML and read again. Settings that
ask for code come into being only with the user's consent, and what is written of an address holds no password.
"""

import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from fedetf.errors import UserError, unknown
from fedetf.files import packaged, read_toml
from fedetf.own_code import CODE, Origin, asks_for_code
from fedetf.redact import HIDDEN, bare, public_address

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, before it moved here
    import tomli as tomllib

Tree = dict[str, Any]

PRESETS = ("presets",)  # folders of the package: what a user may name instead of a file,
KNOWN = ("data", "known")  # and what the runs on a dataset have by default

Count = Annotated[int, Field(ge=1, le=2**31)]  # more of anything is a slip, and would only fill the memory
Times = Annotated[int, Field(ge=0, le=1_000_000)]  # how often something is done
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LAST = 5  # tables report the mean of so many last rounds, as the authors do
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Address = Annotated[str, PlainSerializer(public_address)]  # what is written of it is without user and password


class Section(BaseModel):
    """A part of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class DataSettings(Section):
    """What the clients hold."""

    name: str = Field("digits", description="a dataset's name, a folder, or a hub id")
    clients: Count = Field(20, description="K, the number of clients")
    partition: Literal["dirichlet", "iid", "shards", "given"] = Field(
        "dirichlet", description="who holds what; 'given' is for run(data=...) in Python"
    )
    alpha: Annotated[Positive, Field(le=1e6)] = Field(
        0.1, description="Dirichlet concentration: smaller is more skewed"
    )
    shards: Count = Field(2, description="classes per client, for partition = 'shards'")
    min_size: Count = Field(4, description="fewest samples a client may hold; 4 keeps both splits non-empty")
    strict: bool = Field(False, description="true: a partition that needs a repair is an error")
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(0.3, description="of each client's data")
    limit: Count | None = Field(None, description="use at most so many training images, equally per class")
    test_limit: Count | None = Field(None, description="use at most so many images of the balanced test set")
    size: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="resize images to size × size pixels")
    normalize: Literal["half", "imagenet", "none"] = Field(
        "half", description="(x − 0.5)/0.5 per channel, ImageNet's mean and std, or only x/255"
    )
    augment: Literal["none", "crop_flip"] = Field("none", description="random crop and flip of training batches")
    image_column: str | None = Field(None, description="the column of images, if it is not found by itself")
    label_column: str | None = Field(None, description="the column of labels, if it is not found by itself")
    site_column: str | None = Field(
        None, description="a column that names each sample's site: every site is a client, nothing is drawn"
    )

    def describe(self) -> str:
        """How the data is dealt out, in a few words."""
        if self.site_column is not None:
            return f"one for each {self.site_column}"
        details = {"dirichlet": f"alpha = {self.alpha:g}", "shards": f"{self.shards} classes each"}
        return details.get(self.partition, self.partition)


class ModelSettings(Section):
    """The encoder."""

    name: str = Field("cnn", description="see: fedetf list models")


class TrainSettings(Section):
    """The rounds, and the local SGD (appendix B of the paper)."""

    rounds: Annotated[Times, Field(ge=1)] = Field(50, description="T, communication rounds")
    epochs: Annotated[Times, Field(ge=1)] = Field(3, description="E, local epochs a round")
    participation: Fraction = Field(1.0, description="share of the clients that takes part in a round")
    batch_size: Count = Field(128, description="local batch size")
    lr: NonNegative = Field(0.01, description="learning rate of the first round")
    lr_decay: Positive = Field(0.99, description="factor on the learning rate after each round")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="momentum of local SGD, from zero in each round"
    )
    keep_momentum: bool = Field(False, description="true: a client's momentum lives on in its next round")
    weight_decay: NonNegative = Field(5e-4, description="weight decay of local SGD, on every trained tensor")

    def describe(self) -> str:
        """How long the training is, in a few words."""
        rounds, epochs = ("s" if number != 1 else "" for number in (self.rounds, self.epochs))
        return f"{self.rounds} round{rounds} of {self.epochs} epoch{epochs}"


class MethodSettings(BaseModel):
    """The method and its own numbers, which the method itself checks."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field("fedetf", description="see: fedetf list methods")


class UpdateSettings(Section):
    """What a client may send."""

    max_ratio: Positive = Field(
        1e6, description="an update more than so many times as long as the model it began from is refused"
    )


class PersonalSettings(Section):
    """The personal stage after the last round (Algorithm 2 for FedETF)."""

    enabled: bool = Field(True, description="false leaves the stage out")
    epochs: Times | None = Field(None, description="epochs of each phase; left out: train.epochs")
    lr: NonNegative | None = Field(None, description="learning rate; left out: the decayed one of round T+1")
    rounds: Times = Field(20, description="T_p, turns of ETF and projection (FedETF)")
    lr_etf: NonNegative = Field(0.1, description="learning rate of the ETF's turn (FedETF)")
    lr_proj: NonNegative = Field(0.05, description="learning rate of the projection's turn (FedETF)")


class EngineSettings(Section):
    """Where client steps run."""

    name: Literal["auto", "serial", "processes", "ray"] = Field(
        "auto", description="one after the other here, worker processes, or a Ray cluster; auto: processes on a CPU"
    )
    workers: Count | None = Field(None, description="how many work side by side; left out: one for each core")
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps; auto takes the first there is")
    threads: Count = Field(1, description="CPU threads of a worker; results can depend on it in the last bits")
    compile: bool = Field(
        False, description="a faster training step, by fused kernels or torch.compile; see docs/engines.md"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the encoder's training; bfloat16 is mixed precision, for GPUs that are fast at it"
    )
    checkpoint: Count = Field(1, description="a checkpoint after so many rounds, and after the last")
    address: Address | None = Field(
        None, repr=False, description="of a Ray cluster, for example 'auto'; left out: one on this machine"
    )


class MeasureSettings(Section):
    """What is measured and recorded."""

    every: Count = Field(1, description="general accuracy every so many rounds; the last five always")
    collapse: bool = Field(False, description="true: neural collapse and the clients' agreement as well")
    tensorboard: bool = Field(True, description="write TensorBoard events into the run folder")
    mlflow: Address | None = Field(
        None, repr=False, description="an MLflow tracking URI to log to as well; needs fedetf[mlflow]"
    )

    def due(self, t: int, rounds: int) -> bool:
        """Whether round t of so many is measured."""
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
    personal: PersonalSettings = PersonalSettings()
    engine: EngineSettings = EngineSettings()
    measure: MeasureSettings = MeasureSettings()

    @model_validator(mode="after")
    def _have_consent(self, info: ValidationInfo) -> "Settings":
        """Whoever makes settings says which of them may bring code; by default none may."""
        origin: Origin = info.context or Origin()
        values: Tree = {"method.name": self.method.name, "model.name": self.model.name}
        values |= {"engine.name": self.engine.name, "engine.address": self.engine.address}
        asked = {key: name for key, name in asks_for_code(values).items() if key not in origin.trusted}
        if asked:
            raise PydanticCustomError("consent", "{text}", {"text": origin.question(asked)})
        return self

    def portable(self) -> dict[str, Any]:
        """What a model's file says of its run: all but what concerns the machine, and of the data's path its end."""
        tree = self.model_dump(exclude_none=True, exclude={"engine", "measure"})
        tree["data"]["name"] = bare(self.data.name)
        return tree

    def to_toml(self) -> str:
        """The settings as TOML, without passwords; values that are left out are derived from others."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


ADDRESSES = frozenset({"engine.address", "measure.mlflow"})  # they may hold a password; what decides: runs/identity.py

# How the authors' code trains, where it departs from the paper's text; what it does to methods is methods/authors.py.
AUTHORS: Tree = {"train": {"lr_decay": 1.0, "keep_momentum": True}}


def resolve(
    source: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    trust_code: bool = False,
    unused: Collection[str] = (),
) -> Settings:
    """Put the layers together and check them.

    ``source`` is a preset's name or a TOML file; ``overrides`` maps dotted keys (``"train.lr"``) to values, which the
    user gave. Code that the file asks for is refused without ``trust_code``, but for the keys that are ``unused``.
    """
    chosen = _merge(_read_source(source) if source else {}, _nest(overrides or {}))
    dataset = _find(chosen, "data", "name") or DataSettings().name
    below = _dataset_defaults(dataset)
    if chosen.get("fidelity") == "authors":
        below = _merge(below, AUTHORS)
    return stored_settings(_merge(below, chosen), source or "the settings", trust_code, {*unused, *(overrides or {})})


def stored_settings(tree: Tree, where: str, trust_code: bool, unused: Collection[str]) -> Settings:
    """Settings that a file holds, checked; the last two as for :func:`resolve`."""
    return validated(Settings, tree, context=Origin(where, CODE if trust_code else unused))


def complete(address: str, key: str) -> str:
    """An address of the settings, to connect to; a file holds it without its password."""
    if HIDDEN in address:
        raise UserError(
            f"{address} is on file without its password; give it again: --set {key}=..., see docs/engines.md"
        )
    return address


Model = type[BaseModel]
M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], tree: Mapping[str, Any], where: str = "", context: Any = None) -> M:
    """``model(**tree)``, with what is wrong said in one line."""
    try:
        return model.model_validate(dict(tree), context=context)
    except ValidationError as error:
        raise UserError("; ".join(_explain(model, dict(e), where) for e in error.errors())) from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """Split ``key.path=value``; the value is read as TOML where it can be, as a string elsewhere."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set takes key.path=value, not {text!r}; for example --set train.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        raise UserError(f"--set {key.strip()}: the value is no setting; see: fedetf list settings") from None


def to_toml(value: Any) -> str:
    """A value as :func:`parse_assignment` reads it; TOML has no word for None, and a string will do.

    >>> to_toml("fedavg"), to_toml([0.1, 0.5]), to_toml(True)
    ('"fedavg"', '[0.1, 0.5]', 'true')
    """
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml, value))}]"
    try:
        return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
    except TypeError:
        return str(value)


def preset_names() -> list[str]:
    """What can be named instead of a file: the presets that ship with the package, and the known datasets."""
    return sorted([*_packaged_names(*PRESETS), *known_datasets()])


def known_datasets() -> list[str]:
    """The datasets whose runs have defaults of their own."""
    return _packaged_names(*KNOWN)


def preset_description(name: str) -> str:
    """The first line of a preset, a comment that says what it is."""
    return _preset_text(name).splitlines()[0].lstrip("# ")


def _preset_text(name: str) -> str:
    return packaged(*(KNOWN if name in known_datasets() else PRESETS), f"{name}.toml")


def _read_preset(name: str) -> Tree:
    """Its settings; those of a known dataset are its defaults, and its name."""
    tree = tomllib.loads(_preset_text(name))
    return _merge(tree, {"data": {"name": name}}) if name in known_datasets() else tree


def _packaged_names(*folders: str) -> list[str]:
    """The names of the TOML files in a folder of the package."""
    files = resources.files("fedetf").joinpath(*folders).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _read_source(source: str) -> Tree:
    if source in preset_names():
        return _read_preset(source)
    path = Path(source)
    if not path.exists():
        if path.suffix == ".toml":
            raise UserError(f"no settings file {source!r}; check the path, or see: fedetf list presets")
        raise unknown("preset", source, preset_names())
    return read_toml(path, links=True)  # what a user names, or the settings of a run


def _dataset_defaults(dataset: Any) -> Tree:
    """Those of the known dataset of that name, or of the part before a dash: tiny-imagenet-subset -> tiny-imagenet."""
    if not isinstance(dataset, str):
        return {}  # said later, by the check of all settings
    fits = [name for name in known_datasets() if dataset == name or dataset.startswith(f"{name}-")]
    return tomllib.loads(_preset_text(max(fits, key=len))) if fits else {}


def _nest(flat: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for key, value in flat.items():
        if isinstance(value, Mapping):
            raise UserError(f"{key!r} is a section; give its settings by dotted keys, such as {key}.NAME")
        *path, last = key.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise UserError(f"{key!r} sets something inside {part!r}, which is a value")
        branch[last] = value
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Nested settings by dotted key.

    >>> flat({"seed": 7, "data": {"name": "digits"}})
    {'seed': 7, 'data.name': 'digits'}
    """
    values: Tree = {}
    for key, value in tree.items():
        values.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return values


def _merge(below: Tree, above: Mapping[str, Any]) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _find(tree: Any, *path: str) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _explain(model: Model, error: Mapping[str, Any], where: str) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join([where, *path] if where else path)
    if error["type"] == "consent":
        return str(error["msg"])
    if error["type"] == "extra_forbidden":
        return f"unknown setting {key!r}; {_known_keys(model, path, where)}"
    return f"{key}: {error['msg'][0].lower()}{error['msg'][1:]} (got {error['input']!r})"


def _known_keys(model: Model, path: Sequence[str], where: str) -> str:
    *parents, last = path
    for part in parents:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return "see: fedetf list settings"
        model = annotation
    names = sorted(model.model_fields)
    close = difflib.get_close_matches(last, names, n=1)
    section = ".".join([where, *parents] if where else parents)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}{f'{section} has' if section else 'there are'}: {', '.join(names) or 'no settings of its own'}"


def describe_settings(model: Model = Settings, prefix: str = "") -> list[tuple[str, str, str]]:
    """Every setting as (dotted key, default, what it is)."""
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            rows += describe_settings(type(default), f"{prefix}{name}.")
        else:
            rows.append((prefix + name, "" if default is None else to_toml(default), field.description or ""))
    return rows
