"""The round loop."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedetf import interruption
from fedetf.core.forms import Sizes
from fedetf.core.server.privacy import epsilon
from fedetf.core.soundness import defect
from fedetf.core.state import State, clone, nbytes
from fedetf.core.threads import cpu_threads
from fedetf.data.behaviour import present
from fedetf.engines.base import Engine
from fedetf.engines.job import Job
from fedetf.engines.make import make_engine
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Missing, Personal, Trained
from fedetf.engines.verdict import Verdict, unlikely_distance
from fedetf.engines.worker import sent_parameters
from fedetf.errors import RunError, printable
from fedetf.measuring import Measurer, Watched
from fedetf.methods import Scope, Server, Upload
from fedetf.metrics import Accuracy
from fedetf.outcome import Measured, Outcome, Round, Unseen, Validation, has_stalled, mean
from fedetf.settings import LAST
from fedetf.transforms import make_compression


class Listener:
    """Is told what happens; shows it, logs it, saves it. Every default does nothing."""

    def features_done(self, done: int, total: int) -> None:
        """Before that, where a frozen encoder's features are computed: ``done`` of ``total`` samples."""

    def started(self, federation: "Federation") -> None:
        """Before the first round."""

    def client_done(self, record: Round) -> None:
        """After each client's local training; ``record.trained`` says how many of the round that were."""

    def round_done(self, record: Round, server: Server) -> None:
        """After each round."""

    def personal_done(self, personal: Personal) -> None:
        """After each client's personal stage."""

    def finished(self, outcome: Outcome) -> None:
        """After everything."""


@dataclass(frozen=True)
class Completion:
    """What :meth:`Federation._complete` gives; the bytes are those of its exchange alone."""

    server: Server
    bytes_up: int
    bytes_down: int


class Federation:
    """A server and an engine that runs its clients."""

    def __init__(
        self,
        job: Job,
        schedule: list[list[int]],
        listeners: Sequence[Listener] = (),
        private: PrivateStates | None = None,
        engine: Engine | None = None,
    ):
        self.job = job
        self.method = job.method
        self.schedule = schedule
        self.engine = engine or make_engine(job, private or PrivateStates())
        self.private = self.engine.private
        net = job.build_net().to(self.engine.device)
        state = net.state_dict()
        sent = {**job.method.scoped(state, Scope.SHARED), **job.method.scoped(state, Scope.RECEIVED)}
        self.unsent = {name: tensor for name, tensor in state.items() if name not in sent}
        self.measurer = Measurer(job, self.engine, net.encoder, self.unsent)
        self._compression = make_compression(job.exchange.update)
        parameters = sent_parameters(job.method, net)
        self.sizes = Sizes(len(job.dataset.classes), net.features, parameters)
        self.server = Server(
            clone(sent),
            job.partition.holders,
            job.settings.seed,
            clone(job.method.server_state(net)),
            parameters=tuple(parameters),
            plain=frozenset(job.method.temperatures),
            train=job.settings.train,
            settings=job.exchange.server,
            update=job.exchange.update,
            noise=self.engine.noise,
        )
        self.server.begin()
        self.records: list[Round] = []  # one for each round that is done
        self.personals: dict[int, Personal] = {}  # one for each client whose personal stage is done, less the model
        self.train_seconds = 0.0
        self._completion: Completion | None = None  # of the server as it is, where the method completes its model
        self.listeners = listeners

    def run(self) -> Outcome:
        """All rounds, then the personal stage of every client; what was done before is not done again."""
        try:
            with cpu_threads(self.job.settings.engine.threads):
                return self._run()
        finally:
            self.engine.close()

    def _run(self) -> Outcome:
        for listener in self.listeners:
            listener.started(self)
        for record in self.rounds():
            for listener in self.listeners:
                listener.round_done(record, self.server)
        records = self.records
        final, last5 = records[-1].reported, [r.reported for r in records[-LAST:]]
        up, down = sum(r.bytes_up for r in records), sum(r.bytes_down for r in records)
        if self.method.finishes:
            completion = self._completion or self._complete()
            self._check_model(completion.server, "after the last round")
            self.server = completion.server
            up, down = up + completion.bytes_up, down + completion.bytes_down
        per_client = self.measurer.per_client(self.server.state)
        self._personalise()
        personals = [self.personals[client] for client in self.job.partition.seen if client in self.personals]
        accuracies = {p.client: p.accuracy for p in personals}
        steps = zip(*(p.curve for p in personals if p.curve), strict=True)
        outcome = Outcome(
            rounds=records,
            general=final.general,
            general_last5=mean([m.general for m in last5 if m.general is not None]),
            bytes_up=up,
            bytes_down=down,
            model={**self.unsent, **self.server.state},
            personal=[accuracies.get(client) for client in range(len(self.job.partition))] if personals else [],
            personal_curve=[sum(step) / len(step) for step in steps],
            personal_epochs=mean([p.epochs for p in personals]) or 0.0,
            train_seconds=self.train_seconds,
            epsilon=self._epsilon(),
            metrics=self.measurer.metrics(
                {Accuracy.name: final.general, **records[-1].measures, **final.measures}, personals
            ),
            confusion=self.measurer.confusion(self.server.state),
            per_client={"general": per_client, "personal": self.measurer.own(list(self.personals.values()))},
            validation=self._validation(last5, personals),
            unseen=self._unseen(per_client.get(Accuracy.name, [])),
            placement=self.engine.placement,
        )
        for listener in self.listeners:
            listener.finished(outcome)
        return outcome

    @property
    def is_over(self) -> bool:
        """Whether the last round is done: all are, or the validation accuracy has stopped rising."""
        return len(self.records) >= len(self.schedule) or has_stalled(self.records, self.job.settings.train.patience)

    def rounds(self) -> Iterator[Round]:
        """Algorithm 1, for any method."""
        while not self.is_over:
            t = len(self.records) + 1
            began = time.perf_counter()
            record = Round(t, self.schedule[t - 1])
            self.server.round = t
            done = partial(self._client_done, record)
            received = self._received()
            trained = self.engine.train(self._present(record, received), t, received, done)  # 1. participants train
            watched = self.measurer.watch(self.server.state) if self._is_measured(t) else None
            sound = self._sound(trained, record, received, watched)
            self.method.aggregate(self.server, sound)  # 2. the server folds in what they send
            for _ in sound:  # what a method leaves is taken all the same: workers must be free for what follows
                pass
            self._check_model(self.server, f"round {t}")
            self.train_seconds += time.perf_counter() - began
            self._measure(record, watched)  # 3. what came of it
            record.seconds = time.perf_counter() - began
            self.records.append(record)
            yield record

    def _present(self, record: Round, received: State) -> list[int]:
        """The participants that do not drop out of the round; the others received the model all the same."""
        answering = present(record.participants, record.round, self.job.settings.system, self.job.settings.seed)
        for client in record.participants:
            if client not in answering:
                record.missing[client] = "dropped out"
                record.bytes_down += self._travelling(received)
        return answering

    def _travelling(self, state: State) -> int:
        """The bytes of a model on its way; a pool trains where its data is, and none travels."""
        return 0 if self.method.pools else nbytes(state)

    def _personalise(self) -> None:
        """The personal stage: every client, whether it was ever sampled or not. Nothing goes back to the server."""
        if not self.job.settings.personal.enabled:
            return
        clients = [client for client in range(len(self.job.partition)) if client not in self.personals]
        for personal in self.engine.personalise(clients, self._received(), len(self.records)):
            interruption.check()
            self.personals[personal.client] = replace(personal, state={})
            for listener in self.listeners:
                listener.personal_done(personal)

    def _epsilon(self) -> float | None:
        """ε by the end of the run; None without noise, as where no parameter is sent that could have it."""
        update = self.job.settings.update
        releases = sum(record.samples > 0 for record in self.records)
        if not update.noise or not self.sizes.parameters:
            return None
        return epsilon(update.noise, update.delta, self.engine.noise.releases(releases))

    def _received(self) -> State:
        """What every client gets: the model, and what the method sends besides it."""
        return {**self.server.state, **self.method.download(self.server)}

    def _client_done(self, record: Round) -> None:
        record.trained += 1
        for listener in self.listeners:
            listener.client_done(record)

    def _complete(self) -> Completion:
        """The server as it would be if the run ended here: one more exchange with every client completes its model.

        It works on a copy, so that the rounds go on as if nothing had happened.
        """
        sizes, now = [], self.server
        server = replace(now, state=clone(now.state), own=clone(now.own), memory=clone(now.memory))

        def counted(summaries: Iterable[State]) -> Iterator[State]:
            for summary in summaries:
                sizes.append(nbytes(summary))
                yield summary

        received, clients = self._received(), self.job.partition.seen
        down = nbytes(received) * len(clients)
        summaries = self.engine.summarise(clients, received, self.server.round)
        sent = counted(summaries)
        self.method.finish(server, sent)
        for _ in sent:
            pass
        return Completion(server, sum(sizes), down)

    def _check_model(self, server: Server, when: str) -> None:
        """Stop, before anything is written, if what the server made cannot be used."""
        problem = defect(server.state, {}) or defect(server.own, {}) or defect(server.memory, {})
        if problem is not None:
            raise RunError(f"{when}: the server's new model is unusable: {printable(problem)}; lower train.lr")

    def _is_measured(self, t: int) -> bool:
        return self.job.settings.measure.due(t, len(self.schedule))

    def _measure(self, record: Round, watched: Watched | None) -> None:
        self.measurer.forget()
        self._completion = None
        if self._is_measured(record.round):
            seen = self.measurer.measure(self.server.state, watched)
            record.general, record.validation, record.measures = seen.general, seen.validation, seen.measures
        early = self.job.settings.train.patience > 0  # any round may be among the last
        if self.method.finishes and self.measurer.sees_global and (early or record.round > len(self.schedule) - LAST):
            self._completion = self._complete()
            record.completed = self.measurer.measure(self._completion.server.state)

    def _validation(self, last5: Sequence[Measured], personals: Sequence[Personal]) -> Validation | None:
        """What clients held out to validate says of the final models; None if nothing was held out."""
        if not self.job.settings.data.validation_fraction:
            return None
        general = [seen.validation for seen in last5 if seen.validation is not None]
        own = {p.client: p.validation for p in personals}
        per_client = [own.get(client) for client in range(len(self.job.partition))] if personals else []
        return Validation(last5[-1].validation, mean(general), per_client, self.measurer.classes_left_out)

    def _unseen(self, general: Sequence[float | None]) -> Unseen | None:
        """What became of the clients that never trained; None if there are none.

        ``general`` is the global model's accuracy on each client's test split; empty if there is no such model.
        """
        never = self.job.partition.unseen
        if not never:
            return None
        answered = {client: self.personals[client] for client in never if client in self.personals}  # a site may not
        after = {client: personal.accuracy for client, personal in answered.items()}
        return Unseen(
            never, [general[client] if general else None for client in never], [after.get(client) for client in never]
        )

    def _sound(
        self, trained: Iterable[Trained | Missing], record: Round, received: State, watched: Watched | None
    ) -> Iterator[Upload]:
        """Pass on the uploads that can be averaged, and keep the books of the round."""
        losses = []
        down = self._travelling(received)
        verdict = Verdict(self.method, self.server.state, self.sizes, self.job.settings.update.max_ratio)
        for result in trained:
            interruption.check()
            if isinstance(result, Missing):
                (record.refused if result.refused else record.missing)[result.client] = result.why
                continue
            upload = result.upload
            record.bytes_down += down
            record.bytes_up += self._travelling(upload.state)
            record.images += upload.images
            problem = self._decode(upload) or verdict.unfit(result)
            if problem is None and self.job.settings.server.weights == "disco":
                problem = unlikely_distance(upload, self.sizes.classes)
            if problem is not None:
                record.refused[upload.client] = printable(problem)
                continue
            self.engine.keep(result, record.round)
            if watched is not None:
                self.measurer.note(result, watched, self.server.state)
            if upload.samples:
                losses.append((upload.samples, upload.loss))
            yield upload
        self._check_enough(record, len(losses))
        weight = record.samples = sum(n for n, _ in losses)
        loss = sum(n * value for n, value in losses) / weight if weight else math.nan
        record.loss = loss if math.isfinite(loss) else None

    def _decode(self, upload: Upload) -> str | None:
        """Undo the transforms that an update travelled in; what is wrong if that cannot be done."""
        try:
            upload.state = self._compression.decode(upload.state, self.server.state, self.server.parameters)
        except RunError as error:
            return str(error)
        return None

    def _check_enough(self, record: Round, sound: int) -> None:
        """Stop, before the server has changed, if too many updates were left out."""
        left_out = {**record.refused, **record.missing}
        if sound >= self.engine.fewest or not (left_out or self.job.partition.elsewhere):
            return
        client, problem = next(iter(left_out.items()), (record.participants[0], "it trained on no sample"))
        if not sound and not record.missing:
            why = f"every update was refused (client {client}: {problem}); lower train.lr"
        else:
            least = f"at least {self.engine.fewest} are needed"
            why = f"{sound} sound updates of {len(record.participants)}, {least} (client {client}: {problem})"
        raise RunError(f"round {record.round}: {why}")
