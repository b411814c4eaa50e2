"""A site: its own data as the one client it is, and what it keeps on its own disk."""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedetf.api import prepare
from fedetf.config import validated
from fedetf.core.forms import Sizes, misfit
from fedetf.core.soundness import defect, other_type
from fedetf.core.state import State, save_state
from fedetf.core.threads import cpu_threads
from fedetf.data import Dataset, Partition, Samples, load_share
from fedetf.data.fit import prepared_by_own, recoded, told_by
from fedetf.data.kinds import Note, Sums
from fedetf.data.windows import split_given
from fedetf.engines.job import Job
from fedetf.engines.placement import find_device
from fedetf.engines.steps import Personal, Result, Step, Trained
from fedetf.engines.worker import Worker, sent_parameters
from fedetf.errors import RunError, UserError
from fedetf.features import silent, with_features
from fedetf.files import is_file, make_folder, read_text, write_whole
from fedetf.flower.federate import Federate, underscored
from fedetf.flower.messages import Order
from fedetf.flower.states import KeptStates
from fedetf.methods import Scope
from fedetf.nn.heads import Net
from fedetf.outcome import own_majority
from fedetf.runs.folder import about_model
from fedetf.settings import Section, Settings
from fedetf.statistics import below

LOG = logging.getLogger("flwr")


class NodeSettings(Section):
    """What a site says of itself: ``flower-supernode --node-config 'data="..." keep="..."'``."""

    data: str = Field(min_length=1)  # its file or folder; to try things out, the name of the settings' dataset
    keep: str = Field(min_length=1)  # a folder for what stays here: private state and the personal model
    trust_code: bool = False  # code that the server's settings name runs here; the site's to say, not the server's


def node_settings(config: Mapping[str, Any]) -> NodeSettings:
    """The node's settings, checked."""
    return validated(NodeSettings, underscored(config), "--node-config")


class Site:
    """One client of a federation, with its data."""

    def __init__(
        self, federate: Federate, settings: Settings, client: int, node: NodeSettings, note: Note | None = None
    ):
        self.job = site_job(federate, settings, client, node.data, note)
        self._keep = Path(node.keep).expanduser()

    def perform(self, step: Step, order: Order, received: State) -> Result:
        """Do a step from the state that counts; what the client keeps of it is on the disk before this returns."""
        folder = self._folder(order)
        states, engine = KeptStates(folder), self.job.settings.engine
        with cpu_threads(engine.threads):
            worker = Worker(with_features(self.job, silent), find_device(engine.device))
            self._check_model(received, worker.net, step)
            states.settle(order.accepted)
            result = worker.perform(step, received, states.load(order.accepted, worker.keeps))
        if isinstance(result, Trained):
            problem = defect(result.private, {})
            if problem is not None:
                raise RunError(f"{step}: what the client keeps is not sound: {problem}")
            states.write(step.round, result.private)
        if isinstance(result, Personal):
            about = {**about_model(self.job, step.client), "settings": self.job.settings.portable()}
            majority = own_majority(self.job, step.client)
            about |= {"client": step.client, "accuracy": result.accuracy, "majority": majority}
            save_state(result.state, folder / "personal.safetensors", about)
            LOG.info("the personal model is in %s", folder / "personal.safetensors")
            if below([result.accuracy], [majority]):  # for the site alone to know: it tells its class mix
                shares = f"{result.accuracy:.3f} of what was held out, where its most frequent class is {majority:.3f}"
                LOG.warning("the personal model is worse than always the same answer: it gets right %s", shares)
        return result

    def _check_model(self, received: State, net: Net, step: Step) -> None:
        """Refuse a model that is not the one of the settings; to be tested, it comes without the method's extras."""
        method, state = self.job.method, net.state_dict()
        expected = {**method.scoped(state, Scope.SHARED), **method.scoped(state, Scope.RECEIVED)}
        if method.finishes:  # what was fixed in the rounds may have been replaced after the last
            fixed = method.scoped(state, Scope.FIXED)
            expected |= {name: tensor for name, tensor in fixed.items() if name in received}
        extras = {name: tensor for name, tensor in received.items() if name not in expected}
        sizes = Sizes(len(self.job.dataset.classes), net.features, sent_parameters(method, net))
        problem = defect(received, expected) or other_type(received, expected)
        problem = problem or misfit(extras, {} if step.kind in ("validate", "test") else method.downloads, sizes)
        if problem is not None:
            raise RunError(f"the model that the server sent does not fit the settings: {problem}")

    def _folder(self, order: Order) -> Path:
        """Where the site keeps what belongs to the run, for the owner's eyes only; data must stay as they were."""
        if not re.fullmatch("[0-9a-f]{32}", str(order.run)) or order.client not in range(len(self.job.partition)):
            raise RunError(
                f"not the names of a run and a client: {order.run!r}, {order.client!r}"
            )  # they become a folder's
        if not 0 <= order.accepted <= self.job.settings.train.rounds >= order.round >= 0:
            raise RunError(f"not rounds of this run: {order.round} after {order.accepted}")
        make_folder(self._keep, private=True)
        folder = self._keep / order.run / str(int(order.client))
        make_folder(folder)
        seen, now = folder / "data.txt", fingerprint(self.job.dataset.train)
        if not is_file(seen):
            write_whole(seen, now.encode())
        if read_text(seen) != now:
            raise RunError("the data are not those that the run began with; bring them back, or begin a new run")
        return folder


def fingerprint(samples: Samples) -> str:
    """Other inputs, labels or another order give another one: what is held out would then be trained on."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (samples.x, samples.y):
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()


def site_job(federate: Federate, settings: Settings, client: int, data: str, note: Note | None = None) -> Job:
    """The job as one site sees it: all clients but itself have no data. ``note``: how all prepare their inputs."""
    if is_named(settings, data):
        job = prepare(settings)  # to try things out: its share of a dataset that all parties have
        check_agreed(job.dataset, federate, data)
        return job
    dataset, split = _share(federate, settings, client, data)
    if dataset.note is not None and note is not None:
        own = settings.data.fit == "own" and note.fitted
        dataset = _prepared_here(dataset, note, split, client) if own else recoded(dataset, note)
    return Job.make(settings, dataset, split)


def _prepared_here(dataset: Dataset, layout: Note, split: Partition, client: int) -> Dataset:
    """The site's data prepared by its own statistics; they are in its personal model, and leave it in no message."""
    told = [told_by(dataset, split, k) for k in range(len(split))]
    everything = replace(dataset.test, sites=np.full(len(dataset.test), split.name(client)))
    return prepared_by_own(replace(dataset, test=everything), layout, told, split)


def is_named(settings: Settings, data: str) -> bool:
    """Whether data is the dataset that the settings name, to try things out, and not a file or folder."""
    return data == settings.data.name and not Path(data).exists()


def check_agreed(dataset: Dataset, federate: Federate, data: str) -> None:
    """Refuse a named dataset that is not what the parties agreed on."""
    shape = dataset.shape if dataset.note is None else None
    if dataset.classes != federate.classes or shape != federate.shape:
        raise UserError(f"classes and shape in pyproject.toml are not those of {data}")


def site_sums(federate: Federate, settings: Settings, client: int, data: str) -> Sums:
    """What a site tells of its training split before the first round."""
    if is_named(settings, data):
        raw = settings.data.model_copy(update={"fit": "shared"})  # which leaves the inputs as they are
        job = prepare(settings.model_copy(update={"data": raw}))
        dataset, split = job.dataset, job.partition
    else:
        dataset, split = _share(federate, settings, client, data)
    if dataset.note is None:
        raise UserError(f"{data} holds images, so pyproject.toml must say their shape: channels x height x width")
    told = told_by(dataset, split, client)
    return told.bare() if settings.data.fit == "own" else told


def _share(federate: Federate, settings: Settings, client: int, data: str) -> tuple[Dataset, Partition]:
    """What a site holds, and how it is split."""
    if client not in range(len(federate.sites)):
        raise RunError(f"there is no site with the number {client}")
    samples, note = load_share(Path(data).expanduser(), federate.classes, federate.shape, settings.data)
    parts = [np.arange(len(samples) if k == client else 0) for k in range(len(federate.sites))]
    split = split_given(samples, parts, settings.data, federate.classes, settings.seed)
    return Dataset(samples, samples, federate.classes, share=True, note=note), replace(split, sites=federate.sites)
