"""The server of a federation: what it keeps, and how it makes one model of many.

Uploads pass, in this order: clipping (``update.clip``), the rule that combines them (``server.combine``), noise
(``update.noise``), and the server's step (``server.optimiser``). By default that is the mean by data size, and no more.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from fedetf.core.server import combine as rules
from fedetf.core.server.optimisers import initial_memory, is_plain, moved, zeros
from fedetf.core.server.privacy import Noise, clipped
from fedetf.core.server.weights import disco
from fedetf.core.state import State, select, widest
from fedetf.settings import ServerSettings, TrainSettings, UpdateSettings

CENTRE = "centre."  # before the names of where centred clipping ended


@dataclass
class Upload:
    """What one client sends after its local training."""

    client: int
    samples: int  # n_k, its weight in the average
    state: State
    loss: float  # mean training loss, for the record
    images: int  # how many it trained on, epochs counted, for the record
    distance: float | None = None  # of its classes from an even mix, where server.weights = "disco"


class NoiseSource(Protocol):
    """Where the noise of differential privacy comes from."""

    @property
    def noise(self) -> Noise:
        """What draws it."""

    def release(self, round: int) -> int:
        """The number of the mean that is about to be noised: no two have the same, or one would uncover the other."""

    def releases(self, rounds: int) -> int:
        """How many means were noised by the end of the given number of rounds."""


@dataclass
class RoundNoise:
    """In a simulation: one noised mean a round, from a key that the run's seed gives."""

    noise: Noise

    def release(self, round: int) -> int:
        """The round's number: a round that is run again after a crash is the same to the bit."""
        return round

    def releases(self, rounds: int) -> int:
        """One each."""
        return rounds


@dataclass
class Server:
    """What the server keeps between rounds."""

    state: State  # the SHARED and RECEIVED tensors of the net: what clients receive
    clients: int  # K, all that hold data
    seed: int = 0
    own: State = field(default_factory=dict)  # what the method keeps here, see Method.server_state
    round: int = 0
    parameters: tuple[str, ...] = ()  # those of ``state`` that clients train; the others are buffers
    plain: frozenset[str] = frozenset()  # those that an adaptive optimiser must not touch, see Method.temperatures
    train: TrainSettings = field(default_factory=TrainSettings)  # how clients train
    settings: ServerSettings = field(default_factory=ServerSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    noise: NoiseSource = field(default_factory=lambda: RoundNoise(Noise(b"")))
    memory: State = field(default_factory=dict)  # of the server's optimiser and rule, see begin
    counted: int = 0  # the uploads that the last combined model was made of

    def begin(self) -> None:
        """Make the memory of the optimiser and the rule, as it is before the first round."""
        parameters = select(self.state, self.parameters)
        self.memory = initial_memory(select(parameters, self._stepped()), self.settings)
        if self.settings.combine == "centred_clip":
            self.memory |= {CENTRE + name: zeros(tensor) for name, tensor in parameters.items()}

    def combine(self, uploads: Iterable[Upload], uniform: bool = False, beside: Collection[str] = ()) -> State:
        """One model of those that were sent, by ``server.combine``, with noise if asked for; empty if there are none.

        ``uniform`` gives every client the same weight whatever ``server.weights`` says; so do noise and all rules but
        the mean. Clients without samples do not count then. ``beside`` names statistics in the uploads that are
        combined along with the model, by the same rule and weights, but not clipped: take them out again.
        """
        uniform = uniform or self.settings.combine != "mean" or self.update.noise > 0
        self.counted = 0

        def models() -> Iterable[tuple[int, State, float]]:
            for upload, weight in self._weighed(uploads, uniform):
                self.counted += 1
                yield upload.client, self._model(upload) | select(upload.state, beside), weight

        combined = self._combined(models())
        if combined and self.update.noise > 0:
            scale = self.update.noise * (self.update.clip or 0.0) / self.counted
            combined = self.noise.noise.on(combined, self.state, scale, self.noise.release(self.round))
        return combined

    def move_to(self, combined: State) -> None:
        """Take the combined model, or a step of ``server.optimiser`` towards it; with none nothing changes."""
        if combined and not is_plain(self.settings):
            combined = moved(combined, self.state, self._stepped(), self.settings, self.memory)
        self.state.update(combined)

    def _stepped(self) -> list[str]:
        """What the optimiser moves: a normalised step would move a temperature by the same amount every round."""
        kept = () if self.settings.optimiser == "momentum" else self.plain
        return [name for name in self.parameters if name not in kept]

    def _weighed(self, uploads: Iterable[Upload], uniform: bool) -> Iterable[tuple[Upload, float]]:
        """Each upload with its weight in the mean. FedDisco's weights depend on all uploads, so all are in memory."""
        if uniform or self.settings.weights == "uniform":
            return ((upload, 1.0) for upload in uploads if upload.samples)
        if self.settings.weights == "size":
            return ((upload, upload.samples) for upload in uploads)
        sent = [upload for upload in uploads if upload.samples]
        sizes, distances = [u.samples for u in sent], [u.distance or 0.0 for u in sent]
        return zip(sent, disco(sizes, distances, self.settings.disco_a, self.settings.disco_b), strict=True)

    def _model(self, upload: Upload) -> State:
        """The model in an upload, clipped; statistics beside it are the method's own."""
        model = {name: tensor for name, tensor in upload.state.items() if name in self.state}
        return model if self.update.clip is None else clipped(model, self.state, self.update.clip)

    def _combined(self, models: Iterable[tuple[int, State, float]]) -> State:
        name = self.settings.combine
        if name == "mean":
            return rules.mean((model, weight) for _, model, weight in models)
        sent = [model for _, model, _ in sorted(models, key=lambda each: each[0])]
        if not sent or not self.parameters:
            return {}
        faulty = len(sent) // 5 if self.settings.faulty is None else self.settings.faulty
        robust: dict[str, Callable[[rules.Models], State]] = {
            "median": rules.median,
            "trimmed_mean": partial(rules.trimmed_mean, faulty=faulty),
            "krum": partial(rules.krum, parameters=self.parameters, faulty=faulty, chosen=1),
            "multi_krum": partial(rules.krum, parameters=self.parameters, faulty=faulty),
            "geometric_median": partial(rules.geometric_median, parameters=self.parameters),
            "centred_clip": self._centred_clip,
        }
        return robust[name](sent)

    def _centred_clip(self, models: rules.Models) -> State:
        """Its centre is kept as an update: where the model goes, it goes along."""
        centre = {name: self.memory[CENTRE + name] + self.state[name] for name in self.parameters}
        combined = rules.centred_clip(models, self.parameters, centre, self.settings.radius)
        for name in self.parameters:
            wide = widest(self.state[name].device)
            self.memory[CENTRE + name] = combined[name].to(wide) - self.state[name].to(wide)
        return combined


__all__ = ["Noise", "NoiseSource", "RoundNoise", "Server", "Upload"]
