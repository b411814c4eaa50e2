"""A look at a site's data before the first round: what there is, what cannot be read, what does not fit the others."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedetf.data.decode import picture_pixels, unlabelled
from fedetf.data.frames import Frame
from fedetf.data.kinds import Note, Roles, begin
from fedetf.data.load import pictures_of, share_roles
from fedetf.data.oddities import NAME_OF_A_ROW, is_name_of_a_row
from fedetf.errors import UserError, visible
from fedetf.files import read_toml
from fedetf.flower.federate import Federate
from fedetf.flower.site import check_agreed, is_named, site_job, site_sums
from fedetf.settings import DataSettings, Settings

MOST_NAMED = 5  # files, sizes or labels with the same problem
IMAGES = "image"


@dataclass
class Checked:
    """What was found; nothing is wrong if there are no problems."""

    kind: str = ""
    samples: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # by class, the most frequent first
    notes: list[str] = field(default_factory=list)
    columns: list[list[str]] = field(
        default_factory=list
    )  # of a table: name, content and missing values, after a header
    problems: list[str] = field(default_factory=list)


def check_data(data: str, app: Path | None = None, chosen: Settings | None = None) -> Checked:
    """Look at the data of one site; ``app`` is the folder of the app, which says what the federation agreed on.

    ``chosen``: the settings, where there is no app to say them.
    """
    federate, settings = (None, chosen or Settings()) if app is None else _agreed(app)
    if federate is not None and is_named(settings, data):
        return _named(federate, settings, data)
    path = Path(data).expanduser()
    frame, roles = share_roles(path, settings.data)
    checked = Checked(roles.kind, len(frame))
    _look_at_labels(checked, frame, roles, federate)
    if roles.kind == IMAGES:
        _look_at_images(checked, frame, roles, settings.data)
    else:
        _look_at_rows(checked, frame, roles, settings.data)
    if federate is not None and not checked.problems:
        _look_as_a_site(checked, federate, settings, data)
    return checked


def _agreed(app: Path) -> tuple[Federate, Settings]:
    """What the app's two files say. Code that they name is not run here."""
    path = app / "pyproject.toml"
    try:
        config = read_toml(path, links=True)["tool"]["flwr"]["app"]["config"]
    except (FileNotFoundError, KeyError, TypeError):
        raise UserError(f"{path} is missing, or not of an app; give the folder that fedetf flower new made") from None
    federate = Federate.of(config)
    return federate, federate.settings(app / "settings.toml", trust_code=False)


def _named(federate: Federate, settings: Settings, data: str) -> Checked:
    """The dataset that the settings name, of which every site takes its share to try things out."""
    job = site_job(federate, settings, 0, data)
    check_agreed(job.dataset, federate, data)
    kind = IMAGES if job.dataset.note is None else job.dataset.note.kind
    counts = np.bincount(job.dataset.train.y, minlength=len(federate.classes)).tolist()
    note = "the dataset that the settings name, of which every site takes its share, to try things out"
    return Checked(kind, len(job.dataset.train), dict(zip(federate.classes, counts, strict=True)), [note])


def _look_at_labels(checked: Checked, frame: Frame, roles: Roles, federate: Federate | None) -> None:
    labels = frame.named(roles.label)
    checked.problems += filter(None, [unlabelled(labels)])
    there = [label for label in labels if label is not None]
    checked.counts = {visible(name): count for name, count in Counter(there).most_common()}
    if federate is None:
        return
    for name in sorted(set(there) - set(federate.classes))[:MOST_NAMED]:
        shown = f"the label {visible(name)!r} ({there.count(name)} samples)"
        checked.problems.append(f"{shown} is none of the classes: {', '.join(federate.classes)}")
    absent = [name for name in federate.classes if name not in there]
    if absent:
        checked.notes.append(f"no samples of: {', '.join(absent)}; a site need not hold all classes")


def _look_at_images(checked: Checked, frame: Frame, roles: Roles, settings: DataSettings) -> None:
    """Decode every image, one at a time: damaged ones are counted and named, and sizes counted."""
    sizes: Counter[str] = Counter()
    unreadable = []
    for number, picture in enumerate(pictures_of(frame, roles.columns[0]), start=1):
        try:
            if picture is None:
                raise UserError(f"row {number} has no image")
            height, width, channels = picture_pixels(picture, None, f"{frame.where}, row {number}").shape
            sizes[f"{channels}x{height}x{width}"] += 1
        except (UserError, OSError) as error:
            unreadable.append(str(error))
    _count_unreadable(checked, unreadable, "images")
    shown = [f"{size} ({count})" for size, count in sizes.most_common(MOST_NAMED)]
    checked.notes.append(f"sizes, channels x height x width: {', '.join(shown)}{_more(len(sizes))}")
    if len({size.split("x", 1)[1] for size in sizes}) > 1 and settings.size is None:
        checked.problems.append("images have several sizes; agree on one, data.size in the settings")


def _look_at_rows(checked: Checked, frame: Frame, roles: Roles, settings: DataSettings) -> None:
    """Read what is no image as a round would; of sounds, which are files, each that cannot be read is named."""
    note = begin(roles.kind, frame, roles.columns, settings)
    if roles.kind == "sound":
        _count_unreadable(checked, _unreadable(frame, roles.columns[0], note), "sounds")
    else:
        try:
            sums = note.sums(note.read(frame).x)
        except UserError as error:
            checked.problems.append(str(error))
            return
        if roles.kind == "table":
            checked.columns = [["column", "holds", "missing"]]
            for column in sums.columns:
                holds = "numbers" if column.categories is None else f"{len(column.categories)} categories"
                seen = holds if column.low is None else f"{holds}, {column.low:g} to {column.high:g}"
                checked.columns.append([visible(column.name), seen, str(column.missing)])
                if column.categories is not None and is_name_of_a_row(len(column.categories), column.count):
                    checked.notes.append(f"another word in every row: {visible(column.name)}; {NAME_OF_A_ROW}")


def _unreadable(frame: Frame, column: str, note: Note) -> list[str]:
    """What is wrong with each row that cannot be read."""
    wrong = []
    for row in range(len(frame)):
        try:
            note.read(frame.take(np.array([row])))
        except UserError as error:
            inner = frame.table[column][row].as_py()
            path = inner.get("path") if isinstance(inner, dict) else None
            where = visible(os.fsdecode(path)) if path else f"row {row + 1}"
            wrong.append(f"{where}: {str(error).rpartition(': row 1: ')[2]}")
    return wrong


def _count_unreadable(checked: Checked, wrong: Sequence[str], what: str) -> None:
    if wrong:
        checked.problems.append(f"{len(wrong)} of {checked.samples} {what} cannot be read:")
        checked.problems += [f"  {line}" for line in wrong[:MOST_NAMED]]
        checked.problems += [f"  and {len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else []


def _look_as_a_site(checked: Checked, federate: Federate, settings: Settings, data: str) -> None:
    """Load the data exactly as the first round does."""
    try:
        if checked.kind == IMAGES:
            job = site_job(federate, settings, 0, data)
            parts = len(job.partition.train[0]), len(job.partition.test[0])
            checked.notes.append(
                f"the site trains on {parts[0]} samples and holds out {parts[1]} to test its own model"
            )
        elif federate.shape is not None:
            checked.problems.append(
                f'the data are of the kind {checked.kind}, but pyproject.toml has a shape; set shape = ""'
            )
        else:
            site_sums(federate, settings, 0, data)
    except UserError as error:
        checked.problems.append(str(error))


def _more(count: int) -> str:
    return f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
