"""FedAvg, the base of all methods, against NumPy and plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import blobs
from torch import nn

import fedetf
from fedetf.engines.worker import Worker
from fedetf.nn.encoders import build_encoder
from fedetf.rng import torch_stream

BARE = {"train.momentum": 0.0, "train.weight_decay": 0.0, "train.lr_decay": 1.0, "data.test_fraction": 0.0}


def test_one_full_batch_step_is_a_step_on_the_pooled_loss() -> None:
    """E = 1, no momentum: w¹ = w⁰ − η ∇(mean loss over everybody's data), by softmax regression in NumPy."""
    data = blobs(clients=3, n=20)
    data[0] = (data[0][0][:7], data[0][1][:7])
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    settings = {"data.normalize": "none", **BARE, "train.batch_size": 100, "train.lr": 0.5, "personal.enabled": False}
    result = fedetf.run(
        method="fedavg", data=data, test=(x, y), model=nn.Identity(), rounds=1, epochs=1, settings=settings
    )
    initial = result.job.build_net().head
    W, b = (t.detach().double().numpy() for t in (initial.weight, initial.bias))
    z = x @ W.T + b
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    dz = (q - np.eye(3)[y]) / len(y)
    final = result.model().head
    np.testing.assert_allclose(final.weight.detach().numpy(), W - 0.5 * dz.T @ x, atol=1e-5)
    np.testing.assert_allclose(final.bias.detach().numpy(), b - 0.5 * dz.sum(axis=0), atol=1e-5)


def plain_training(result: fedetf.Result, rounds: int, epochs: int, lr: float, decay: float, batch: int) -> nn.Module:
    """The loop everybody writes, on client 0 alone, with a new optimiser each round."""
    net = result.job.build_net()
    data = result.job.dataset.train
    x = (data.x[result.partition.train[0]].float() / 255 - 0.5) / 0.5
    y = data.y[result.partition.train[0]]
    for t in range(1, rounds + 1):
        optimiser = torch.optim.SGD(net.parameters(), lr * decay ** (t - 1), momentum=0.9, weight_decay=5e-4)
        order = torch_stream(result.settings.seed, "batches", t, 0)
        net.train()
        for _ in range(epochs):
            for indices in torch.randperm(len(y), generator=order).split(batch):
                optimiser.zero_grad()
                F.cross_entropy(net(x[indices]), y[indices]).backward()
                optimiser.step()
    return net


def test_one_client_is_centralised_training() -> None:
    settings = {"train.lr": 0.02, "train.batch_size": 32, "data.limit": 150, "personal.enabled": False}
    result = fedetf.run(method="fedavg", clients=1, rounds=3, epochs=2, settings=settings)
    plain = plain_training(result, rounds=3, epochs=2, lr=0.02, decay=0.99, batch=32).state_dict()
    for name, tensor in result.model().state_dict().items():
        torch.testing.assert_close(tensor, plain[name], atol=2e-4, rtol=1e-3)


def test_no_learning_rate_moves_buffers_only() -> None:
    settings = {"train.lr": 0.0, "data.limit": 150, "personal.enabled": False}
    result = fedetf.run(method="fedavg", clients=3, rounds=1, epochs=1, settings=settings)
    before, after = result.job.build_net().state_dict(), result.model().state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if "running" in name or "num_batches" in name}


def test_personal_is_one_more_local_training(tmp_path) -> None:
    """With the rate of round T+1, from the final global model."""
    settings = {"data.limit": 150, "train.batch_size": 16}
    result = fedetf.run(method="fedavg", clients=3, rounds=2, epochs=1, out=tmp_path / "a", settings=settings)
    longer = copy.copy(result.job)
    upload = Worker(longer, torch.device("cpu")).train(1, 3, result.outcome.model, {}).upload
    personal = result.model(client=1).state_dict()
    assert all(torch.equal(tensor, personal[name]) for name, tensor in upload.state.items())


@pytest.mark.parametrize("method", ["fedavg", "fedetf"])
def test_all_methods_start_from_the_same_encoder(method: str) -> None:
    nets = [
        fedetf.run(method=m, clients=3, rounds=1, epochs=1, settings={"data.limit": 60, "personal.enabled": False})
        for m in ("fedavg", method)
    ]
    a, b = (result.job.build_net().encoder.state_dict() for result in nets)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert nets[0].schedule == nets[1].schedule
    assert nets[0].partition.to_json() == nets[1].partition.to_json()


class Normed(nn.Module):
    """Linear, BatchNorm1d, ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


@pytest.mark.parametrize(("n", "sizes"), [(33, [16, 17]), (17, [17]), (34, [16, 16, 2]), (32, [16, 16])])
def test_a_lone_last_sample_joins_the_batch_before(n: int, sizes: list[int]) -> None:
    """Batches of 16, two epochs, against a plain loop."""
    torch.manual_seed(0)
    settings = {"data.normalize": "none", **BARE, "train.batch_size": 16, "train.lr": 0.1, "personal.enabled": False}
    ((x, y),) = blobs(clients=1, n=40)
    data = [(x[:n], y[:n])]
    result = fedetf.run(method="fedavg", data=data, test=data[0], model=Normed(), rounds=1, epochs=2, settings=settings)
    net = result.job.build_net()
    x, y = (t[result.partition.train[0]] for t in (result.job.dataset.train.x, result.job.dataset.train.y))
    stream = torch_stream(result.settings.seed, "batches", 1, 0)
    for _ in range(2):
        for batch in torch.randperm(n, generator=stream).split(sizes):
            net.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            with torch.no_grad():
                for tensor in net.parameters():
                    tensor -= 0.1 * tensor.grad
    for name, tensor in result.model().state_dict().items():
        torch.testing.assert_close(tensor, net.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_a_client_of_one_sample_trains_and_leaves_the_statistics_of_batchnorm_alone() -> None:
    torch.manual_seed(0)
    ((x, y),) = blobs(clients=1, n=40)
    data = [(x[i : i + 1], y[i : i + 1]) for i in (0, 1)]  # of two classes
    settings = {"data.normalize": "none", **BARE, "train.lr": 0.1, "personal.enabled": False}
    result = fedetf.run(method="fedavg", data=data, test=data[0], model=Normed(), rounds=1, epochs=1, settings=settings)
    before, after = result.job.build_net().state_dict(), result.model().state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert "encoder.linear.weight" in moved
    assert not [name for name in moved if "running" in name or "tracked" in name]


def test_noise_differs_between_clients_and_rounds() -> None:
    """Dropout masks come from a stream of (seed, round, client)."""
    masks = []

    class Noisy(nn.Linear):
        def forward(self, x):
            if self.training:
                masks.append(tuple(torch.rand(3).tolist()))
            return super().forward(x)

    settings = {"train.batch_size": 100, "personal.enabled": False}
    fedetf.run(method="fedavg", data=blobs(clients=3), model=Noisy(5, 4), rounds=2, epochs=1, settings=settings)
    assert len(masks) == len(set(masks)) == 6


def test_the_number_of_threads_is_that_of_the_settings() -> None:
    seen = []

    class Curious(nn.Linear):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return super().forward(x)

    fedetf.run(data=blobs(), model=Curious(5, 4), rounds=1, settings={"engine.threads": 2, "personal.rounds": 1})
    assert seen[-1] == 2


def test_buffers_that_are_not_saved_do_not_leak_from_client_to_client() -> None:
    class Remembering(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 4)
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.seen += x.detach().sum()
            return super().forward(x) + 0.01 * self.seen

    result = fedetf.run(method="fedavg", data=blobs(), model=Remembering(), rounds=1, epochs=1)
    received = result.job.build_net().state_dict()
    used, fresh = Worker(result.job, torch.device("cpu")), Worker(result.job, torch.device("cpu"))
    used.train(0, 1, received, {})
    a, b = (worker.train(1, 1, received, {}).upload.state for worker in (used, fresh))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_encoder_that_needs_its_own_randomness_is_reproducible() -> None:
    def final() -> dict:
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5))
        torch.manual_seed(np.random.default_rng().integers(1000))  # the caller's state must not matter
        data = blobs()
        return fedetf.run(method="fedavg", data=data, test=data[0], model=encoder, rounds=2).model().state_dict()

    a, b = final(), final()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_registry_names_build_the_named_encoder() -> None:
    result = fedetf.run(method="fedavg", model="mlp", clients=3, rounds=1, epochs=1, settings={"data.limit": 60})
    wanted = build_encoder("mlp", (1, 8, 8)).state_dict().keys()
    assert result.job.build_net().encoder.state_dict().keys() == wanted
