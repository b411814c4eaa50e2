"""What a model counts in the mean, ``server.weights``."""

import math

import pytest
import torch

import fedetf
from fedetf.core.server import Server, Upload
from fedetf.core.server.weights import disco, label_distance
from fedetf.engines.steps import Step
from fedetf.engines.verdict import unlikely_distance
from fedetf.engines.wire import pack_results, unpack_results
from fedetf.federation import Federation
from fedetf.flower.messages import pack_answer, unpack_answer
from fedetf.settings import ServerSettings

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 4, "alpha": 0.2, "participation": 0.75, "rounds": 2, "epochs": 1}
SMALL = {"data.limit": 150, "personal.enabled": False}


def combined(values: list[float], samples: list[int], distances: list[float | None], **settings: object) -> float:
    server = Server({"w": torch.zeros(1)}, len(values), settings=ServerSettings(**settings))
    uploads = [
        Upload(k, n, {"w": torch.tensor([float(value)])}, 0.0, n, distance)
        for k, (value, n, distance) in enumerate(zip(values, samples, distances, strict=True))
    ]
    return server.combine(uploads)["w"].item()


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [([5, 5], 0.0), ([9, 0], 0.693147), ([3, 1], 0.130812), ([0, 0], 0.0), ([2] * 10, 0.0), ([7] + [0] * 9, 2.302585)],
)
def test_the_distance_from_an_even_mix(counts: list[int], wanted: float) -> None:
    assert label_distance(torch.tensor(counts)) == pytest.approx(wanted, abs=1e-6)


def test_the_weights_by_hand() -> None:
    """p = (.5, .3, .2), mixes (.5, .5), (1, 0), (.75, .25), a = .5, and b = .1 each, which is .3 divided by three."""
    distances = [0.0, 0.693147, 0.130812]
    weights = disco([50, 30, 20], distances, 0.5, 0.3)
    assert weights == pytest.approx([0.6, 0.0, 0.220620], abs=1e-6)
    settings = {"weights": "disco", "disco_a": 0.5, "disco_b": 0.3}
    assert combined([1, 0, 0], [50, 30, 20], distances, **settings) == pytest.approx(0.731155, abs=1e-6)
    assert combined([0, 0, 1], [50, 30, 20], distances, **settings) == pytest.approx(0.268845, abs=1e-6)


def test_where_the_weights_are_the_sizes() -> None:
    assert disco([3, 1], [0.5, 0.1], 0.0, 0.0) == [3, 1]
    assert disco([3, 1], [0.0, 0.0], 0.5, 0.0) == pytest.approx([0.75, 0.25])
    assert disco([3, 1], [0.5, 0.5], 10.0, 0.0) == [3, 1]  # none would be positive


def test_a_client_without_samples_counts_nothing() -> None:
    assert combined([1, 9], [5, 0], [0.1, 0.0], weights="disco") == 1
    assert combined([1, 9], [5, 0], [None, None], weights="uniform") == 1


def test_size_and_uniform() -> None:
    assert combined([0, 4], [1, 3], [None, None]) == 3
    assert combined([0, 4], [1, 3], [None, None], weights="uniform") == 2


def test_disco_without_a_and_b_is_fedavg_to_the_bit_and_with_them_is_not() -> None:
    neutral = {"server.weights": "disco", "server.disco_a": 0.0, "server.disco_b": 0.0}
    a, b, c = (
        fedetf.run(method="fedavg", settings={**SMALL, **own}, **OPTIONS).model().state_dict()
        for own in ({}, neutral, {"server.weights": "disco"})
    )
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    assert not torch.equal(a["head.weight"], c["head.weight"])


def test_the_distance_that_a_client_sends() -> None:
    job = fedetf.run(method="fedavg", settings={**SMALL, "server.weights": "disco"}, **OPTIONS).job
    (trained,) = Federation(job, []).engine.train([0], 1, Federation(job, [])._received())
    counts = job.partition.counts[0]
    mix = [n / counts.sum() for n in counts if n]
    assert trained.upload.distance == pytest.approx(math.log(10) + sum(p * math.log(p) for p in mix))


def test_the_distance_travels_only_where_it_counts() -> None:
    job = fedetf.run(method="fedavg", settings=SMALL, **OPTIONS).job
    (trained,) = Federation(job, []).engine.train([0], 1, Federation(job, [])._received())
    assert trained.upload.distance is None
    step, most = Step("train", 1, client=0, round=1), 10**9
    answer = pack_answer(trained)
    assert set(answer.metric_records["metrics"]) == {"samples", "loss", "images"}
    assert unpack_answer(step, answer, torch.device("cpu"), most).upload.distance is None
    trained.upload.distance = 0.1
    assert unpack_answer(step, pack_answer(trained), torch.device("cpu"), most).upload.distance == 0.1
    (arrived,) = unpack_results(bytearray(bytes(pack_results([trained], []))))
    assert arrived.upload.distance == 0.1


@pytest.mark.parametrize("distance", [None, -0.1, 2.31, math.nan, math.inf])
def test_a_distance_that_no_client_can_have_is_refused(distance: float | None) -> None:
    job = fedetf.run(method="fedavg", settings={**SMALL, "server.weights": "disco"}, **OPTIONS).job
    federation = Federation(job, [])
    (trained,) = federation.engine.train([0], 1, federation._received())
    assert unlikely_distance(trained.upload, federation.sizes.classes) is None
    trained.upload.distance = distance
    assert "not a number from 0 to 2.303" in str(unlikely_distance(trained.upload, federation.sizes.classes))


@pytest.mark.parametrize(
    ("method", "more", "why"),
    [
        ("fedavg", {"update.clip": 1.0, "update.noise": 1.0}, "that no noise covers"),
        ("fedavg", {"server.combine": "median"}, "is made for server.combine = 'mean'"),
        ("feddyn", {}, "feddyn counts every client the same; leave out server.weights"),
    ],
)
def test_what_disco_does_not_go_with(method: str, more: dict[str, object], why: str) -> None:
    with pytest.raises(fedetf.UserError, match=why):
        fedetf.run(method=method, settings={**SMALL, "server.weights": "disco", **more}, **OPTIONS)


def test_serial_and_processes_give_the_same_bits() -> None:
    settings = {**SMALL, "server.weights": "disco"}
    engines = ({"engine": "serial"}, {"engine": "processes", "workers": 2})
    a, b = (fedetf.run(method="fednova", settings=settings, **OPTIONS, **engine).model() for engine in engines)
    assert all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())
