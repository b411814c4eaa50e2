"""FedBN: BatchNorm of whatever name stays, all else travels, and where it is FedAvg."""

import pytest
import torch
from by_hand import small_run
from torch import nn

from fedetf.config import resolve
from fedetf.core.state import nbytes
from fedetf.engines.job import build_net
from fedetf.engines.worker import Worker, sent_parameters
from fedetf.federation import Federation
from fedetf.methods import METHODS, Scope

pytestmark = pytest.mark.slow

FedBN = METHODS["fedbn"]


def test_an_encoder_without_batchnorm_is_fedavg_to_the_bit() -> None:
    a, b = (small_run(method).outcome.model for method in ("fedbn", "fedavg"))
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_what_is_kept_of_a_resnet20_by_hand() -> None:
    """21 layers with 784 channels: 16 bytes a channel and 8 a layer, whatever the layers are called."""
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    net = build_net(resolve(None, {"model.name": "resnet20"}), FedBN(), images, 10, None)
    kept, sent = (FedBN().scoped(net.state_dict(), scope) for scope in (Scope.PRIVATE, Scope.SHARED))
    assert nbytes(kept) == 784 * 16 + 21 * 8 == 12_712
    norms = [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert {name.rpartition(".")[0] for name in kept} == set(norms)
    assert kept.keys() | sent.keys() == net.state_dict().keys()
    assert len(norms) == 21


def test_updates_and_memories_of_the_server_have_no_batchnorm() -> None:
    job = small_run("fedbn", {"model": "cnn", "server.optimiser": "momentum", "update.clip": 1.0}).job
    federation = Federation(job, [[0, 1]])
    list(federation.rounds())
    kept = set(federation.private.load(0))
    assert any(name.endswith("running_mean") for name in kept)
    assert any(name.endswith("num_batches_tracked") for name in kept)
    trained = Worker(job, torch.device("cpu")).train(0, 1, federation.server.state, {})
    for names in (federation.server.state, sent_parameters(job.method, job.build_net()), trained.upload.state):
        assert names
        assert not kept & set(names)
    assert trained.private.keys() == kept


def test_nested_batchnorm_and_other_norms() -> None:
    block = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"x": nn.BatchNorm1d(3)})), nn.LayerNorm(3))
    kept = FedBN().scoped(block.state_dict(), Scope.PRIVATE)
    assert {name.rpartition(".")[0] for name in kept} == {"0.1.x"}
    assert not FedBN().scoped({"weight": torch.ones(1)}, Scope.PRIVATE)


def test_one_client_is_fedavgs_one_client_and_absent_ones_keep_theirs() -> None:
    one = {"clients": 1, "rounds": 3, "model": "cnn"}
    a, b = (small_run(method, one) for method in ("fedbn", "fedavg"))
    federation = Federation(a.job, [[0]] * 3)
    list(federation.rounds())
    for name, tensor in {**federation.private.load(0), **federation.server.state}.items():
        assert torch.equal(tensor, b.outcome.model[name])
    away = Federation(small_run("fedbn", {"model": "cnn"}).job, [[0, 1], [1, 2]])
    rounds = away.rounds()
    next(rounds)
    first = away.private.load(0)
    next(rounds)
    assert all(torch.equal(tensor, away.private.load(0)[name]) for name, tensor in first.items())


def test_the_average_of_a_round_by_hand() -> None:
    """The server's convolutions are the size-weighted mean of the uploads; BatchNorm stays as each client has it."""
    result = small_run("fedbn", {"model": "cnn", "rounds": 1})
    worker, start = Worker(result.job, torch.device("cpu")), result.job.build_net().state_dict()
    uploads = [worker.train(k, 1, start, {}).upload for k in range(3)]
    sizes = torch.tensor([upload.samples for upload in uploads], dtype=torch.float64)
    name = next(name for name, tensor in uploads[0].state.items() if tensor.ndim == 4)
    stacked = torch.stack([upload.state[name].double() for upload in uploads])
    wanted = (stacked * (sizes / sizes.sum())[:, None, None, None, None]).sum(0)
    torch.testing.assert_close(result.outcome.model[name].double(), wanted, atol=1e-7, rtol=1e-6)
