"""LG-FedAvg: what travels, what stays, and where it is FedAvg."""

import pytest
import torch
from by_hand import small_run

from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Server, Upload

pytestmark = pytest.mark.slow


def test_only_the_head_travels_and_bytes_say_so() -> None:
    result = small_run("lgfedavg", {"rounds": 1, "model": "cnn"})
    head = result.job.build_net().head
    nbytes = 4 * (head.weight.numel() + head.bias.numel())  # 4 C (D + 1)
    assert result.rounds[0].bytes_up == result.rounds[0].bytes_down == 3 * nbytes
    trained = Worker(result.job, torch.device("cpu")).train(0, 1, Federation(result.job, []).server.state, {})
    assert set(trained.upload.state) == {"head.weight", "head.bias"}
    assert all(name.startswith("encoder.") for name in trained.private)
    assert result.general is None


def test_encoders_after_the_first_round_are_those_of_fedavgs_clients() -> None:
    """Buffers of BatchNorm among them."""
    job = small_run("lgfedavg", {"model": "cnn"}).job
    federation = Federation(job, [[0, 1, 2]])
    list(federation.rounds())
    worker = Worker(small_run("fedavg", {"model": "cnn"}).job, torch.device("cpu"))
    for client in range(3):
        uploaded = worker.train(client, 1, job.build_net().state_dict(), {}).upload.state
        for name, tensor in federation.private.load(client).items():
            assert torch.equal(tensor, uploaded[name])


def test_one_client_is_fedavgs_one_client() -> None:
    one = {"clients": 1, "rounds": 3, "model": "cnn"}
    a, b = (small_run(method, one) for method in ("lgfedavg", "fedavg"))
    federation = Federation(a.job, [[0]] * 3)
    list(federation.rounds())
    for name, tensor in {**federation.private.load(0), **federation.server.state}.items():
        assert torch.equal(tensor, b.outcome.model[name])


def test_the_average_by_hand() -> None:
    """n = (1, 3), head values 0 and 4; a plain mean would give 2."""
    server = Server({"head.bias": torch.zeros(1)}, clients=2)
    uploads = [Upload(k, n, {"head.bias": torch.tensor([v])}, 0.0, n) for k, n, v in ((0, 1, 0.0), (1, 3, 4.0))]
    METHODS["lgfedavg"]().aggregate(server, uploads)
    assert server.state["head.bias"].item() == 3
