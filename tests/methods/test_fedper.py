"""FedPer: what travels, what stays, and where it is FedAvg."""

import pytest
import torch
from by_hand import small_run

from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Server, Upload

pytestmark = pytest.mark.slow


def test_the_servers_encoder_after_the_first_round_is_fedavgs_and_later_it_is_not() -> None:
    for rounds in (1, 2):
        a, b = (small_run(method, {"rounds": rounds}).outcome.model for method in ("fedper", "fedavg"))
        alike = all(torch.equal(a[name], b[name]) for name in a if name.startswith("encoder."))
        assert alike == (rounds == 1)


def test_one_client_is_fedavgs_one_client() -> None:
    """It keeps its head from round to round, as a server of one client would."""
    one = {"clients": 1, "rounds": 3}
    a, b = (small_run(method, one) for method in ("fedper", "fedavg"))
    encoders = [{n: t for n, t in run.outcome.model.items() if n.startswith("encoder.")} for run in (a, b)]
    assert all(torch.equal(tensor, encoders[1][name]) for name, tensor in encoders[0].items())
    federation = Federation(a.job, [[0]] * 3)
    list(federation.rounds())
    for name, tensor in federation.private.load(0).items():
        assert torch.equal(tensor, b.outcome.model[name])


def test_heads_stay_with_those_who_are_away_and_the_servers_is_the_initial_one() -> None:
    job = small_run("fedper").job
    federation = Federation(job, [[0, 1], [1, 2]])
    rounds = federation.rounds()
    next(rounds)
    first = {k: federation.private.load(k) for k in (0, 1)}
    next(rounds)
    assert set(first[0]) == {"head.weight", "head.bias"}
    assert all(torch.equal(tensor, federation.private.load(0)[name]) for name, tensor in first[0].items())
    assert not torch.equal(first[1]["head.weight"], federation.private.load(1)["head.weight"])
    assert not any(name.startswith("head.") for name in federation.server.state)
    trained = Worker(job, torch.device("cpu")).train(0, 1, federation.server.state, {})
    assert trained.upload.state.keys() == federation.server.state.keys()


def test_the_average_by_hand() -> None:
    """n = (1, 3), encoder values 0 and 4."""
    server = Server({"encoder.weight": torch.zeros(1)}, clients=2)
    uploads = [Upload(k, n, {"encoder.weight": torch.tensor([v])}, 0.0, n) for k, n, v in ((0, 1, 0.0), (1, 3, 4.0))]
    METHODS["fedper"]().aggregate(server, uploads)
    assert server.state["encoder.weight"].item() == 3
