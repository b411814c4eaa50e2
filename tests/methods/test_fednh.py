"""FedNH: unit prototypes that follow the class means."""

import pytest
import torch

import fedetf
from fedetf.engines.worker import Worker
from fedetf.methods import METHODS, Server, Upload
from fedetf.nn.heads import PrototypeHead

pytestmark = pytest.mark.slow

OPTIONS = {"method": "fednh", "clients": 4, "participation": 0.5, "rounds": 2, "epochs": 1}


def upload(client: int, count: int, mean: list[float], c: int = 0) -> Upload:
    state = {"classes": torch.tensor([c]), "counts": torch.tensor([count]), "means": torch.tensor([mean])}
    return Upload(client, 1, state, 0.0, 0)


def test_the_update_by_hand() -> None:
    """Counts 3 and 1, means (1,0) and (0,1), ρ = 0.9 from (0,1): a = (0.948683, 0.316228), W = (0.101307, 0.994855)."""
    s = Server({"head.W": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}, clients=2)
    METHODS["fednh"]().aggregate(s, [upload(0, 3, [1.0, 0.0]), upload(1, 1, [0.0, 1.0])])
    torch.testing.assert_close(s.state["head.W"][0], torch.tensor([0.101307, 0.994855]), atol=1e-5, rtol=0)
    assert s.state["head.W"][1].tolist() == [1, 0]  # nobody holds it: untouched


def test_rho_0_takes_the_mean_and_antipodal_prototypes_stay() -> None:
    s = Server({"head.W": torch.tensor([[0.0, 1.0]])}, clients=1)
    METHODS["fednh"](rho=0.0).aggregate(s, [upload(0, 5, [0.6, 0.8])])
    torch.testing.assert_close(s.state["head.W"][0], torch.tensor([0.6, 0.8]))
    METHODS["fednh"](rho=0.5).aggregate(s, [upload(0, 5, [-0.6, -0.8])])
    torch.testing.assert_close(s.state["head.W"][0], torch.tensor([0.6, 0.8]))


def test_rho_1_never_moves_the_prototypes() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150, "method.rho": 1.0})
    assert torch.equal(result.model().head.W, result.job.build_net().head.W)


def test_prototypes_move_and_stay_unit() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    W, initial = result.model().head.W, result.job.build_net().head.W
    assert not torch.equal(W, initial)
    torch.testing.assert_close(W.norm(dim=1), torch.ones(10))
    held = (result.partition.counts[[k for ks in result.schedule for k in ks]] > 0).any(axis=0)
    for c in range(10):
        assert torch.equal(W[c], initial[c]) == (not held[c])


@pytest.mark.parametrize(("classes", "features"), [(10, 64), (100, 64)])
def test_initial_prototypes(classes: int, features: int) -> None:
    W = PrototypeHead(features, classes, 1.0).W
    torch.testing.assert_close(W.norm(dim=1), torch.ones(classes))
    if classes <= features:
        torch.testing.assert_close(W @ W.T, torch.eye(classes), atol=1e-5, rtol=0)


def test_scaling_features_changes_nothing() -> None:
    head = PrototypeHead(8, 3, 2.0)
    h = torch.rand(4, 8)
    torch.testing.assert_close(head(h), head(7 * h))


def test_what_travels() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    trained = Worker(result.job, torch.device("cpu")).train(0, 1, result.outcome.model, {})
    assert "head.W" not in trained.upload.state
    assert {"head.scale", "classes", "counts", "means"} <= trained.upload.state.keys()
    assert trained.upload.state["counts"].tolist() == [int(n) for n in result.partition.counts[0] if n]
    torch.testing.assert_close(
        trained.upload.state["means"].norm(dim=1), torch.ones(len(trained.upload.state["counts"]))
    )
    assert trained.private == {}
