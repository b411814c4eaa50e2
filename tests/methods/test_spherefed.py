"""SphereFed's loss and calibration by hand and against NumPy's least squares, and what stands still."""

import numpy as np
import pytest
import torch
from by_hand import client_of, job_of, loss_of, small_run

from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Server
from fedetf.nn.heads import SphereHead

SphereFed = METHODS["spherefed"]
R = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])  # with labels 0, 0, 1


def finished(counts: list[list[int]], x: torch.Tensor) -> torch.Tensor:
    """W after the calibration of clients that hold x, in their order, before any training."""
    job = job_of(SphereFed(), counts, x.shape[1], x)
    federation = Federation(job, [])
    worker = Worker(job, torch.device("cpu"))
    summaries = [worker.summarise(k, federation.server.state, {}) for k in range(len(counts))]
    SphereFed().finish(federation.server, summaries)
    return federation.server.state["head.W"]


def test_the_loss_by_hand() -> None:
    """W = I, r = (0.6, 0.8, 0), y = 0: (0.16 + 0.64)/3; it is 0 where r is w_y. The length of h does not matter."""
    client = client_of(SphereFed(), [1, 1, 1])
    client.net.head.W.copy_(torch.eye(3))
    assert loss_of(SphereFed(), client, [[3.0, 4.0, 0.0]], [0]).item() == pytest.approx(0.266667, abs=1e-6)
    assert loss_of(SphereFed(), client, [[0.0, 7.0, 0.0]], [1]).item() == 0
    assert loss_of(SphereFed(), client, [[0.0, 0.0, 0.0]], [1]).item() == pytest.approx(1 / 3)


def test_for_an_orthonormal_w_it_is_two_less_twice_the_cosine() -> None:
    client = client_of(SphereFed(), [1, 1, 1, 1])
    r = torch.nn.functional.normalize(torch.randn(1, 4))
    cosine = float(client.net.head(r)[0, 2])
    assert 4 * loss_of(SphereFed(), client, r.tolist(), [2]).item() == pytest.approx(2 - 2 * cosine, abs=1e-6)


def test_rows_are_orthonormal_or_of_unit_length() -> None:
    W = SphereHead(7, 5, seed=3).W
    torch.testing.assert_close(W @ W.T, torch.eye(5), atol=1e-6, rtol=0)
    wide = SphereHead(3, 8, seed=3).W
    assert wide.shape == (8, 3)
    torch.testing.assert_close(wide.norm(dim=1), torch.ones(8))


def test_the_calibration_by_hand() -> None:
    """V = [[1.36, 0.48], [0.48, 1.64]]; rows of W are (1.12, 0.16) and (−0.24, 0.68)."""
    W = finished([[2, 1]], R * torch.tensor([[5.0], [0.1], [2.0]]))
    torch.testing.assert_close(W, torch.tensor([[1.12, 0.16], [-0.24, 0.68]]), atol=1e-6, rtol=0)
    assert (R[1] @ W.T).tolist() == pytest.approx([0.8, 0.4], abs=1e-6)


def test_it_is_numpys_least_squares_however_the_samples_are_dealt() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 5)).astype(np.float32)
    y = np.array([0] * 8 + [1] * 8 + [2] * 8)
    r = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    truth = np.linalg.lstsq(r, np.eye(3)[y], rcond=None)[0].T
    one = finished([[8, 8, 8]], torch.tensor(x))
    three = finished([[8, 0, 0], [0, 8, 3], [0, 0, 5]], torch.tensor(x))
    np.testing.assert_allclose(one, truth, atol=1e-6)
    torch.testing.assert_close(one, three, atol=1e-7, rtol=0)


def test_with_fewer_samples_than_features_it_is_the_shortest_fit() -> None:
    x = torch.randn(3, 6)
    r = torch.nn.functional.normalize(x.double())
    truth = torch.linalg.pinv(r) @ torch.eye(2, dtype=torch.float64)[[0, 1, 1]]
    torch.testing.assert_close(finished([[1, 2]], x).double(), truth.T, atol=1e-6, rtol=0)


def test_no_summary_at_all_leaves_w_and_a_client_without_data_adds_nothing() -> None:
    server = Server({}, clients=1, own={"W": torch.eye(2)})
    SphereFed().finish(server, [{"gram": torch.zeros(2, 2, dtype=torch.float64)}])
    assert "head.W" not in server.state
    worker = Worker(job_of(SphereFed(), [[2, 1], [0, 0]], 2, R), torch.device("cpu"))
    summary = worker.summarise(1, {}, {})
    assert set(summary) == {"gram"}
    assert not summary["gram"].any()


@pytest.mark.slow
def test_w_stands_still_in_the_rounds_and_only_w_moves_after_them() -> None:
    result = small_run("spherefed", {"train.lr": 1.0})
    initial = result.job.build_net().state_dict()
    federation = Federation(result.job, result.schedule)
    list(federation.rounds())
    assert "head.W" not in federation.server.state
    assert "head.W" not in Worker(result.job, torch.device("cpu")).train(0, 1, initial, {}).upload.state
    assert all(torch.equal(tensor, result.outcome.model[name]) for name, tensor in federation.server.state.items())
    assert not torch.equal(result.outcome.model["head.W"], initial["head.W"])
    personal = Worker(result.job, torch.device("cpu")).personalise(0, result.outcome.model, {}).state
    assert torch.equal(personal["head.W"], result.outcome.model["head.W"])
    assert result.general == result.rounds[-1].completed.general
