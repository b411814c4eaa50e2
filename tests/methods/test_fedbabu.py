"""FedBABU: a step by hand, the head that stands still, and what the personal stage trains."""

import pytest
import torch
from by_hand import client_of, small_run
from torch import nn

import fedetf
from fedetf.engines.worker import Worker
from fedetf.methods import METHODS

pytestmark = pytest.mark.slow


def test_a_step_by_hand() -> None:
    """C = 2, D = 1, W = (1, −1), h = u x with u = x = 1, y = 0: dL/du = −0.238406, and a step at 0.1."""
    for name, W in (("fedbabu", [1.0, -1.0]), ("fedavg", [1.011920, -1.011920])):
        method = METHODS[name]()
        client = client_of(method, [1, 0], width=1, inputs=torch.ones(1, 1))
        with torch.no_grad():
            client.net.head.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        method.local(client)
        assert client.net.encoder.weight.item() == pytest.approx(1.023841, abs=1e-6)
        assert client.net.head.weight.flatten().tolist() == pytest.approx(W, abs=1e-6)


def test_the_head_is_the_initial_one_and_fedavgs_and_travels_nowhere() -> None:
    result = small_run("fedbabu", {"train.weight_decay": 0.1})
    initial = result.job.build_net().head.state_dict()
    fedavgs = small_run("fedavg", {"rounds": 1}).job.build_net().head.state_dict()
    for name, tensor in initial.items():
        assert torch.equal(result.outcome.model[f"head.{name}"], tensor)
        assert torch.equal(fedavgs[name], tensor)
    trained = Worker(result.job, torch.device("cpu")).train(0, 1, result.job.build_net().state_dict(), {})
    assert trained.upload.state
    assert all(name.startswith("encoder.") for name in trained.upload.state)
    assert not trained.private
    assert any(not torch.equal(tensor, trained.upload.state[f"encoder.{name}"])
               for name, tensor in result.job.build_net().encoder.state_dict().items())  # fmt: skip


@pytest.mark.parametrize(("finetune", "still"), [("head", "encoder."), ("body", "head."), ("full", None)])
def test_the_personal_stage_trains_what_it_is_told(finetune: str, still: str | None) -> None:
    result = small_run("fedbabu", {"model": "cnn"}, finetune=finetune)
    before = result.outcome.model
    after = Worker(result.job, torch.device("cpu")).personalise(0, before, {}).state
    moved = {name.split(".")[0] + "." for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"encoder.", "head."} - {still}


def test_without_epochs_the_personal_model_is_the_global_one() -> None:
    result = small_run("fedbabu", {"personal.epochs": 0, "model": "cnn"})
    after = Worker(result.job, torch.device("cpu")).personalise(1, result.outcome.model, {}).state
    assert all(torch.equal(tensor, after[name]) for name, tensor in result.outcome.model.items())


def test_one_client_is_the_server() -> None:
    result = small_run("fedbabu", {"clients": 1, "rounds": 1})
    trained = Worker(result.job, torch.device("cpu")).train(0, 1, result.job.build_net().state_dict(), {})
    assert all(torch.equal(tensor, result.outcome.model[name]) for name, tensor in trained.upload.state.items())


@pytest.mark.parametrize("method", ["fedbabu", "spherefed", "feddrplus"])
def test_a_frozen_encoder_leaves_nothing_to_train(method: str) -> None:
    encoder = nn.Linear(5, 4).requires_grad_(False)
    data = [(torch.randn(12, 5).numpy(), torch.arange(12).numpy() % 3) for _ in range(2)]
    with pytest.raises(fedetf.UserError, match=f"{method} trains only the encoder"):
        fedetf.run(method=method, data=data, model=encoder, rounds=1)
