"""The kinds of data: table, text, signal, sound, and images, which need no note.

``find_roles`` says what the columns of a table are for; a kind's :class:`Note` reads, describes and prepares inputs.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from fedetf.data.frames import Frame
from fedetf.data.kinds.base import Note, Raw, Sums
from fedetf.data.kinds.signal import SignalNote
from fedetf.data.kinds.sound import SoundNote
from fedetf.data.kinds.table import TableNote
from fedetf.data.kinds.text import TextNote
from fedetf.errors import UserError
from fedetf.settings import DataSettings

__all__ = ["KINDS", "Note", "Raw", "Roles", "Sums", "TableNote", "begin", "find_roles", "making"]

KINDS: dict[str, type[Note]] = {"table": TableNote, "text": TextNote, "signal": SignalNote, "sound": SoundNote}
HOLDS = {"image": "image", "sound": "sound", "signal": "signal", "text": "words"}  # what the column of a kind holds
LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "y")
TEXT_NAMES = ("text", "sentence", "content", "document", "review", "message", "body")
LONG = 40  # characters: a column of words is one of texts from this mean length on


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for."""

    kind: str
    label: str
    columns: list[str]  # those that the model gets


@contextmanager
def making(kind: str, of: str) -> Iterator[None]:
    """Say in one line that something does not make a note of a kind: too many columns or channels, or too few."""
    try:
        yield
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{of} does not make a {kind} ({place}); check it") from None


def begin(kind: str, frame: Frame, columns: Sequence[str], settings: DataSettings) -> Note:
    """What one party finds in these columns of its own table, before anything is fitted."""
    with making(kind, frame.where):
        return KINDS[kind].begin(frame, columns, settings)


def find_roles(frame: Frame, settings: DataSettings, site: str | None) -> Roles:
    """Find the kind, the label and the inputs of a table, as far as the settings do not name them."""
    frame.check_rows()
    label = find_label(frame, settings.label_column)
    for name in settings.leave_out:
        frame.check(name)
    others = [name for name in frame.columns if name not in {label, site, *settings.leave_out}]
    wanted = settings.column or settings.image_column
    kind = settings.kind or _kind(frame, others if wanted is None else [frame.check(wanted, "column")])
    if kind == "table":
        columns = [name for name in others if frame.holds[name] != "other"]
        if not columns:
            raise UserError(f"{frame.where} has no column besides its labels and sites; a table needs one at least")
        return Roles(kind, label, columns)
    return Roles(kind, label, [_column(frame, kind, others, wanted)])


def find_label(frame: Frame, wanted: str | None) -> str:
    """The column of labels: a usual name first (CIFAR-100's is ``fine_label``), else the only one of classes."""
    if wanted is not None:
        return frame.check(wanted, "label column")
    for name in LABEL_NAMES:
        if name in frame.columns:
            return name
    classes = [name for name in frame.columns if frame.holds[name] == "classes"]
    if len(classes) != 1:
        raise UserError(
            f"{frame.where} has no clear column of labels among: {', '.join(frame.columns)}; "
            "name it with --set data.label_column=…, or as label_column in [data] of the settings"
        )
    return classes[0]


def _kind(frame: Frame, columns: Collection[str]) -> str:
    """What these columns are: the first kind that one of them is of, else a table."""
    contents = {frame.holds[name] for name in columns}
    for kind in ("image", "sound", "signal"):
        if kind in contents:
            return kind
    words = [name for name in columns if frame.holds[name] == "words"]
    named = [name for name in words if name.lower() in TEXT_NAMES]
    is_text = bool(named) or (len(columns) == 1 and bool(words) and _mean_length(frame, words[0]) >= LONG)
    return "text" if is_text else "table"


def _column(frame: Frame, kind: str, columns: Collection[str], wanted: str | None) -> str:
    """The one column of a kind."""
    if wanted is not None:
        candidates = [frame.check(wanted, f"{kind} column")]
    else:
        candidates = [name for name in columns if frame.holds[name] == HOLDS[kind]]
        candidates = (
            sorted(candidates, key=lambda name: name.lower() not in TEXT_NAMES) if kind == "text" else candidates
        )
    if not candidates:
        among = ", ".join(frame.columns)
        raise UserError(f"{frame.where} has no column of {kind}s among: {among}; name it with --set data.column=…")
    if frame.holds[candidates[0]] != HOLDS[kind]:
        actual = frame.table.schema.field(candidates[0]).type
        raise UserError(f"column {candidates[0]!r} of {frame.where} holds no {kind}s; its type is {actual}")
    return candidates[0]


def _mean_length(frame: Frame, column: str) -> float:
    words = [value for value in frame.values(column) if value is not None]
    return sum(map(len, words)) / max(1, len(words))
