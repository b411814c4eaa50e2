"""How a step, its result and the received model travel between processes: one safetensors message, never pickle."""

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from fedetf.core.state import State
from fedetf.engines.steps import Missing, Personal, Result, Step, Trained
from fedetf.errors import RunError, StepError, UserError
from fedetf.methods import Upload


def pack(about: Mapping[str, Any], **states: Mapping[str, Tensor]) -> bytes:
    """A message of JSON and named states."""
    tensors = {f"{part}/{name}": t.cpu().contiguous() for part, state in states.items() for name, t in state.items()}
    return save(tensors, {"fedetf": json.dumps({"about": about, "parts": list(states)})})


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, State]]:
    """The JSON and the states of a message."""
    length = int.from_bytes(message[:8], "little")
    head = json.loads(json.loads(message[8 : 8 + length])["__metadata__"]["fedetf"])
    states: dict[str, State] = {part: {} for part in head["parts"]}
    for key, tensor in load(message).items():
        part, _, name = key.partition("/")
        states[part][name] = tensor
    return head["about"], states


def pack_step(step: Step, private: State, received: int) -> bytes:
    """A request: what to do, with what the client kept, from the ``received``-th model that was sent."""
    return pack({"step": step.__dict__, "received": received}, private=private)


def unpack_step(message: bytes) -> tuple[Step, State, int]:
    """The step, the client's private state and the number of the received model."""
    about, states = unpack(message)
    return Step(**about["step"]), states["private"], about["received"]


def pack_result(result: Result, warned: Sequence[str]) -> bytes:
    """What came of a step, and the warnings that were given in it."""
    if isinstance(result, Trained):
        upload = result.upload
        about = {name: value for name, value in vars(upload).items() if name != "state"}
        states = {"upload": upload.state, "private": result.private, "prototypes": result.prototypes}
        return pack({"warned": warned, "trained": about}, **states)
    if isinstance(result, Personal):
        about = {name: value for name, value in result.__dict__.items() if name != "state"}
        return pack({"warned": warned, "personal": about}, state=result.state)
    assert not isinstance(result, Missing)  # workers on the same machine are never left out
    return pack({"warned": warned}, state=result)


def pack_error(error: Exception, trace: str) -> bytes:
    """What went wrong in a step, for :func:`unpack_result` to raise again."""
    return pack({"error": type(error).__name__, "message": str(error), "trace": trace})


def unpack_result(message: bytes) -> Result:
    """What came of a step; warns and raises as the step did."""
    about, states = unpack(message)
    if "error" in about:
        kinds: dict[str, type[Exception]] = {"UserError": UserError, "StepError": StepError}
        raise kinds.get(about["error"], RunError)(about["message"]) from RemoteError(about["trace"])
    for text in about["warned"]:
        warnings.warn(text, stacklevel=2)
    if "trained" in about:
        upload = Upload(state=states["upload"], **about["trained"])
        return Trained(upload, states["private"], states["prototypes"])
    if "personal" in about:
        return Personal(state=states["state"], **about["personal"])
    return states["state"]


class RemoteError(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"
