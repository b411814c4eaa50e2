"""``fidelity = "authors"``: what the authors' code does differently, each departure seen on its own."""

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.config import resolve
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method, make_method
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
    authors = fedetf.run(method=method, settings=SMALL, **OPTIONS)
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
        federation = quadratic(METHODS["fedavg"], [1.0], [[0], [0]], lr=0.1)
        train = federation.job.settings.train.model_copy(update={"momentum": 0.5, "keep_momentum": keep})
        settings = federation.job.settings.model_copy(update={"train": train})
        object.__setattr__(federation.job, "settings", settings)
        list(federation.rounds())
        assert weight(federation) == pytest.approx(wanted)


def test_feddyn_pulls_with_constant_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step from 0.1 is −0.1·((0.1 − 1) + α/2), the norm's gradient being ±1."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([1.0]))
    federation = quadratic(AUTHORS["feddyn"], [1.0], [[0]], lr=0.1, epochs=2, alpha=0.4)
    uploads = [t.upload.state["head.weight"].item() for t in federation.engine.train([0], 1, federation.server.state)]
    assert uploads == pytest.approx([0.1 + 0.1 * 0.9 - 0.1 * 0.2])


def moved_by(job, call) -> set[str]:
    client = Worker(job, torch.device("cpu"))._client(0, 1, Federation(job, []).server.state, {}, epochs=1, lr=0.1)
    before = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    call(client)
    return {name for name, tensor in client.net.state_dict().items() if not torch.equal(tensor, before[name])}


def test_frozen_encoders_drift_and_beta_stays() -> None:
    job = fedetf.run(method="fedetf", settings=SMALL, **OPTIONS).job
    calls = []
    train = fedetf.client.Client.train

    def spy(client, loss, params=None, **options):
        calls.append((params, options.get("epochs")))
        train(client, loss, params, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedetf.client.Client, "train", spy)
        Worker(job, torch.device("cpu")).personalise(0, Federation(job, []).server.state, {})
    assert calls == [(None, None), *[(["head.V"], 3), (["head.projection"], 3)] * 2]

    def one_turn(client):
        client.train(job.method.loss, ["head.V"], eval_frozen_encoder=False)

    moved = moved_by(job, one_turn)
    assert {name for name in moved if "running" not in name and "tracked" not in name} == {"head.V"}
    assert any("running_mean" in name for name in moved)


def test_plain_parts_have_no_weight_decay() -> None:
    job = fedetf.run(method="fedrod", settings={**SMALL, "train.weight_decay": 0.5, "train.lr": 0.1}, **OPTIONS).job

    def still(client, h, y):  # a loss without a gradient: only weight decay moves anything
        return 0 * sum(p.sum() for p in client.net.parameters())

    moved = moved_by(job, lambda client: client.train(still, plain=["head.private"]))
    assert "head.generic.weight" in moved
    assert "head.private.weight" not in moved


def test_fedproto_sends_zeros_for_what_it_lacks() -> None:
    job = fedetf.run(method="fedproto", settings=SMALL, **OPTIONS).job
    upload = Worker(job, torch.device("cpu")).train(0, 1, {}, {}).upload.state
    lacks = torch.from_numpy(job.partition.counts[0] == 0)
    assert lacks.any()
    assert torch.equal(upload["prototypes"][lacks], torch.zeros(int(lacks.sum()), 128))


def test_numbers_are_still_checked() -> None:
    with pytest.raises(fedetf.UserError, match=r"method.lam"):
        make_method({"name": "ditto", "lam": -1}, "authors")
    assert make_method({"name": "ditto"}, "authors").lam == 0.001
