"""A trained model in use: ``fedetf.load`` gives one that takes raw inputs and answers with probabilities."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedetf.config import resolve, stored_settings
from fedetf.core.state import State, load_checked
from fedetf.data.decode import picture_pixels
from fedetf.data.folders import IMAGE_ENDINGS
from fedetf.data.frames import Frame, joined
from fedetf.data.kinds import KINDS, Note, Raw
from fedetf.data.own import as_table
from fedetf.data.sources import TABLES
from fedetf.engines.job import Prepare, build_net, input_shape, preparation
from fedetf.errors import UserError
from fedetf.features import with_encoder
from fedetf.files import UnfitFile, below, is_file, real_folder, stamp
from fedetf.methods import Method, find_method, is_method, method_of
from fedetf.nn.encoders import encoder_shapes, is_model, own_encoder
from fedetf.nn.heads import Net
from fedetf.own_code import CODE, is_own
from fedetf.runs.read import config_of, read_holdings, read_result
from fedetf.runs.records import MOST_INPUTS, RESULT, ModelNote, fitting
from fedetf.settings import Settings

BATCH, NUMBERS = 500, 2**24  # inputs answered at a time, and the numbers in them: a file may claim large ones
MANY_CLASSES = 1000  # a head of fewer is made in no time; looking first would cost seconds of imports


@dataclass(frozen=True)
class Inputs:
    """What a model takes: images ``(channels, height, width)`` of uint8, or other shapes of float32."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    note: Note | None = None  # how rows of a table are read and prepared; None: images, or numbers as they are

    @property
    def are_images(self) -> bool:
        """Whether files of images can be read for it."""
        return self.note is None and self.dtype == torch.uint8

    @property
    def at_once(self) -> int:
        """How many are read and answered at a time."""
        return max(1, min(BATCH, NUMBERS // prod(self.shape)))

    def example(self, count: int = 2) -> Tensor:
        """Zeros of that kind."""
        return torch.zeros(count, *self.shape, dtype=self.dtype)


class Model(nn.Module):
    """A trained model with its preprocessing: raw inputs in, probabilities out.

    Called with a batch as the data pipeline stores it, uint8 images ``[n, channels, height, width]`` or float32
    ``[n, …]``, it gives probabilities ``[n, classes]``; :meth:`logits` gives what is before the softmax. It is in eval
    mode, and an ordinary module: ``model.to("cuda")`` works.
    """

    def __init__(self, net: Net, method: Method, personal: bool, prepare: Prepare, inputs: Inputs, classes: list[str]):
        super().__init__()
        self.net = net
        self.prepare = prepare
        self.inputs = inputs
        self.classes = classes
        self._method = method
        self._personal = personal
        self.eval()

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``[n, classes]`` of raw inputs."""
        if self.inputs.dtype == torch.float64 and x.is_floating_point():
            x = x.double()  # a table's numbers may come with fewer digits
        if tuple(x.shape[1:]) != self.inputs.shape or x.dtype != self.inputs.dtype:
            wanted = f"[n, {', '.join(map(str, self.inputs.shape))}] {self.inputs.dtype}"
            raise UserError(f"the model takes raw inputs {wanted}, not {list(x.shape)} {x.dtype}")
        return self.logits_of_prepared(self.prepare(x))

    def logits_of_prepared(self, x: Tensor) -> Tensor:
        """The same of what preparation gives."""
        return self._method.logits(self.net, self.net.encoder(x), self._personal)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities ``[n, classes]`` of raw inputs."""
        return self.logits(x).softmax(dim=1)

    def rows(self, data: Any) -> Tensor:
        """Probabilities ``[rows, classes]`` of the rows of a table as people have it.

        ``data`` is a DataFrame or the path of a CSV or Parquet file with the columns that the model was trained on;
        other columns are ignored. Where a row is cut into windows, their mean is the answer.
        """
        note = self.inputs.note
        if note is None:
            raise UserError(f"the model takes raw inputs of shape {self.inputs.shape}, not the rows of a table")
        frame = data if isinstance(data, Frame) else as_table(data, "the table")
        frame.check_rows()
        step = self.inputs.at_once
        return torch.cat([self._some_rows(note.read(frame.part(k, step))) for k in range(0, len(frame), step)])

    def _some_rows(self, raw: Raw) -> Tensor:
        with torch.no_grad():
            answers = torch.cat([self(x) for x in raw.x.split(self.inputs.at_once)])
        counts = torch.from_numpy(np.bincount(raw.rows))  # of windows
        total = torch.zeros(len(counts), answers.shape[1]).index_add_(0, torch.from_numpy(raw.rows), answers)
        return total / counts[:, None]


def load(
    path: str | os.PathLike[str],
    client: int | str | None = None,
    *,
    method: type[Method] | None = None,
    model: nn.Module | None = None,
    trust_code: bool = False,
) -> Model:
    """The global model of a run folder, or a client's personal one, ready to call.

    Parameters
    ----------
    path:
        The folder of a run that is done, or a ``.safetensors`` file: one that ``fedetf export`` wrote, or the personal
        model that a real site keeps.
    client:
        Whose personal model, by number or by the name of its site; None for the global one.
    method:
        The same class that the run was given in Python, if it was given one: files hold no code.
    model:
        Likewise the same encoder.
    trust_code:
        Import and run the code that the file names (``FILE.py:NAME``), if it names any. Without it, such a file is
        refused, and loading runs no code but that of fedetf and of installed methods.

    Returns
    -------
    A :class:`fedetf.models.load.Model`: uint8 images ``[n, channels, height, width]`` (or float32 ``[n, …]``) to
    probabilities ``[n, classes]``. ``model.classes`` are the names of the classes.

    Examples
    --------
    >>> import fedetf, torch
    >>> folder = getfixture("tmp_path") / "run"
    >>> result = fedetf.run(clients=3, rounds=1, epochs=1, out=folder, settings={"personal.rounds": 1})
    >>> model = fedetf.load(folder, client=2)
    >>> with torch.no_grad():
    ...     probabilities = model(result.job.dataset.test.x[:5])  # uint8 images [5, 1, 8, 8]
    >>> probabilities.shape, model.classes[0]
    (torch.Size([5, 10]), '0')
    """
    return load_saved(Path(path), client, method, model, trust_code)[1]


def load_saved(
    path: Path, client: int | str | None, method: type[Method] | None, model: nn.Module | None, trust_code: bool
) -> tuple["SavedModel", Model]:
    """A model's file, and the model; the arguments are those of :func:`load`."""
    at_hand = {"method.name": method, "model.name": model}  # no data is loaded, no engine started
    unused = [key for key in CODE if key not in at_hand or at_hand[key] is not None]
    file = _saved_model(path, client, trust_code, unused)
    return file, ready(file, method, model)


def ready(file: "SavedModel", method: type[Method] | None, model: nn.Module | None) -> Model:
    """The model of a file, ready to call; the rest as for :func:`load`."""
    settings = file.settings
    kind = method or (find_method(settings.method.name) if is_method(settings.method.name) else None)
    if kind is None or (model is None and not is_model(settings.model.name)):
        missing = "method" if kind is None else "model"
        raise UserError(f"{file.path} was given its {missing} in Python; load it with fedetf.load(..., {missing}=...)")
    if file.client is None and not kind.has_global:
        raise UserError(f"{settings.method.name} has no global model; choose a client's, with --client K (client=K)")
    built = method_of(settings, kind if method else None)
    note = _note(file)
    if note is not None and note.fitted and file.client is None and settings.data.fit == "own":
        raise UserError(
            f"{file.path} was trained with data.fit = 'own': each site prepares rows by statistics that it tells "
            "nobody, so that only its own model takes them; choose one, with --client K (client=K)"
        )
    inputs = Inputs(tuple(file.about.shape), getattr(torch, file.about.dtype), note)
    seen = input_shape(inputs.example(), note)  # by the encoder
    encoder = model if model is not None else own_encoder(settings.model.name, seen, settings.seed)
    classes = file.about.classes
    if encoder is None:
        _check_encoder(file, seen, note)
    if len(classes) > MANY_CLASSES and encoder is None and not is_own(settings.method.name) and method is None:
        _check_head(file, built, inputs)
    net = build_net(settings, built, inputs.example(), len(classes), encoder, note)
    try:
        net.load_state_dict(with_encoder(net, file.state))
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n")[1:2]).strip()
        raise UserError(f"{file.path} does not fit the encoder {settings.model.name}: {reason}") from None
    prepare = preparation(settings, net.encoder, inputs.shape, torch.device("cpu"), note)
    return Model(net, built, file.client is not None, prepare, inputs, classes)


def _note(file: "SavedModel") -> Note | None:
    """How inputs are read and prepared, as the file says, if it says so."""
    about = file.about.inputs
    if about is None:
        return None
    kind = KINDS.get(str(about.get("kind")))
    if kind is None:
        raise UnfitFile(f"{file.path} is damaged (inputs)")
    note = fitting(kind, about, str(file.path))
    if not note.prepared and (list(note.shape), str(note.dtype)) != (file.about.shape, f"torch.{file.about.dtype}"):
        raise UnfitFile(f"{file.path} is damaged: its inputs are not of its shape")
    return note


def _check_encoder(file: "SavedModel", seen: tuple[int, ...], note: Note | None) -> None:
    """Refuse a file whose tensors are not those of its encoder, before memory is taken for what it claims to be."""
    kind, blocks = (None, ()) if note is None else (note.kind, note.blocks)
    for name, shape in encoder_shapes(file.settings.model.name, seen, kind, blocks).items():
        stored = file.state.get(f"encoder.{name}")
        if stored is None or stored.shape != shape:
            raise UnfitFile(f"{file.path} is damaged: it holds no encoder {file.settings.model.name} for such inputs")


def _check_head(file: "SavedModel", method: Method, inputs: Inputs) -> None:
    """Refuse a file that names more classes than its head has, before an ETF of that size is made."""
    with torch.device("meta"):  # shapes without memory
        net = build_net(file.settings, method, inputs.example(), len(file.about.classes), None, inputs.note)
    head = net.head.state_dict()
    for name, tensor in head.items():
        stored = file.state.get(f"head.{name}")
        if stored is None or stored.shape != tensor.shape:
            raise UnfitFile(f"{file.path} is damaged: it holds no head for {len(file.about.classes):,} classes")


@dataclass(frozen=True)
class SavedModel:
    """A model's file, and the settings of the run that it is from."""

    path: Path
    settings: Settings
    about: ModelNote
    state: State
    client: int | None
    accuracy: float | None  # the personal one of a client's model, the general one of the global


def _saved_model(path: Path, client: int | str | None, trust_code: bool, unused: Collection[str]) -> SavedModel:
    """The model's file in a run folder, or an exported file, which carries its settings."""
    if path.is_file():
        about, state = _read(path, links=True)
        if about.settings is None:
            raise UserError(f"{path} is a file of a run; give the folder of the run")
        if client is not None:
            raise UserError(f"{path} holds one model; leave the client out")
        settings = stored_settings(about.settings, str(path), trust_code, unused)
        return SavedModel(path, settings, about, state, about.client, about.accuracy)
    config = config_of(path)
    if stamp(path / RESULT) is None:  # what is there and unfit is named when it is read
        raise UserError(f"the run in {path} is not done; finish it with: fedetf resume {path}")
    file = path / "model.safetensors"
    if client is not None:
        client = _number(path, client)
        file = real_folder(path / "personal") / f"{client}.safetensors"
        if not is_file(file):
            raise UserError(_no_client(path, client))
    about, state = _read(file)
    settings = resolve(str(config), trust_code=trust_code, unused=unused)
    result = read_result(path)
    if client is not None:
        majority = dict(enumerate(result.majority_per_client)).get(client)
        about = about.model_copy(update={"majority": majority})
        return SavedModel(file, settings, about, state, client, about.accuracy)
    recalls = result.recall_per_class or []
    known = {
        "recalls": recalls if len(recalls) == len(about.classes) else [],
        "site_accuracies": _by_site(about, result.personal_per_client),
        "site_general": _by_site(about, result.per_client.general.get("accuracy", [])),
        "site_majority": _by_site(about, result.majority_per_client),
    }
    about = about.model_copy(update=known)
    return SavedModel(file, settings, about, state, None, result.general)


def _by_site(about: ModelNote, values: Sequence[float | None]) -> dict[str, float]:
    """The values of clients by the names of their sites, where they have any."""
    return {name: value for name, value in zip(about.sites, values, strict=False) if value is not None}


def _number(path: Path, client: int | str) -> int:
    """A client's number, of its name as well."""
    sites = _sites(path)
    if client in sites:
        return sites.index(str(client))
    try:
        return int(client)
    except ValueError:
        raise UserError(_no_client(path, client)) from None


def _sites(path: Path) -> list[str]:
    """The names of the clients, where they have any."""
    return read_holdings(path).sites


def _no_client(path: Path, client: int | str) -> str:
    if not (path / "personal").is_dir():
        return f"{path} has no personal models; leave the client out"
    clients = read_result(path).clients
    named = f", or by name: {', '.join(_sites(path))}" if _sites(path) else ""
    return f"{path} has no client {client}; clients are 0 to {clients - 1}{named}"


def _read(path: Path, links: bool = False) -> tuple[ModelNote, State]:
    about, state = load_checked(path.resolve() if links else path)
    if "shape" not in about:
        raise UserError(f"{path} was written by an older fedetf and does not say what it takes; run it again")
    note = fitting(ModelNote, about, str(path))
    if prod(note.shape) > MOST_INPUTS:
        raise UnfitFile(f"{path} is damaged: its model would take {prod(note.shape):,} numbers at once")
    return note, state


def image_files(paths: Sequence[Path]) -> list[Path]:
    """The files among ``paths``, and of each folder among them all images in it and below, by name."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        images = sorted(image for image in below(path) if image.suffix.lower() in IMAGE_ENDINGS)
        if not images:
            raise UserError(f"there is no image in {str(path)!r}; give files of images, or folders of them")
        files += images
    return files


def read_tables(paths: Sequence[Path], note: Note) -> tuple[list[str], Frame]:
    """The rows of CSV and Parquet files, or files of texts or sounds; and what each row is called."""
    tables = [path for path in paths if path.suffix.lower() in TABLES]
    if len(tables) == len(paths):
        frames = [as_table(path, str(path)) for path in paths]
        places = [(frame, row) for frame in frames for row in range(1, len(frame) + 1)]
        names = [str(row) if len(paths) == 1 else f"{frame.where}:{row}" for frame, row in places]
        return names, frames[0] if len(frames) == 1 else joined(frames, "the tables")
    if tables:
        raise UserError("give either tables or single files, not both at once")
    for path in paths:
        if not path.is_file():
            raise UserError(f"no file {str(path)!r}; give CSV or Parquet files, or single files of the model's kind")
    return [str(path) for path in paths], note.of_files(paths)


def read_images(paths: Sequence[Path], inputs: Inputs) -> Tensor:
    """Files of images as the model takes them, ``[n, channels, height, width]``; other sizes are resized.

    Grey images become colour for a model of colour images, as in training. The other way round something would be
    lost, so it is an error.
    """
    if not inputs.are_images or len(inputs.shape) != 3:
        raise UserError(f"the model takes numbers of shape {inputs.shape}, not images; use fedetf.load in Python")
    channels, height, width = inputs.shape
    blocks = []
    for path in paths:
        if not path.exists():
            raise UserError(f"no file {str(path)!r}; give files of images")
        pixels = picture_pixels(path, (width, height), str(path))
        if pixels.shape[2] > channels:
            raise UserError(f"{path} is in colour, but the model was trained on grey images; convert it to grey")
        blocks.append(np.repeat(pixels, channels, axis=2) if pixels.shape[2] < channels else pixels)
    return torch.from_numpy(np.stack(blocks)).permute(0, 3, 1, 2)
