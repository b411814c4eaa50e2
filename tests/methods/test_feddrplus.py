"""FedDr+'s two terms by hand, what stands still, and what is refused."""

import pytest
import torch
from by_hand import batch_of, client_of, loss_of, small_run

import fedetf
from fedetf.core.client import Client
from fedetf.engines.worker import Worker
from fedetf.methods import METHODS

FedDrPlus = METHODS["feddrplus"]


def client_with(method, V: torch.Tensor, inputs: torch.Tensor) -> Client:
    """A client with this ETF ``[D, C]``, whose received encoder passes inputs on."""
    client = client_of(method, [1, 1, 1], width=len(V), inputs=inputs)
    client.net.head.V.copy_(V)
    client.received = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    return client


def test_by_hand() -> None:
    """h = (3, 4), v = (1, 0), hᵍ = (3, 3): cos 0.6, so 0.9·0.08 + 0.1·0.5."""
    V = torch.tensor([[1.0, -0.5, -0.5], [0.0, 0.866, -0.866]])
    client = client_with(FedDrPlus(), V, torch.full((3, 2), 3.0))
    assert loss_of(FedDrPlus(), client, [[3.0, 4.0]], [0], rows=[1]).item() == pytest.approx(0.122, abs=1e-6)
    h = torch.tensor([[3.0, 4.0]], requires_grad=True)
    FedDrPlus(beta=1.0).loss(client, batch_of(h, [0])).backward()
    assert h.grad[0].tolist() == pytest.approx([-0.0512, 0.0384], abs=1e-6)


@pytest.mark.parametrize(("classes", "loss"), [(3, 1.125), (10, 0.617284)])
def test_the_regression_at_another_classs_vector(classes: int, loss: float) -> None:
    """cos = −1/(C−1)."""
    method = FedDrPlus(beta=1.0)
    client = client_of(method, [1] * classes)
    h = client.net.head.V[:, 1][None]
    assert method.loss(client, batch_of(h, [0])).item() == pytest.approx(loss, abs=1e-5)


def test_at_the_first_step_the_distillation_and_its_gradient_are_zero() -> None:
    x = torch.randn(3, 3)
    client = client_with(FedDrPlus(beta=0.0), torch.eye(3), x)
    rows = torch.tensor([2, 0])
    h = x[rows].clone().requires_grad_()
    loss = FedDrPlus(beta=0.0).loss(client, batch_of(h, [1, 0], rows.tolist()))
    loss.backward()
    assert loss.item() == 0
    assert not h.grad.any()


def test_without_distillation_the_teacher_never_runs() -> None:
    client = client_of(FedDrPlus(beta=1.0), [1, 1, 1])
    client.encode = None
    assert loss_of(FedDrPlus(beta=1.0), client, [[1.0, 0.0, 0.0]], [0]) > 0


def test_an_encoder_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(fedetf.UserError, match=r"10 classes needs features of length 9 or more, and .* have 8"):
        FedDrPlus().build(torch.nn.Linear(5, 8), 8, 10, 0)


@pytest.mark.slow
def test_the_head_stands_still_and_travels_nowhere() -> None:
    result = small_run("feddrplus", {"train.lr": 1.0, "train.weight_decay": 0.1})
    initial = result.job.build_net().state_dict()
    for name, tensor in initial.items():
        assert torch.equal(tensor, result.outcome.model[name]) == name.startswith("head.")
    trained = Worker(result.job, torch.device("cpu")).train(0, 1, initial, {})
    assert trained.upload.state
    assert all(name.startswith("encoder.") for name in trained.upload.state)


@pytest.mark.slow
def test_the_received_features_hold_a_client_back() -> None:
    """The more the distillation weighs, the less features move in a round."""
    moved = []
    for beta in (1.0, 0.5, 0.01):
        result = small_run("feddrplus", {"train.lr": 0.5, "rounds": 1}, beta=beta)
        net, x = result.job.build_net(), result.job.dataset.test.x.float() / 255
        with torch.no_grad():
            moved.append((result.model().encoder(x) - net.encoder(x)).norm().item())
    assert moved[0] > moved[1] > moved[2] > 0
