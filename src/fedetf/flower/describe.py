"""Before the first round: the sites tell what preparing their inputs takes, and the server fits it once for all.

What leaves a site here is a :class:`fedetf.data.kinds.Sums` of its training split: of each column the name, counts,
sums, squares and the range, or the categories that occur. Images need none of it.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from pydantic import ValidationError

from fedetf.data.fit import fit
from fedetf.data.kinds import KINDS, Note, Sums
from fedetf.errors import RunError, UserError, printable
from fedetf.federation import Federation, Listener
from fedetf.files import UnfitFile, is_file, read_json, write_whole
from fedetf.flower.bounds import in_proportion
from fedetf.flower.federate import Federate
from fedetf.runs.records import fitting
from fedetf.settings import DataSettings

LOG = logging.getLogger("flwr")
DESCRIBE = "query.describe"
PAUSE = 1.0  # seconds between two looks at what has arrived
LARGEST = 2**24  # characters of what a site tells, or of a note
INPUTS = "inputs.json"


class KeptNote(Listener):
    """Writes the note into the run folder, so that a server that starts again asks nobody."""

    def __init__(self, folder: Path, note: Note | None):
        self._path, self._note = folder / INPUTS, note

    def started(self, federation: Federation) -> None:
        """Write it, unless it is there."""
        if self._note is not None and not is_file(self._path):
            write_whole(self._path, (to_json(self._note) + "\n").encode())


def described(federate: Federate, settings: DataSettings, seen: Sequence[int], grid: Grid) -> Note:
    """How the inputs of all sites are prepared: what the run folder says, or what the sites tell now."""
    path = Path(federate.out).expanduser() / INPUTS
    if is_file(path):
        return note_of(read_json(path), str(path))
    told = {client: sums for client, sums in _ask(federate, grid).items() if client in seen}
    if len(told) < federate.min_sites:
        away = printable(", ".join(name for k, name in enumerate(federate.sites) if k not in told))
        raise RunError(f"{len(told)} sites described their data, at least {federate.min_sites} are needed; see: {away}")
    told, odd = in_proportion(told, federate.max_samples)
    for client, names in odd.items():
        what = f"its numbers are left out of the statistics of {', '.join(names)}: far too large, or too many"
        LOG.warning("%s", printable(f"{federate.sites[client]}: {what}"))
    return fit([told[client] for client in sorted(told)], settings)


def to_json(note: Note) -> str:
    """A note as it travels and is kept."""
    return note.model_dump_json()


def note_of(content: object, where: str) -> Note:
    """And back, checked."""
    kind = KINDS.get(str(content.get("kind"))) if isinstance(content, dict) else None
    if kind is None:
        raise UnfitFile(f"{where} is damaged (kind)")
    return fitting(kind, content, where)


def answer(sums: Sums) -> RecordDict:
    """What a site answers."""
    return RecordDict({"sums": ConfigRecord({"json": sums.model_dump_json()})})


def asked_client(message: Message) -> int:
    """The number of the site that is asked."""
    record = message.content.get("order") if message.has_content() else None
    client = record.get("client") if isinstance(record, ConfigRecord) else None
    if type(client) is not int:
        raise RunError("its order is not one of this version of fedetf")
    return client


def _ask(federate: Federate, grid: Grid) -> dict[int, Sums]:
    """What the sites tell, by number; those who do not answer in time are left out."""
    numbers = {name: client for client, name in enumerate(federate.sites)}
    ends = time.monotonic() + federate.join
    while True:
        nodes = {node.name: node.node_id for node in grid.get_nodes() if node.name in numbers}
        if len(nodes) == len(numbers) or time.monotonic() >= ends:
            break
        time.sleep(PAUSE)
    asked = [(name, numbers[name]) for name in federate.sites if name in nodes]
    messages = [
        Message(
            RecordDict({"order": ConfigRecord({"client": client})}),
            dst_node_id=nodes[name],
            message_type=DESCRIBE,
            ttl=federate.deadline,
        )
        for name, client in asked
    ]
    waiting = {message: who for message, who in zip(grid.push_messages(messages), asked, strict=True) if message}
    told: dict[int, Sums] = {}
    ends = time.monotonic() + federate.deadline
    while waiting and time.monotonic() < ends:
        for message in list(waiting):
            reply = next(iter(grid.pull_messages([message])), None)
            if reply is None:
                continue
            name, client = waiting.pop(message)
            try:
                told[client] = _sums(reply)
            except RunError as error:
                LOG.warning("%s", printable(f"{name}: left out of the statistics: {error}"))
        if waiting:
            time.sleep(PAUSE)
    return told


def _sums(reply: Message) -> Sums:
    """What a site's answer says. It comes from outside."""
    if reply.has_error():
        raise RunError(f"failed: {reply.error.reason}")
    record = reply.content.get("sums")
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > LARGEST:
        raise RunError("its answer holds no sums")
    try:
        return Sums.model_validate_json(text)
    except (ValidationError, UserError) as error:
        raise RunError(f"its sums cannot be read: {type(error).__name__}") from None
