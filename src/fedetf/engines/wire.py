"""How steps, their results and the received model travel between processes: JSON and plain numbers, never pickle.

A message is the length of its head (8 bytes), the head in JSON, and the content of the tensors: of each state one
vector for each type of number, on a boundary of 64 bytes. What many states have in common, names, types and shapes, is
in the head once.
"""

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.core.vectors import alike, joined, parted
from fedetf.engines.steps import Missing, Personal, Result, Scored, Step, Trained
from fedetf.errors import OutOfMemory, RunError, StepError, UserError
from fedetf.methods import Upload

BOUNDARY = 64
Form = tuple[tuple[str, torch.dtype, torch.Size], ...]  # name, type and shape of each tensor


@dataclass(frozen=True)
class Group:
    """The tensors of a state that have one type."""

    dtype: torch.dtype
    names: list[str]
    shapes: list[list[int]]
    size: int  # in bytes


class Message:
    """A message as the pieces that it is made of, which are not copied before it is written."""

    def __init__(self, about: Any, states: Sequence[Mapping[str, Tensor]]):
        forms: dict[Form, int] = {}
        numbers = [forms.setdefault(_form(state), len(forms)) for state in states]
        told = [[(name, str(dtype), shape) for name, dtype, shape in form] for form in forms]
        head = json.dumps({"about": about, "forms": told, "states": numbers}).encode()
        head += b" " * (-(8 + len(head)) % BOUNDARY)
        self._pieces: list[Any] = [len(head).to_bytes(8, "little"), head]
        for state in ({name: tensor.detach().cpu() for name, tensor in state.items()} for state in states):
            for names in alike(state):
                content = joined([state[name] for name in names]).view(torch.uint8).numpy()
                self._pieces += [content.data, bytes(-content.nbytes % BOUNDARY)]
        self.size = sum(map(len, self._pieces))

    def write_to(self, memory: memoryview) -> None:
        """Put it at the beginning of ``memory``, which must be large enough."""
        start = 0
        for piece in self._pieces:
            memory[start : start + len(piece)] = piece
            start += len(piece)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


def read(message: bytearray) -> tuple[Any, list[State]]:
    """What a message says, and its states, whose tensors are views of it: hence memory that may be written to."""
    start = 8 + int.from_bytes(message[:8], "little")
    head = json.loads(message[8:start])
    forms = [_known_form(json.dumps(form)) for form in head["forms"]]
    whole = torch.frombuffer(message, dtype=torch.uint8)
    states: list[State] = []
    for names, groups in (forms[number] for number in head["states"]):
        state: State = dict.fromkeys(names, whole)  # in the order in which they were
        for group in groups:
            vector = whole[start : start + group.size].view(group.dtype)
            state.update(zip(group.names, parted(vector, group.shapes), strict=True))
            start += group.size + -group.size % BOUNDARY
        states.append(state)
    return head["about"], states


def _form(state: Mapping[str, Tensor]) -> Form:
    return tuple((name, tensor.dtype, tensor.shape) for name, tensor in state.items())


@lru_cache
def _known_form(form: str) -> tuple[list[str], list[Group]]:
    """The names of a form in their order, and its tensors by type."""
    tensors = [(name, getattr(torch, dtype.removeprefix("torch.")), shape) for name, dtype, shape in json.loads(form)]
    groups = []
    for dtype in dict.fromkeys(dtype for _, dtype, _ in tensors):
        names, shapes = zip(*((name, shape) for name, its, shape in tensors if its == dtype), strict=True)
        size = sum(map(math.prod, shapes)) * dtype.itemsize
        groups.append(Group(dtype, list(names), list(shapes), size))
    return [name for name, _, _ in tensors], groups


# --- steps and their results ------------------------------------------------------------------------------------------


def pack_model(received: State) -> Message:
    """The model that the following steps start from."""
    return Message(None, [received])


def pack_steps(steps: Sequence[Step], kept: Sequence[State], received: int) -> Message:
    """A request: what to do, with what each client kept, from the ``received``-th model that was sent."""
    return Message({"steps": [step.__dict__ for step in steps], "received": received}, kept)


def unpack_steps(message: bytearray) -> tuple[list[Step], list[State], int]:
    """The steps, what each client kept, and the number of the received model."""
    about, states = read(message)
    return [Step(**step) for step in about["steps"]], states, about["received"]


def pack_results(results: Iterable[Result], warned: Sequence[str]) -> Message:
    """What came of some steps, and the warnings that were given in them."""
    about: list[dict[str, Any]] = []
    states: list[State] = []
    for result in results:
        assert not isinstance(result, Missing)  # workers on the same machine are never left out
        if isinstance(result, Trained):
            about.append({"trained": {name: value for name, value in vars(result.upload).items() if name != "state"}})
            states += [result.upload.state, result.private, result.prototypes]
        elif isinstance(result, Personal):
            about.append({"personal": {name: value for name, value in vars(result).items() if name != "state"}})
            states.append(result.state)
        elif isinstance(result, Scored):
            about.append({"tested": vars(result)})
        else:
            about.append({})
            states.append(result)
    return Message({"results": about, "warned": warned}, states)


def pack_error(error: Exception, trace: str) -> Message:
    """What went wrong in a step, for :func:`unpack_results` to raise again."""
    return Message({"error": type(error).__name__, "message": str(error), "trace": trace}, [])


def unpack_results(message: bytearray) -> list[Result]:
    """What came of some steps; warns and raises as they did."""
    about, states = read(message)
    if "error" in about:
        kinds: dict[str, type[Exception]] = {"UserError": UserError, "StepError": StepError, "OutOfMemory": OutOfMemory}
        raise kinds.get(about["error"], RunError)(about["message"]) from RemoteError(about["trace"])
    for text in about["warned"]:
        warnings.warn(text, stacklevel=2)
    rest = iter(states)
    return [_result(each, rest) for each in about["results"]]


def _result(about: Mapping[str, Any], state: Iterator[State]) -> Result:
    if "trained" in about:
        return Trained(Upload(state=next(state), **about["trained"]), next(state), next(state))
    if "personal" in about:
        return Personal(state=next(state), **about["personal"])
    if "tested" in about:
        return Scored(**about["tested"])
    return next(state)


class RemoteError(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"
