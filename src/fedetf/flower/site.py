"""A site: its own data as the one client it is, and what it keeps on its own disk."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedetf.api import prepare
from fedetf.config import Section, Settings, validated
from fedetf.data import Dataset, load_share
from fedetf.data.partition import split_parts
from fedetf.engines.job import Job
from fedetf.engines.make import find_device
from fedetf.engines.steps import Personal, Result, Step, Trained
from fedetf.engines.worker import Worker
from fedetf.errors import RunError, UserError
from fedetf.federation import cpu_threads
from fedetf.flower.federate import Federate
from fedetf.flower.messages import Order
from fedetf.flower.states import KeptStates
from fedetf.methods import make_method
from fedetf.state import State, defect, save_state


class NodeSettings(Section):
    """What a site says of itself: ``flower-supernode --node-config 'data="..." keep="..."'``."""

    data: str = Field(min_length=1)  # a folder of its images; to try things out, the name of the settings' dataset
    keep: str = Field(min_length=1)  # a folder for what stays here: private state and the personal model


def node_settings(config: Mapping[str, Any]) -> NodeSettings:
    """The node's settings, checked."""
    return validated(NodeSettings, config, "--node-config")


class Site:
    """One client of a federation, with its data."""

    def __init__(self, federate: Federate, settings: Settings, client: int, node: NodeSettings):
        self.job = site_job(federate, settings, client, node.data)
        self._keep = Path(node.keep).expanduser()

    def perform(self, step: Step, order: Order, received: State) -> Result:
        """Do a step from the state that counts; what the client keeps of it is on the disk before this returns."""
        if not re.fullmatch("[0-9a-f]{32}", order.run):
            raise RunError(f"the server calls its run {order.run!r}")  # it becomes the name of a folder
        folder = self._keep / order.run / str(order.client)
        states, engine = KeptStates(folder), self.job.settings.engine
        with cpu_threads(engine.threads):
            worker = Worker(self.job, find_device(engine.device))
            states.settle(order.accepted)
            result = worker.perform(step, received, states.load(order.accepted, worker.keeps))
        if isinstance(result, Trained):
            problem = defect(result.private, {})
            if problem is not None:
                raise RunError(f"{step}: what the client keeps is not sound: {problem}")
            states.write(step.round, result.private)
        if isinstance(result, Personal):
            folder.mkdir(parents=True, exist_ok=True)
            about = {"method": self.job.settings.method.name, "accuracy": result.accuracy, "client": step.client}
            save_state(result.state, folder / "personal.safetensors", about)
        return result


def site_job(federate: Federate, settings: Settings, client: int, data: str) -> Job:
    """The job as one site sees it: all clients but itself have no data."""
    if data == settings.data.name and not Path(data).is_dir():
        job = prepare(settings)  # to try things out: its share of a dataset that all parties have
        if job.dataset.classes != federate.classes or job.dataset.shape != federate.shape:
            raise UserError(f"classes and shape in pyproject.toml are not those of {data}")
        return job
    samples = load_share(Path(data).expanduser(), federate.classes, federate.shape, settings.data)
    parts = [np.arange(len(samples) if k == client else 0) for k in range(len(federate.sites))]
    split = split_parts(parts, samples.y.numpy(), federate.classes, settings.data.test_fraction, settings.seed)
    dataset = Dataset(samples, samples, federate.classes, share=True)
    return Job(settings, make_method(settings.method.model_dump(), settings.fidelity), dataset, split)
