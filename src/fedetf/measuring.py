"""What is measured of a run: the global model, the participants of a round, and the personal models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedetf.core.state import State, clone
from fedetf.engines.base import Engine
from fedetf.engines.job import Job
from fedetf.engines.steps import NOBODY, Personal, Trained
from fedetf.methods import Scope
from fedetf.metrics import Accuracy, Participant, Suite, Values, balanced, sums_of
from fedetf.outcome import Measured, mean

Model = tuple[int, int]  # a client's own one: its number, and the last round it trained in; (NOBODY, 0): none yet


@dataclass
class Watched:
    """What metrics have seen so far of the participants of a round."""

    start: State  # the encoder's trained tensors, before their training
    sums: State = field(default_factory=dict)


class Measurer:
    """Measures by the workers of an engine, and changes nothing in the run."""

    def __init__(self, job: Job, engine: Engine, encoder: nn.Module, unsent: State):
        self.job, self.engine = job, engine
        self.classifiers: dict[int, Tensor] = {}  # class vectors of the last watched round's participants
        self._encoder = [f"encoder.{name}" for name, tensor in encoder.named_parameters() if tensor.requires_grad]
        self._unsent = unsent  # tensors of the net that the server does not send
        self._fixed = job.method.scoped(unsent, Scope.FIXED)
        self._tested: State | None = None  # what the metrics summed up of the model that was measured last
        self._validated: State = {}
        self._clients: dict[Model, tuple[Values, State]] = {}  # what was measured of clients' own models

    # --- the global model ---

    def forget(self) -> None:
        """The model has changed since it was measured."""
        self._tested = None

    @property
    def sees_global(self) -> bool:
        """Whether there is a global model, and something to measure it on."""
        held_out = self.job.settings.data.validation_fraction > 0
        return self.job.method.has_global and (self.engine.measures or held_out)

    def measure(self, model: State, watched: Watched | None = None) -> Measured:
        """What is measured of a global model, and of the participants that it was made of."""
        metrics = self.job.metrics
        if self.job.method.measures_clients:
            return self._measure_clients(metrics.values({} if watched is None else watched.sums))
        self._tested, self._validated = self._test(model), self._validate(model)
        values = metrics.values(metrics.merge({} if watched is None else watched.sums, self._tested))
        general = values.pop(Accuracy.name, None)
        return Measured(general, balanced(self._validated)[0] if self._validated else None, values)

    def confusion(self, model: State) -> Tensor | None:
        """How often ``model``, if it was measured last, takes class i for class j ``[C, C]``; None without a test."""
        if self._tested is None:
            self.measure(model)
        return sums_of(Accuracy, self._tested or {}).get("confusion")

    @property
    def classes_left_out(self) -> int | None:
        """How many classes the validation of the last model could not judge; None without one."""
        return balanced(self._validated)[1] if self._validated else None

    def _test(self, model: State) -> State:
        """What the metrics sum up of a global model; nothing if there is none, or nothing to test it on."""
        if not self.job.method.has_global or not self.engine.measures:
            return {}
        shared = self._class_vectors({**self._fixed, **model})
        heads = list(self.classifiers.values()) if shared is None else [shared]  # those of participants, if private
        metrics = self.job.metrics
        return metrics.merge(self.engine.evaluate(model), metrics.model_part(heads))

    def _validate(self, model: State) -> State:
        """Of what all clients hold out to validate, the counts by class; nothing if none do."""
        if not self.job.method.has_global or not self.job.settings.data.validation_fraction:
            return {}
        counts: State = {}
        for part in self.engine.validate(self.job.partition.seen, model).values():
            counts = {name: counts[name] + tensor if counts else tensor for name, tensor in part.items()}
        return counts

    def per_client(self, model: State) -> dict[str, list[float | None]]:
        """What is measured of ``model`` on each client's own test split, by metric; nothing without a global model."""
        if not self.job.method.has_global:
            return {}
        return self._by_client(self.engine.test(range(len(self.job.partition)), model))

    def _by_client(self, values: Mapping[int, Values]) -> dict[str, list[float | None]]:
        """A list over clients for each metric, None where a client has no value."""
        clients = range(len(self.job.partition))
        return {name: [values.get(k, {}).get(name) for k in clients] for name in self.job.metrics.personal.names}

    # --- the clients' own models, of a method without a global one ---

    def _measure_clients(self, seen_in_round: Values) -> Measured:
        """The plain mean of what is measured of each client's own model, of those who hold something to train on.

        On real sites nothing is: the models stay there.
        """
        partition, kept = self.job.partition, self.engine.private.rounds
        if partition.elsewhere:
            return Measured(measures=seen_in_round)
        holders = [client for client in partition.seen if len(partition.train[client])]
        models = [(client, kept[client]) if client in kept else (NOBODY, 0) for client in holders]
        new = [model for model in dict.fromkeys(models) if model not in self._clients]
        measured = zip(new, self.engine.evaluate_clients([client for client, _ in new], {}), strict=True)
        self._clients |= {model: self._of_client(model, sums) for model, sums in measured}
        self._clients = {
            model: self._clients[model] for model in models
        }  # who has not trained since is not tested again
        self._tested = {}
        for model in models:
            self._tested = Suite().merge(self._tested, self._clients[model][1])
        each = [self._clients[model][0] for model in models]
        values = {
            name: mean([v for one in each if (v := one.get(name)) is not None]) for name in self.job.metrics.names
        }
        return Measured(values.pop(Accuracy.name), None, {**values, **seen_in_round})

    def _of_client(self, model: Model, sums: State) -> tuple[Values, State]:
        """All values of a client's own model, and the sums that recalls follow from."""
        metrics, vectors = self.job.metrics, self._class_vectors({**self._unsent, **self.engine.private.load(model[0])})
        values = metrics.values(metrics.merge(sums, metrics.model_part([] if vectors is None else [vectors])))
        return values, {f"{Accuracy.basis}.{name}": tensor for name, tensor in sums_of(Accuracy, sums).items()}

    # --- the participants of a round ---

    def watch(self, model: State) -> Watched | None:
        """What takes note of the participants that ``model`` is sent to, where a metric wants to see them."""
        if not self.job.metrics.watches_clients:
            return None
        self.classifiers = {}
        return Watched(clone(self._encoder_of(model)))

    def note(self, result: Trained, watched: Watched, model: State) -> None:
        """See one participant that trained ``model``."""
        known = {**self._fixed, **model}
        known |= {name: t for name, t in result.private.items() if name in self._unsent}  # a real site sends none
        trained = {name: result.upload.state.get(name, tensor) for name, tensor in known.items()}
        vectors = self._class_vectors(trained)
        if vectors is not None:
            self.classifiers[result.upload.client] = vectors.clone(memory_format=torch.contiguous_format)
        client = Participant(
            len(self.job.dataset.classes), self._encoder_of(trained), watched.start, result.prototypes, vectors
        )
        metrics = self.job.metrics
        watched.sums = metrics.merge(watched.sums, metrics.client_part(client))

    def _encoder_of(self, state: State) -> State:
        """The encoder's trained tensors; nothing if some of them are not there."""
        there = all(name in state for name in self._encoder)
        return {name: state[name] for name in self._encoder} if there else {}

    def _class_vectors(self, state: State) -> Tensor | None:
        """The class vectors in a state; None if there are none, as in a head of the user's own."""
        vectors = self.job.method.class_vectors(state)
        return vectors if vectors is not None and len(vectors) == len(self.job.dataset.classes) else None

    # --- all of it ---

    def own(self, personals: Sequence[Personal]) -> dict[str, list[float | None]]:
        """What is measured of each client's own model, by metric; nothing if there are none."""
        values = {p.client: {Accuracy.name: p.accuracy, **p.measures} for p in personals}
        return self._by_client(values) if values else {}

    def metrics(self, general: Values, personals: Sequence[Personal]) -> dict[str, Values]:
        """All values by name: of the global model; of the personal ones the plain mean over clients that have it."""
        suite, own = self.job.metrics, [{Accuracy.name: p.accuracy, **p.measures} for p in personals]
        there = {name: [v for values in own if (v := values.get(name)) is not None] for name in suite.personal.names}
        return {
            "general": {name: general.get(name) for name in suite.names},
            "personal": {name: mean(values) for name, values in there.items()},
        }
