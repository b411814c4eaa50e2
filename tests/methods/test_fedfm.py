"""FedFM: features matched with anchors."""

import pytest
import torch

import fedetf
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Server, Upload
from fedetf.methods.fedfm import matching

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 4, "alpha": 0.3, "participation": 0.5, "rounds": 3, "epochs": 1}
SMALL = {"data.limit": 150, "personal.enabled": False}
KNOWN = torch.tensor([True, True])


@pytest.mark.parametrize("own", [{"method.lam": 0.0, "method.start": 1}, {"method.start": 4}])
def test_without_matching_it_is_fedavg_to_the_bit(own: dict[str, object]) -> None:
    a = fedetf.run(method="fedavg", settings=SMALL, **OPTIONS).model().state_dict()
    b = fedetf.run(method="fedfm", settings={**SMALL, **own}, **OPTIONS).model().state_dict()
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_matching_starts_in_its_round() -> None:
    a, b = (fedetf.run(method="fedfm", settings={**SMALL, "method.start": s}, **OPTIONS).model() for s in (2, 3))
    assert not torch.equal(a.head.weight, b.head.weight)


@pytest.mark.parametrize(("y", "wanted"), [(0, 4.53989e-5), (1, 10.0000454)])
def test_the_matching_by_hand_whatever_the_length_of_features(y: int, wanted: float) -> None:
    """Cosines 1 and 0 over T = 0.1: ln(1 + e⁻¹⁰), and 10 more for the other class."""
    for length in (1.0, 7.0):
        h = torch.tensor([[length, 0.0]], dtype=torch.float64)
        value = matching(h, torch.tensor([y]), torch.eye(2, dtype=torch.float64), KNOWN, 0.1)
        assert value.item() == pytest.approx(wanted, rel=1e-5)


def test_classes_without_an_anchor_are_left_out() -> None:
    """Of two samples the one of the unknown class adds 0; among known anchors there is one only, so the other too."""
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    value = matching(h, torch.tensor([0, 1]), torch.eye(2), torch.tensor([True, False]), 0.1)
    value.backward()
    assert value.item() == 0
    assert torch.isfinite(h.grad).all()
    assert matching(h, torch.tensor([1, 1]), torch.eye(2), torch.tensor([True, False]), 0.1).item() == 0


def test_anchors_are_means_over_samples_and_stay_where_nobody_holds_the_class() -> None:
    """Counts 3 and 1, means 2 and 6: (3·2 + 6)/4 = 3."""
    state = {"head.prototypes": torch.tensor([[9.0], [7.0], [0.0]]), "head.known": torch.tensor([True, True, False])}
    server = Server(state, clients=2)

    def upload(k: int, count: int, mean: float) -> Upload:
        rows = {"classes": torch.tensor([0]), "counts": torch.tensor([count]), "means": torch.tensor([[mean]])}
        return Upload(k, count, rows, 0.0, count)

    METHODS["fedfm"]().aggregate(server, [upload(0, 3, 2.0), upload(1, 1, 6.0)])
    assert server.state["head.prototypes"].flatten().tolist() == [3.0, 7.0, 0.0]
    assert server.state["head.known"].tolist() == [True, True, False]


def test_class_means_are_of_the_received_model() -> None:
    job = fedetf.run(method="fedfm", settings=SMALL, **OPTIONS).job
    federation = Federation(job, [])
    worker = Worker(job, torch.device("cpu"))
    client = worker.client(0, 1, federation._received(), {}, epochs=1, lr=0.1)
    means = torch.stack([h.mean(dim=0) for _, h in client.class_features()])  # before it trains
    sent = worker.train(0, 1, federation._received(), {}).upload.state
    torch.testing.assert_close(sent["means"], means)
    assert sent["counts"].tolist() == [n for n in job.partition.counts[0].tolist() if n]
