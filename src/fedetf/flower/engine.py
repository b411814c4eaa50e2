"""The engine whose clients are real sites: steps go out as messages; a round goes on without who does not answer."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from httpx import HTTPError

from fedetf.core.forms import Sizes, Vector, misfit
from fedetf.core.soundness import defect, too_large
from fedetf.core.state import State, nbytes
from fedetf.engines.base import Engine, Tick
from fedetf.engines.job import Job
from fedetf.engines.placement import find_device
from fedetf.engines.steps import Missing, Personal, Result, Scored, Step, Trained
from fedetf.engines.worker import Worker, sent_parameters
from fedetf.errors import RunError, printable
from fedetf.features import silent, with_features
from fedetf.flower.arrays import to_arrays
from fedetf.flower.bounds import SampleBound, impossible
from fedetf.flower.describe import to_json
from fedetf.flower.federate import Federate
from fedetf.flower.messages import TYPES, Order, to_records, unpack_answer
from fedetf.flower.privacy import PrivacyLedger
from fedetf.flower.states import RoundsOnly
from fedetf.methods import Scope

LOG = logging.getLogger("flwr")
PAUSE = 1.0  # seconds between two looks at what has arrived
COUNTS = dict.fromkeys(("count", "correct"), Vector(("classes",), torch.int64))  # of a validation, by class
MARGIN = 2**20  # bytes that an answer may have beyond twice what the method sends: names, headers


@dataclass(frozen=True)
class Node:
    """One life of a site's node."""

    id: int
    since: str


class FlowerEngine(Engine):
    """Clients are Flower nodes, known by the names that their keys were registered with.

    The server trains nobody: it only tests the global model, on a set of its own.
    """

    def __init__(self, job: Job, federate: Federate, grid: Grid, ledger: PrivacyLedger, bound: SampleBound):
        note = job.dataset.note
        job = with_features(job, silent)  # of a frozen encoder there is nothing to federate, here or at a site
        super().__init__(job, RoundsOnly())
        self.fewest = federate.min_sites
        self.measures = bool(federate.test)
        self.run = ""  # which run it is; see server.RunId
        self._federate = federate
        self._grid = grid
        self.noise = ledger
        self._bound = bound
        self._worker = Worker(job, find_device(job.settings.engine.device))
        net = self._worker.net
        self._sizes = Sizes(len(job.dataset.classes), net.features, sent_parameters(job.method, net))
        self._most = MARGIN + 2 * self._largest()
        self._notes = job.method.personal_notes(job.settings.personal)
        self._inputs = None if note is None else to_json(note)
        self._complete = False  # whether the sites were waited for

    @property
    def device(self) -> torch.device:
        """Where the server tests the model."""
        return self._worker.device

    def close(self) -> None:
        """Flower ends the connections."""

    def results(self, steps: Sequence[Step], received: State, tick: Tick) -> Iterator[Result]:
        """Those of the sites, in the order of the steps, when all are there or the time is over."""
        if not steps:
            return
        if steps[0].kind == "evaluate":
            model = dict(received)  # the server changes its own in place; the worker knows a model by its dict
            yield from (self._worker.perform(step, model, {}) for step in steps)
            return
        answers = self._ask(steps, received, tick)
        if steps[0].kind == "train":
            answers = self._bounded(steps, answers)
        for step in steps:
            yield answers[step.client]

    def summarise(self, clients: Sequence[int], received: State, last: int = 0) -> Iterator[State]:
        """What those send who answer."""
        there = [result for result in super().summarise(clients, received, last) if isinstance(result, dict)]
        if len(there) < self.fewest:
            raise RunError(f"after the last round {len(there)} sites answered, at least {self.fewest} are needed")
        return iter(there)

    def personalise(self, clients: Sequence[int], received: State, last: int = 0) -> Iterator[Personal]:
        """The accuracies of those who answer; their models stay with them."""
        return (result for result in super().personalise(clients, received, last) if isinstance(result, Personal))

    def _ask(self, steps: Sequence[Step], received: State, tick: Tick) -> dict[int, Result]:
        """Send each step to its site and wait for the answers, client -> what came of it."""
        nodes = self._connected([step.client for step in steps])
        ends = time.monotonic() + self._federate.deadline
        waiting = self._send([step for step in steps if step.client in nodes], nodes, received)
        answers: dict[int, Result] = {}
        while waiting and time.monotonic() < ends:
            for message in list(waiting):
                step = waiting[message]
                result = self._answer(message, step, received)
                if result is not None:
                    del waiting[message]
                    answers[step.client] = result
                    tick()
            for message in self._lost(waiting, nodes):
                step = waiting.pop(message)
                answers[step.client] = self._missing(step, "its node was started anew")
            if waiting:
                time.sleep(PAUSE)
        late = {step.client for step in waiting.values()}
        for step in steps:
            if step.client not in answers:
                why = f"no answer within {self._federate.deadline:g} s" if step.client in late else "not connected"
                answers[step.client] = self._missing(step, why)
        return answers

    def _send(self, steps: Sequence[Step], nodes: Mapping[int, Node], received: State) -> dict[str, Step]:
        """Hand the steps to Flower; the steps that it took, by the names of their messages."""
        model = to_arrays(received)
        messages = [
            Message(
                to_records(self._order(step), model, self._inputs),
                dst_node_id=nodes[step.client].id,
                message_type=TYPES[step.kind],
                ttl=self._federate.deadline,
                group_id=str(step.round),
            )
            for step in steps
        ]
        names = list(self._grid.push_messages(messages))
        if steps and not names:
            raise RunError("Flower accepted none of the messages; its log says why; the model may be too large for it")
        return {name: step for name, step in zip(names, steps, strict=True) if name}  # none: its node has just left

    def _lost(self, waiting: Mapping[str, Step], nodes: Mapping[int, Node]) -> list[str]:
        """Messages to nodes that live another life by now: Flower does not send again what the first had received."""
        now = self._nodes() if waiting else {}
        sites = self._federate.sites
        return [
            message
            for message, step in waiting.items()
            if now.get(sites[step.client], nodes[step.client]) != nodes[step.client]
        ]

    def _order(self, step: Step) -> Order:
        return Order(self.run, step.client, step.round, self.private.rounds.get(step.client, 0))

    def _answer(self, message: str, step: Step, received: State) -> Result | None:
        """What has come in reply to a message; None if nothing has.

        Replies are fetched one by one: one that Flower itself cannot take apart leaves the others alone.
        """
        try:
            replies = list(self._grid.pull_messages([message]))
        except (OSError, HTTPError):  # of the connection to the SuperLink
            raise
        except Exception as error:  # whatever a malformed message can do to Flower
            return self._missing(step, f"its answer cannot be read: {type(error).__name__}", refused=True)
        reply = next((reply for reply in replies if reply.metadata.reply_to_message_id == message), None)
        return None if reply is None else self._read(step, reply, received)

    def _read(self, step: Step, reply: Message, received: State) -> Result:
        """What a site's message says. It comes from outside: nothing in it may end the run."""
        if reply.has_error():
            return self._missing(step, f"failed: {reply.error.reason}")
        try:
            result = unpack_answer(step, reply.content, self.device, self._most)
            problem = self._problem(step, result, received)
        except RunError as error:
            problem = f"its answer cannot be read: {error}"
        except Exception as error:  # whatever else a malformed message can do to the code that reads it
            problem = f"its answer cannot be read: {type(error).__name__}"
        return result if problem is None else self._missing(step, problem, refused=True)

    def _problem(self, step: Step, result: Result, received: State) -> str | None:
        """What is wrong with a result that came from outside; at an upload the round loop looks."""
        if step.kind == "validate" and isinstance(result, dict):
            return misfit(result, COUNTS, self._sizes) or impossible(result["count"], result["correct"], self._bound)
        if isinstance(result, dict):
            max_ratio = self.job.settings.update.max_ratio
            problem = misfit(result, self.job.method.summaries, self._sizes, self._bound.samples) or defect(result, {})
            return problem or too_large(result, self._shared(received), max_ratio)
        if isinstance(result, Personal) and len(result.curve) not in (0, self._notes):  # none: nothing is held out
            return f"its curve has {len(result.curve)} steps, not {self._notes}"
        measured = result.measures if isinstance(result, Personal) else {}
        measured = result.values if isinstance(result, Scored) else measured
        if not measured.keys() <= set(self.job.metrics.personal.names):
            return "it measures what was not asked for"
        return None

    def _bounded(self, steps: Sequence[Step], answers: Mapping[int, Result]) -> dict[int, Result]:
        """The answers without those of sites that claim too much."""
        trained = {client: result for client, result in answers.items() if isinstance(result, Trained)}
        self._bound.find(result.upload.samples for result in trained.values())
        problems = {client: self._bound.excess(result) for client, result in trained.items()}
        refused = [(step, why) for step in steps if (why := problems.get(step.client)) is not None]
        return {**answers, **{step.client: self._missing(step, why, refused=True) for step, why in refused}}

    def _largest(self) -> int:
        """How many bytes a site sends at most, if it sends what the method does."""
        method = self.job.method
        extras = self._sizes.nbytes(method.uploads) + self._sizes.nbytes(method.summaries)
        return nbytes(self._shared(self._worker.net.state_dict())) + extras

    def _shared(self, state: State) -> State:
        """The part of the net that every site trains and sends."""
        return self.job.method.scoped(state, Scope.SHARED)

    def _missing(self, step: Step, why: str, refused: bool = False) -> Missing:
        if not refused or step.kind != "train":  # the log of the round has those
            LOG.warning("%s", printable(f"{self._federate.sites[step.client]} ({step}): left out: {why}"))
        return Missing(step.client, printable(why), refused)

    def _connected(self, clients: Sequence[int]) -> dict[int, Node]:
        """The nodes of those sites that are there. At first all are waited for, later only for as many as must be."""
        ends = time.monotonic() + self._federate.join
        names = self._federate.sites
        while True:
            nodes = self._nodes()
            there = {client: nodes[names[client]] for client in clients if names[client] in nodes}
            wanted = min(self.fewest, len(clients)) if self._complete else len(clients)
            if len(there) >= wanted or time.monotonic() >= ends:
                break
            time.sleep(PAUSE)
        self._complete = True
        if len(there) < min(self.fewest, len(clients)):
            away = printable(", ".join(names[client] for client in clients if client not in there))
            raise RunError(
                f"{len(there)} sites are connected, at least {self.fewest} are needed; start the nodes of: {away} "
                "(keys are registered with: flwr supernode register KEY.pub --name SITE)"
            )
        return there

    def _nodes(self) -> dict[str, Node]:
        """Who is connected, by name."""
        nodes = [(node.name, Node(node.node_id, node.last_activated_at)) for node in self._grid.get_nodes()]
        twice = [name for name in self._federate.sites if sum(name == other for other, _ in nodes) > 1]
        if twice:
            raise RunError(f"two nodes are registered as {twice[0]!r}; unregister one of them")
        return dict(nodes)
