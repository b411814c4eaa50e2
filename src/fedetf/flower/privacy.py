"""Central differential privacy for whole sites: updates are clipped, their mean gets noise, an accountant adds it up.

The server is trusted with the updates. Who sees the models that it sends out learns little of any one site's update.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from pydantic import BaseModel

from fedetf.engines.steps import Result, Trained
from fedetf.errors import UserError
from fedetf.files import is_file, read_json, write_whole
from fedetf.flower.federate import Federate
from fedetf.methods import Method
from fedetf.runs.records import Count, fitting
from fedetf.soundness import is_variance, unsound
from fedetf.state import State, WeightedMean


def check_method(method: Method) -> None:
    """Refuse methods that send more than the model: the noise on the model would not cover it."""
    if type(method).upload is not Method.upload or method.finishes:
        raise UserError(
            f"{method.name} sends statistics of classes besides the model, which the noise does not cover; "
            "set noise = 0, or choose a method that sends the model only: fedavg, fedprox, feddyn, ditto, fedrep, "
            "fedrod, fedetf"
        )


def noised(
    answers: Mapping[int, Result], received: State, federate: Federate, ledger: "PrivacyLedger", max_ratio: float
) -> dict[int, Result]:
    """Every sound upload replaced by the same thing: the received model and the noised mean of all clipped updates.

    So whatever a method does with them is done with the noised mean alone. Each site counts the same there. Whole
    numbers (BatchNorm's counters) would tell the size of a site's data: the received ones stay.
    """
    sound = {
        client: result
        for client, result in answers.items()
        if isinstance(result, Trained)
        and unsound(result.upload.state, received, result.upload.images, max_ratio) is None
    }
    if not sound:
        return dict(answers)
    ledger.count()
    mean = WeightedMean()
    for result in sound.values():
        mean.add(clipped(result.upload.state, received, federate.clip), 1.0)
    scale = federate.noise * federate.clip / len(sound)
    private = dict(received)
    for name, update in mean.result().items():
        noise = normal_numbers(update.shape).to(update) * scale
        private[name] = received[name] + update + noise
        if is_variance(name):
            private[name].clamp_(min=0)
    return {
        client: replace(result, upload=replace(result.upload, state=dict(private)))
        if client in sound and isinstance(result, Trained)
        else result
        for client, result in answers.items()
    }


def normal_numbers(shape: Sequence[int]) -> torch.Tensor:
    """Independent standard normal numbers from the system's randomness, by Box and Muller.

    torch's generator has 32 bits of seed: whoever tries them all would find the noise, and take it off again.
    """
    count = math.prod(shape)
    first, second = (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11) for _ in range(2))  # of 53 bits
    radius = np.sqrt(-2 * np.log((first + 1.0) * 2.0**-53))
    return torch.from_numpy(radius * np.cos(2 * np.pi * second * 2.0**-53)).reshape(tuple(shape))


def clipped(state: State, received: State, length: float) -> State:
    """The update that ``state`` is of ``received``, scaled down to at most ``length``; whole numbers have none."""
    floating = [name for name, tensor in received.items() if tensor.is_floating_point()]
    update = {name: state[name] - received[name] for name in floating}
    norm = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in update.values()))
    return {name: tensor * min(1.0, length / norm) if norm else tensor for name, tensor in update.items()}


class Spent(BaseModel):
    """What privacy.json says that is read again."""

    releases: Count


class PrivacyLedger:
    """Writes privacy.json: what all noised means so far cost, each before anybody sees it.

    A server that died between the two and makes a round anew has drawn twice: both count. By Flower's accountant, which
    is that of dp-accounting. Who is sampled when follows from the settings, which all parties know: so nothing is won
    by sampling, and every mean counts in full.
    """

    def __init__(self, folder: Path, federate: Federate):
        self._path, self._federate = folder / "privacy.json", federate

    def count(self) -> None:
        """One more."""
        asked = self._federate
        releases = 1 + (fitting(Spent, read_json(self._path), str(self._path)).releases if is_file(self._path) else 0)
        spent = epsilon(asked.noise, asked.delta, len(asked.sites), releases)
        content = {"epsilon": spent, "delta": asked.delta, "releases": releases}
        content |= {"noise": asked.noise, "clip": asked.clip}
        write_whole(self._path, (json.dumps(content, indent=2) + "\n").encode())


def epsilon(noise: float, delta: float, sites: int, releases: int) -> float:
    """What so many noised means reveal of one site at most, as the epsilon that belongs to ``delta``."""
    from flwr.serverapp import RdpAccountant

    config = PrivacyConfig(delta, sites, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = RdpAccountant(config)
    accountant.compose(GaussianPrivacyEvent(noise, sites, sites), releases)
    return accountant.get_epsilon(delta)
