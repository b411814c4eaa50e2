"""FedETF: Algorithms 1 and 2 against NumPy, and the identities of the method."""

import numpy as np
import numpy_fedetf as truth
import pytest
import torch
from conftest import blobs
from torch import nn

import fedetf
from fedetf.core.client import Client
from fedetf.engines.worker import Worker
from fedetf.methods import Scope, Server
from fedetf.methods.fedetf import FedETF, plain_loss
from fedetf.rng import torch_stream

LR, DECAY, MOMENTUM, WD = 0.3, 0.9, 0.9, 0.01
ROUNDS, EPOCHS, TURNS = 3, 2, 2
LR_ETF, LR_PROJ = 0.2, 0.1


def federation(tmp_path, **settings) -> fedetf.Result:
    data = blobs(clients=3, n=20)
    data[1] = (data[1][0][:9], data[1][1][:9] % 2)  # a smaller client that lacks a class
    torch.manual_seed(0)
    chosen = {
        "train.lr": LR,
        "train.lr_decay": DECAY,
        "train.momentum": MOMENTUM,
        "train.weight_decay": WD,
        "train.batch_size": 100,
        "personal.rounds": TURNS,
        "personal.lr_etf": LR_ETF,
        "personal.lr_proj": LR_PROJ,
        "data.normalize": "none",
        **settings,
    }
    encoder = nn.Linear(5, 4, bias=False)
    return fedetf.run(
        method="fedetf", data=data, model=encoder, rounds=ROUNDS, epochs=EPOCHS, out=tmp_path / "run", settings=chosen
    )


def as_numpy(net: nn.Module) -> truth.Weights:
    state = {name: tensor.double().numpy() for name, tensor in net.state_dict().items()}
    return truth.Weights(
        A=state["encoder.weight"],
        P=state["head.projection.weight"],
        b=state["head.projection.bias"],
        beta=float(state["head.beta"]),
        V=state["head.V"],
    )


def assert_weights(ours: truth.Weights, theirs: truth.Weights) -> None:
    for name in ("A", "P", "b", "beta", "V"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=2e-5, err_msg=name)


def client_data(result: fedetf.Result, k: int):
    train = result.job.dataset.train
    indices = result.partition.train[k]
    x, y = train.x[indices].double().numpy(), train.y[indices].numpy()
    return x, y, np.bincount(y, minlength=3)


def algorithm_1(result: fedetf.Result, gamma: float) -> truth.Weights:
    w = as_numpy(result.job.build_net())
    for t in range(ROUNDS):
        models, sizes = [], []
        for k in range(3):
            x, y, n = client_data(result, k)
            offset = gamma * np.log(np.maximum(n, 1))
            models.append(truth.sgd(w, "A P b beta", x, y, offset, EPOCHS, LR * DECAY**t, MOMENTUM, WD))
            sizes.append(len(y))
        w = truth.mean(models, sizes)
    return w


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_algorithm_1(tmp_path, gamma: float) -> None:
    result = federation(tmp_path, **{"method.gamma": gamma})
    assert_weights(as_numpy(result.model()), algorithm_1(result, gamma))


def test_algorithm_2(tmp_path) -> None:
    result = federation(tmp_path)
    final = as_numpy(result.model())
    for k in range(3):
        x, y, _ = client_data(result, k)
        plain = np.zeros(3)
        w = truth.sgd(final, "A beta", x, y, plain, EPOCHS, LR * DECAY**ROUNDS, MOMENTUM, WD)
        for _ in range(TURNS):
            w = truth.sgd(w, "V beta", x, y, plain, EPOCHS, LR_ETF, 0, 0)
            w = truth.sgd(w, "P b beta", x, y, plain, EPOCHS, LR_PROJ, MOMENTUM, WD)
        assert_weights(as_numpy(result.model(client=k)), w)


def test_the_numpy_truth_agrees_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    w = truth.Weights(
        rng.normal(size=(4, 5)), rng.normal(size=(3, 4)), rng.normal(size=3), 1.3, rng.normal(size=(3, 3))
    )
    x, y, offset = rng.normal(size=(6, 5)), rng.integers(0, 3, 6), rng.normal(size=3)

    def loss(w: truth.Weights) -> float:
        mu = x @ w.A.T @ w.P.T + w.b
        z = w.beta * (mu / np.linalg.norm(mu, axis=1, keepdims=True)) @ w.V + offset
        return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(6), y]))

    g = truth.gradients(w, x, y, offset)
    for name in ("A", "P", "b", "V"):
        value = getattr(w, name)
        for index in np.ndindex(*value.shape):
            step = np.zeros_like(value)
            step[index] = 1e-6
            up, down = truth.replace(w, **{name: value + step}), truth.replace(w, **{name: value - step})
            assert (loss(up) - loss(down)) / 2e-6 == pytest.approx(getattr(g, name)[index], abs=1e-7)
    up, down = truth.replace(w, beta=w.beta + 1e-6), truth.replace(w, beta=w.beta - 1e-6)
    assert (loss(up) - loss(down)) / 2e-6 == pytest.approx(g.beta, abs=1e-7)


# --- identities -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path) -> fedetf.Result:
    return fedetf.run(
        method="fedetf", clients=4, alpha=0.5, rounds=2, epochs=1, out=tmp_path / "run", settings={"data.limit": 200}
    )


def states_during(result: fedetf.Result, phase: int) -> tuple[dict, dict, dict]:
    """The net's tensors before and after one phase of Algorithm 2: 0 extractor, 1 ETF, 2 projection."""
    worker = Worker(result.job, torch.device("cpu"))
    shared = result.job.method.scoped(result.outcome.model, Scope.SHARED)
    snapshots = []
    original = Client.train

    def spy(self, *args, **kwargs):
        before = {n: t.detach().clone() for n, t in self.net.state_dict().items()}
        original(self, *args, **kwargs)
        snapshots.append((before, {n: t.detach().clone() for n, t in self.net.state_dict().items()}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "train", spy)
        worker.personalise(0, shared, {})
    before, after = snapshots[phase]
    return before, after, {n for n in before if not torch.equal(before[n], after[n])}


def test_each_phase_moves_what_it_should_and_nothing_else(trained: fedetf.Result) -> None:
    before, _, moved = states_during(trained, 0)
    assert {n.split(".")[0] for n in moved} == {"encoder", "head"}
    assert {n for n in moved if n.startswith("head")} == {"head.beta"}
    assert any("running_mean" in n for n in moved)  # BatchNorm follows the extractor while it trains
    _, _, moved = states_during(trained, 1)
    assert moved == {"head.V", "head.beta"}
    _, _, moved = states_during(trained, 2)
    assert moved == {"head.projection.weight", "head.projection.bias", "head.beta"}
    assert before["head.V"].shape == (10, 10)


def test_v_is_the_same_before_and_after_training_and_travels_nowhere(trained: fedetf.Result) -> None:
    assert torch.equal(trained.model().head.V, trained.job.build_net().head.V)
    worker = Worker(trained.job, torch.device("cpu"))
    shared = trained.job.method.scoped(trained.outcome.model, Scope.SHARED)
    upload = worker.train(0, 1, shared, {}).upload
    assert "head.V" not in upload.state
    assert {"head.beta", "head.projection.weight", "encoder.stem.0.weight"} <= upload.state.keys()
    sent = sum(t.numel() * t.element_size() for n, t in trained.outcome.model.items() if n != "head.V")
    assert trained.rounds[0].bytes_up == 4 * sent


def test_after_a_personal_stage_the_next_client_starts_from_the_fixed_etf(trained: fedetf.Result) -> None:
    worker = Worker(trained.job, torch.device("cpu"))
    shared = trained.job.method.scoped(trained.outcome.model, Scope.SHARED)
    alone = Worker(trained.job, torch.device("cpu")).personalise(1, shared, {})
    worker.personalise(0, shared, {})
    after = worker.personalise(1, shared, {})
    assert all(torch.equal(after.state[n], alone.state[n]) for n in alone.state)


def test_no_epochs_and_no_turns_leave_the_global_model(tmp_path) -> None:
    result = fedetf.run(
        method="fedetf",
        clients=3,
        rounds=1,
        epochs=1,
        out=tmp_path / "run",
        settings={"personal.epochs": 0, "personal.rounds": 0, "data.limit": 100},
    )
    personal = result.model(client=2).state_dict()
    assert all(torch.equal(tensor, personal[name]) for name, tensor in result.model().state_dict().items())


def test_stage_two_equals_a_plain_loop_through_the_encoder_in_eval_mode(trained: fedetf.Result) -> None:
    """The same turns without reused features: images through the frozen encoder at every step, torch's own SGD."""
    shared = trained.job.method.scoped(trained.outcome.model, Scope.SHARED)
    worker = Worker(trained.job, torch.device("cpu"))
    client = worker.client(0, 3, shared, {}, epochs=2, lr=0.02)
    client.train(plain_loss, ["head.V", "head.beta"], lr=0.1, momentum=0, weight_decay=0)
    client.train(plain_loss, ["head.projection", "head.beta"], lr=0.05)

    net = trained.model().eval()
    data, indices = trained.job.dataset.train, trained.partition.train[0]
    x, y = (data.x[indices].float() / 255 - 0.5) / 0.5, data.y[indices]
    stream = torch_stream(trained.settings.seed, "batches", 3, 0)
    net.requires_grad_(False)
    head = net.head
    for tensors, options in (
        ([head.V, head.beta], {"lr": 0.1}),
        (
            [head.projection.weight, head.projection.bias, head.beta],
            {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
        ),
    ):
        optimiser = torch.optim.SGD([t.requires_grad_() for t in tensors], **options)
        for _ in range(2):
            for batch in torch.randperm(len(y), generator=stream).split(trained.settings.train.batch_size):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                optimiser.step()
        for tensor in tensors:
            tensor.requires_grad_(False)
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(client.net.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)


def test_equal_counts_make_the_balanced_loss_plain() -> None:
    x, y = blobs(1, 30)[0]
    y = np.arange(30) % 3
    models = []
    for gamma in (1.0, 0.0):
        torch.manual_seed(0)
        result = fedetf.run(
            data=[(x, y)] * 2,
            test=(x, y),
            model=nn.Linear(5, 4),
            rounds=2,
            epochs=2,
            settings={"method.gamma": gamma, "data.test_fraction": 0, "personal.enabled": False},
        )
        models.append(result.model().state_dict())
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, atol=1e-6, rtol=1e-5)


def test_balanced_false_is_gamma_0() -> None:
    def final(**method: object) -> dict:
        settings = {f"method.{name}": value for name, value in method.items()}
        settings |= {"data.limit": 150, "personal.enabled": False}
        return fedetf.run(clients=3, alpha=0.1, rounds=1, epochs=1, settings=settings).model().state_dict()

    plain, gamma_0, default = final(balanced=False), final(gamma=0.0), final()
    assert all(torch.equal(plain[n], gamma_0[n]) for n in plain)
    assert not all(torch.equal(plain[n], default[n]) for n in plain)


@pytest.mark.parametrize(
    ("method", "absent"),
    [({"projection": False}, "head.projection.weight"), ({"learn_beta": False, "beta": 5.0}, None), ({"dim": 9}, None)],
)
def test_ablations_run_to_the_end(method: dict, absent: str | None) -> None:
    settings = {f"method.{name}": value for name, value in method.items()} | {"data.limit": 150, "personal.rounds": 2}
    result = fedetf.run(clients=3, rounds=1, epochs=1, settings=settings)
    assert result.personal is not None
    assert absent not in result.model().state_dict()
    if "beta" in method:
        assert result.model().head.beta.item() == 5


def test_finetuning_is_noted_step_by_step(trained: fedetf.Result) -> None:
    """Before, after the extractor, and after each of the 20 turns; the last is the result."""
    curve = trained.outcome.personal_curve
    assert len(curve) == 22
    assert curve[-1] == pytest.approx(trained.personal)


def test_a_temperature_below_zero_is_said() -> None:
    server = Server({"head.beta": torch.tensor(-0.1)}, clients=1, round=3)
    with pytest.warns(UserWarning, match="round 3: the temperature beta is no longer positive"):
        FedETF().aggregate(server, [])
