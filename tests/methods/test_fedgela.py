"""FedGELA's stretched logits by hand, when it is FedETF, and the ETF that stands still."""

import numpy as np
import pytest
import torch
from by_hand import client_of, job_of, loss_of, small_run

from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS
from fedetf.methods.fedgela import stretching

FedGELA, FedETF = METHODS["fedgela"], METHODS["fedetf"]
Z = torch.tensor([[0.5, -0.25, -0.25]])


def client_with(method, counts: list[int]):
    """A client whose logits are its features: the ETF is the identity, and z has the length of h, which is β."""
    client = client_of(method, counts, width=3)
    head = client.net.head
    with torch.no_grad():
        head.projection.weight.copy_(torch.eye(3))
        head.projection.bias.zero_()
        head.V.copy_(torch.eye(3))
        head.beta.copy_(torch.linalg.vector_norm(Z))
        head.q.copy_(stretching(client.counts))
    return client


@pytest.mark.parametrize(
    ("counts", "label", "loss"),
    [([3, 1, 0], 0, 0.466120), ([3, 1, 0], 1, 1.778620), ([4, 0, 0], 0, 0.368981), ([2, 2, 2], 0, 0.665125)],
)
def test_loss_by_hand(counts: list[int], label: int, loss: float) -> None:
    client = client_with(FedGELA(), counts)
    assert loss_of(FedGELA(), client, Z.tolist(), [label]).item() == pytest.approx(loss, abs=1e-6)


def test_stretching_by_hand() -> None:
    assert stretching(torch.tensor([3, 1, 0])).tolist() == [2.25, 0.75, 0]
    assert stretching(torch.tensor([7] * 49)).tolist() == [1.0] * 49
    assert stretching(torch.tensor([0, 0])).tolist() == [0, 0]  # a client without data


def test_a_client_may_predict_a_class_it_lacks_and_the_global_model_knows_no_q() -> None:
    """z = (−0.5, −0.25, 0.75) becomes (−1.125, −0.1875, 0)."""
    client = client_with(FedGELA(), [3, 1, 0])
    h = torch.tensor([[-0.5, -0.25, 0.75]])
    with torch.no_grad():
        client.net.head.beta.copy_(torch.linalg.vector_norm(h))
    personal = FedGELA().logits(client.net, h, personal=True)
    assert personal[0].tolist() == pytest.approx([-1.125, -0.1875, 0])
    assert personal.argmax() == 2
    assert FedGELA().logits(client.net, h, personal=False)[0].tolist() == pytest.approx(h[0].tolist())


@pytest.mark.slow
def test_equal_counts_are_fedetf_without_the_balancing_to_the_bit() -> None:
    x = torch.tensor(np.random.default_rng(0).normal(size=(18, 4)), dtype=torch.float32)
    models = []
    for method in (FedGELA(), FedETF(gamma=0.0)):
        job = job_of(method, [[4, 4, 4], [2, 2, 2]], 4, x, **{"train.rounds": 3, "train.lr": 0.5})
        federation = Federation(job, [[0, 1]] * 3)
        list(federation.rounds())
        models.append(federation.server.state)
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


@pytest.mark.slow
def test_v_stands_still_and_q_is_the_clients_own() -> None:
    result = small_run("fedgela", {"train.weight_decay": 0.1})
    initial = result.job.build_net().state_dict()
    assert torch.equal(result.outcome.model["head.V"], initial["head.V"])
    assert torch.equal(result.outcome.model["head.q"], torch.ones(10))
    assert not torch.equal(result.outcome.model["head.projection.weight"], initial["head.projection.weight"])
    worker = Worker(result.job, torch.device("cpu"))
    trained = worker.train(1, 1, initial, {})
    assert not {"head.V", "head.q"} & set(trained.upload.state)
    counts = torch.tensor(result.partition.counts[1])
    assert torch.equal(trained.private["head.q"], (10 * counts / counts.sum()).float())
    personal = worker.personalise(2, result.outcome.model, {})  # as if it was never sampled
    assert torch.equal(personal.state["head.q"], stretching(torch.tensor(result.partition.counts[2])))
    assert not torch.equal(small_run("fedetf", gamma=0.0).outcome.model["head.beta"], result.outcome.model["head.beta"])
