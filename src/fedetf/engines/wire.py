"""How steps, their results and the received model travel between processes: JSON and plain numbers, never pickle.

A message is the length of its head (8 bytes), the head in JSON, and the content of the tensors one after the other,
each on a boundary of 64 bytes. What many states have in common, names, types and shapes, is in the head once.
"""

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedetf.core.state import State
from fedetf.engines.steps import Missing, Personal, Result, Scored, Step, Trained
from fedetf.errors import OutOfMemory, RunError, StepError, UserError
from fedetf.methods import Upload

BOUNDARY = 64
Form = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, type and shape of each tensor


class Message:
    """A message as the pieces that it is made of, which are not copied before it is written."""

    def __init__(self, about: Any, states: Sequence[Mapping[str, Tensor]]):
        forms: dict[Form, int] = {}
        numbers = [forms.setdefault(_form(state), len(forms)) for state in states]
        head = json.dumps({"about": about, "forms": list(forms), "states": numbers}).encode()
        head += b" " * (-(8 + len(head)) % BOUNDARY)
        self._pieces: list[Any] = [len(head).to_bytes(8, "little"), head]
        for tensor in (tensor for state in states for tensor in state.values()):
            content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
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
    for tensors, sizes in (forms[number] for number in head["states"]):
        end = start + sum(sizes)
        pieces = whole[start:end].split(sizes)[::2]  # the others are what lies between them
        states.append({n: p.view(dtype).view(shape) for (n, dtype, shape), p in zip(tensors, pieces, strict=True)})
        start = end
    return head["about"], states


def _form(state: Mapping[str, Tensor]) -> Form:
    return tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in state.items())


@lru_cache
def _known_form(form: str) -> tuple[list[tuple[str, torch.dtype, list[int]]], list[int]]:
    """The tensors of a form, and how many bytes each has and how many lie between it and the next."""
    tensors = [(name, getattr(torch, dtype.removeprefix("torch.")), shape) for name, dtype, shape in json.loads(form)]
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in tensors]
    return tensors, [part for size in sizes for part in (size, -size % BOUNDARY)]


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
