"""FedProto: only prototypes travel."""

import pytest
import torch

import fedetf
from fedetf.core.client import Batch
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Server, Upload

pytestmark = pytest.mark.slow

OPTIONS = {"method": "fedproto", "clients": 4, "participation": 0.5, "rounds": 2, "epochs": 1}


def server(classes: int, features: int) -> Server:
    state = {"head.prototypes": torch.zeros(classes, features), "head.known": torch.zeros(classes, dtype=torch.bool)}
    return Server(state, clients=2)


def upload(client: int, **prototypes: list[float]) -> Upload:
    state = {
        "classes": torch.tensor([int(name[1:]) for name in prototypes]),
        "prototypes": torch.tensor(list(prototypes.values())),
    }
    return Upload(client, 1, state, 0.0, 0)


def test_prototypes_are_plain_means_over_holders_and_stay_without() -> None:
    s = server(3, 2)
    METHODS["fedproto"]().aggregate(s, [upload(0, c0=[1.0, 1.0]), upload(1, c0=[3.0, 5.0], c2=[7.0, 7.0])])
    assert s.state["head.prototypes"].tolist() == [[2, 3], [0, 0], [7, 7]]
    assert s.state["head.known"].tolist() == [True, False, True]
    METHODS["fedproto"]().aggregate(s, [upload(0, c1=[4.0, 4.0])])
    assert s.state["head.prototypes"].tolist() == [[2, 3], [4, 4], [7, 7]]


def test_the_pull_by_hand() -> None:
    """h = 0, C̄ = (2, 3): the mean square is 6.5, times λ = 0.1 is 0.65; an unknown class adds nothing."""
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    client = Worker(result.job, torch.device("cpu")).client(0, 1, result.outcome.model, {}, 1, 0.1)
    client.net.head = fedetf.nn.heads.AnchoredHead(2, 3)
    client.net.head.prototypes[1] = torch.tensor([2.0, 3.0])
    client.net.head.known[1] = True
    h = torch.zeros(1, 2, requires_grad=True)
    method = METHODS["fedproto"](lam=0.1)
    plain = METHODS["fedproto"](lam=0.0)
    for y, wanted in ((1, 0.65), (0, 0.0)):
        batch = Batch(h, torch.tensor([y]), torch.tensor([0]), lambda: h)
        assert (method.loss(client, batch) - plain.loss(client, batch)).item() == pytest.approx(wanted)
    gradients = [torch.autograd.grad(m.loss(client, batch), h)[0] for m in (method, plain)]  # of an unknown class
    assert torch.equal(*gradients)


def test_only_prototypes_travel_and_bytes_say_so() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    trained = Worker(result.job, torch.device("cpu")).train(0, 1, {}, {})
    held = int((result.partition.counts[0] > 0).sum())
    assert {name: tuple(t.shape) for name, t in trained.upload.state.items()} == {
        "classes": (held,),
        "prototypes": (held, 128),
    }
    held = [int((result.partition.counts[k] > 0).sum()) for k in result.schedule[0]]
    assert result.rounds[0].bytes_up == sum(n * (128 * 4 + 8) for n in held)
    assert result.rounds[0].bytes_down == 2 * (10 * 128 * 4 + 10)


def test_there_is_no_general_accuracy() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    assert result.general is None
    assert result.general_last5 is None
    assert result.personal is not None


def test_lambda_0_is_training_alone() -> None:
    """A client's model does not depend on who else takes part."""
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150, "method.lam": 0.0})
    kept = []
    for schedule in ([[0], [0]], [[0, 1, 2], [0, 2]]):
        federation = Federation(result.job, schedule)
        list(federation.rounds())
        kept.append(federation.private.load(0))
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def test_prototypes_are_eval_mode_means_of_the_trained_model() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    worker = Worker(result.job, torch.device("cpu"))
    trained = worker.train(0, 1, {}, {})
    net = result.job.build_net()
    net.load_state_dict({**net.state_dict(), **trained.private})
    data, indices = result.job.dataset.train, result.partition.train[0]
    with torch.no_grad():
        h = net.eval().encoder((data.x[indices].float() / 255 - 0.5) / 0.5)
    for c, prototype in zip(trained.upload.state["classes"], trained.upload.state["prototypes"], strict=True):
        torch.testing.assert_close(prototype, h[data.y[indices] == c].mean(0), atol=1e-5, rtol=1e-4)
