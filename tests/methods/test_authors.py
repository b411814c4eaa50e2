"""``fidelity = "authors"``: what the authors' code does differently, each departure seen on its own."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.config import resolve
from fedetf.engines.job import build_net
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method, Server, Upload, make_method
from fedetf.methods.authors import AUTHORS

OPTIONS = {"clients": 4, "alpha": 0.2, "participation": 0.5, "rounds": 2, "epochs": 1}
SMALL = {"data.limit": 150, "personal.rounds": 2, "fidelity": "authors"}

pytestmark = pytest.mark.slow


def test_settings() -> None:
    settings = resolve("authors", {"data.name": "cifar10"})
    assert settings.fidelity == "authors"
    assert settings.train.lr_decay == 1
    assert settings.train.keep_momentum
    assert settings.model.name == "resnet20"
    assert resolve("authors", {"train.lr_decay": 0.5}).train.lr_decay == 0.5  # what is given wins


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_runs_and_differs(method: str) -> None:
    counts_steps = {"train.keep_momentum": False} if method in ("fednova", "scaffold") else {}  # from zero only
    authors = fedetf.run(method=method, settings={**SMALL, **counts_steps}, **OPTIONS)
    paper = fedetf.run(method=method, settings={**SMALL, "fidelity": "paper"}, **OPTIONS)
    assert type(authors.job.method) is AUTHORS.get(method, METHODS[method])
    assert authors.job.method.name == method
    assert authors.personal is not None
    ours, theirs = paper.model().state_dict(), authors.model().state_dict()
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)


def test_momentum_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """(w − 1)²/2 from 0, rate 0.1, momentum 0.5: steps 0.1, then 0.1·(0.9 + 0.5·1) with the kept buffer."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([1.0]))
    for keep, wanted in ((True, 0.24), (False, 0.19)):
        settings = {"train.momentum": 0.5, "train.keep_momentum": keep}
        federation = quadratic(METHODS["fedavg"], [1.0], [[0], [0]], lr=0.1, settings=settings)
        list(federation.rounds())
        assert weight(federation) == pytest.approx(wanted)


def test_feddyn_pulls_with_constant_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step from 0.1 is −0.1·((0.1 − 1) + α/2), the norm's gradient being ±1."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([1.0]))
    federation = quadratic(AUTHORS["feddyn"], [1.0], [[0]], lr=0.1, epochs=2, alpha=0.4)
    uploads = [t.upload.state["head.weight"].item() for t in federation.engine.train([0], 1, federation.server.state)]
    assert uploads == pytest.approx([0.1 + 0.1 * 0.9 - 0.1 * 0.2])


def moved_by(job, call) -> set[str]:
    client = Worker(job, torch.device("cpu")).client(0, 1, Federation(job, []).server.state, {}, epochs=1, lr=0.1)
    before = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    call(client)
    return {name for name, tensor in client.net.state_dict().items() if not torch.equal(tensor, before[name])}


def test_frozen_encoders_drift_and_beta_stays() -> None:
    job = fedetf.run(method="fedetf", settings=SMALL, **OPTIONS).job
    calls = []
    train = fedetf.core.client.Client.train

    def spy(client, loss, params=None, **options):
        calls.append((params, options.get("epochs")))
        train(client, loss, params, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedetf.core.client.Client, "train", spy)
        Worker(job, torch.device("cpu")).personalise(0, Federation(job, []).server.state, {})
    assert calls == [(None, None), *[(["head.V"], 3), (["head.projection"], 3)] * 2]

    def one_turn(client):
        client.train(job.method.loss, ["head.V"], eval_frozen_encoder=False)

    moved = moved_by(job, one_turn)
    assert {name for name in moved if "running" not in name and "tracked" not in name} == {"head.V"}
    assert any("running_mean" in name for name in moved)


def test_plain_parts_have_no_weight_decay() -> None:
    job = fedetf.run(method="fedrod", settings={**SMALL, "train.weight_decay": 0.5, "train.lr": 0.1}, **OPTIONS).job

    def still(client, batch):  # a loss without a gradient: only weight decay moves anything
        return 0 * sum(p.sum() for p in client.net.parameters())

    moved = moved_by(job, lambda client: client.train(still, plain=["head.private"]))
    assert "head.generic.weight" in moved
    assert "head.private.weight" not in moved


def upload(client: int, **state: list) -> Upload:
    return Upload(client, 1, {name: torch.tensor(values) for name, values in state.items()}, 0.0, 1)


def test_fedproto_forgets_a_class_that_nobody_holds() -> None:
    """The mean over holders: ((2, 0) + (0, 2))/2, and (3, 3) of a single one. Class 2 had (5, 5); it becomes 0."""
    prototypes, known = torch.tensor([[0.0, 0.0], [0.0, 0.0], [5.0, 5.0]]), torch.tensor([False, False, True])
    server = Server({"head.prototypes": prototypes, "head.known": known}, clients=2)
    uploads = [
        upload(0, classes=[0, 1], prototypes=[[2.0, 0.0], [3.0, 3.0]]),
        upload(1, classes=[0], prototypes=[[0.0, 2.0]]),
    ]
    make_method({"name": "fedproto"}, "authors").aggregate(server, uploads)
    assert server.state["head.prototypes"].tolist() == [[1, 1], [3, 3], [0, 0]]
    assert server.state["head.known"].all()  # so that features of class 2 are drawn to zero


def test_fedproto_sends_what_it_holds() -> None:
    job = fedetf.run(method="fedproto", settings=SMALL, **OPTIONS).job
    sent = Worker(job, torch.device("cpu")).train(0, 1, {}, {}).upload.state
    assert sent["classes"].tolist() == job.partition.counts[0].nonzero()[0].tolist()


def test_fednh_takes_the_direction_of_the_mean_of_raw_means() -> None:
    """Means (3, 0) and (0, 1): their mean has the direction (3, 1)/√10. W ← unit(0.9·(0, 1) + 0.1·(3, 1)/√10)."""
    server = Server({"head.W": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}, clients=2)
    uploads = [
        upload(0, classes=[0], counts=[1], means=[[3.0, 0.0]]),
        upload(1, classes=[0], counts=[1], means=[[0.0, 1.0]]),
    ]
    make_method({"name": "fednh"}, "authors").aggregate(server, uploads)
    assert server.state["head.W"][0].tolist() == pytest.approx([0.101307, 0.994855], abs=1e-6)
    assert server.state["head.W"][1].tolist() == [1, 0]


def test_ccvr_adds_the_variance_between_clients_to_the_mean_of_deviations() -> None:
    """Means 0 and 4, deviations 1 and 3: around 2, with (1 + 3)/2 + (0² + 4²)/2 − 2² = 6."""
    summaries = [
        {"classes": torch.tensor([0]), "means": torch.tensor([[mean]]), "deviations": torch.tensor([[deviation]])}
        for mean, deviation in ((0.0, 1.0), (4.0, 3.0))
    ]
    method = make_method({"name": "ccvr", "samples": 200_000}, "authors")
    features, labels = method.virtual_features(Server({}, clients=2, seed=1), summaries)
    assert labels.tolist() == [0] * 200_000
    assert features.mean().item() == pytest.approx(2, abs=0.1)
    assert features.std().item() == pytest.approx(6, rel=0.01)


def test_ccvr_finetunes_with_a_new_optimiser() -> None:
    """Momentum that the rounds left moves FedAvg's finetuning, not CCVR's: the authors run that as another program."""
    for name, moved in (("fedavg", True), ("ccvr", False)):
        job = fedetf.run(method=name, model="mlp", settings={**SMALL, "personal.enabled": False}, **OPTIONS).job
        received = Federation(job, []).server.state
        kept = {
            f"optimiser.momentum.batches.{key}": torch.full_like(received[key], 0.01)
            for key in ("head.weight", "head.bias")
        }
        with_it, without = (
            Worker(job, torch.device("cpu")).personalise(0, received, private).state for private in (kept, {})
        )
        assert torch.equal(with_it["head.weight"], without["head.weight"]) != moved


def test_each_turn_of_the_projection_has_an_optimiser_of_its_own() -> None:
    """Stage two on full batches, beside torch's own SGD made anew for each turn, as the authors' code does."""
    job = fedetf.run(method="fedetf", model="mlp", settings={**SMALL, "train.batch_size": 1000}, **OPTIONS).job
    received = Federation(job, []).server.state
    worker = Worker(job, torch.device("cpu"))
    kept = {
        "optimiser.momentum.batches.head.projection.weight": torch.full((10, 64), 0.01),
        "optimiser.momentum.batches.head.projection.bias": torch.full((10,), 0.01),
    }
    client = worker.client(0, 3, received, kept, epochs=1, lr=0.05)
    client.train(job.method.loss)  # stage one, with the momentum of the rounds
    net, x = client.net, client._bench.prepare(client._data.x[client._train])
    h, y = net.encoder(x).detach(), client._data.y[client._train]
    V, projection = net.head.V.clone().requires_grad_(), torch.nn.Linear(64, 10)
    projection.load_state_dict(net.head.projection.state_dict())
    for _ in range(2):
        turns = (
            torch.optim.SGD([V], 0.1),
            torch.optim.SGD(projection.parameters(), 0.05, momentum=0.9, weight_decay=5e-4),
        )
        for optimiser in turns:
            for _ in range(3):
                optimiser.zero_grad()
                mu = torch.nn.functional.normalize(projection(h))
                torch.nn.functional.cross_entropy(net.head.beta.detach() * mu @ V, y).backward()
                optimiser.step()
    other = worker.client(0, 3, received, kept, epochs=1, lr=0.05)
    job.method.personalise(other)
    assert torch.allclose(other.net.head.V, V, atol=1e-6)
    assert torch.allclose(other.net.head.projection.weight, projection.weight, atol=1e-6)


def test_convolutions_start_as_pytorch_draws_them() -> None:
    """Uniform within ±1/√fan_in; He's normal numbers, the paper's, go beyond that."""
    for fidelity, within in (("authors", True), ("paper", False)):
        settings = resolve(None, {"fidelity": fidelity, "model.name": "resnet20"})
        method = make_method({"name": "fedavg"}, fidelity)
        net = build_net(settings, method, torch.zeros(2, 3, 32, 32), classes=10, own=None)
        for conv in net.encoder.modules():
            if isinstance(conv, torch.nn.Conv2d):
                bound = conv.weight[0].numel() ** -0.5
                assert (conv.weight.abs().max() <= bound) == within
                assert conv.weight.abs().max() > 0.9 * bound


def test_numbers_are_still_checked() -> None:
    with pytest.raises(fedetf.UserError, match=r"method.lam"):
        make_method({"name": "ditto", "lam": -1}, "authors")
    assert make_method({"name": "ditto"}, "authors").lam == 0.001
