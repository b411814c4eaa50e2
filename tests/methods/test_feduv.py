"""FedUV's two terms by hand and by their invariances, and when it is FedAvg."""

import math

import pytest
import torch
from by_hand import batch_of, client_of, loss_of, same_bits, small_run

from fedetf.methods import METHODS
from fedetf.methods.feduv import closeness, variance_lack

FedUV = METHODS["feduv"]
PROBABILITIES = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1]])
TRIANGLE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])


def test_variance_by_hand() -> None:
    """The deviations are (0.141421, 0.141421, 0), each to be 1/√3."""
    assert variance_lack(PROBABILITIES.log()).item() == pytest.approx(0.483069, abs=1e-6)
    assert variance_lack(100 * torch.eye(4)).item() == pytest.approx(0, abs=1e-6)  # one-hot rows of all classes


def test_uniformity_by_hand() -> None:
    """Squared distances 1, 4 and 5, σ = 4."""
    assert closeness(TRIANGLE).item() == pytest.approx(0.477728, abs=1e-6)
    assert closeness(torch.randn(2, 5)).item() == pytest.approx(1 / math.e)  # a single distance is its own median


def test_larger_features_are_no_way_to_a_lower_loss() -> None:
    h = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    value = closeness(h)
    value.backward()
    assert closeness(7 * h.detach()).item() == pytest.approx(value.item(), rel=1e-9)
    assert (h.grad * h).sum().item() == pytest.approx(0, abs=1e-9)


def test_the_loss_adds_both_with_a_quarter_of_the_classes_for_lambda() -> None:
    client = client_of(FedUV(), [3, 3])
    h, y = TRIANGLE.tolist(), [0, 1, 0]
    plain = loss_of(METHODS["fedavg"](), client, h, y).item()
    lack, close = variance_lack(TRIANGLE).item(), closeness(TRIANGLE).item()
    assert loss_of(FedUV(), client, h, y).item() == pytest.approx(plain + 2 / 4 * lack + 0.5 * close, abs=1e-6)
    assert loss_of(FedUV(lam=3.0, mu=0.0), client, h, y).item() == pytest.approx(plain + 3 * lack, abs=1e-6)


def test_batches_of_one_and_features_that_are_all_the_same() -> None:
    client = client_of(FedUV(), [3, 3])
    assert loss_of(FedUV(), client, [[1.0, 2.0]], [0]) == loss_of(METHODS["fedavg"](), client, [[1.0, 2.0]], [0])
    h = torch.ones(5, 2, requires_grad=True)
    assert closeness(h).item() == 0
    variance_lack(h).backward()
    assert not h.grad.any()  # and no NaN


@pytest.mark.slow
def test_strengths_zero_are_fedavg_to_the_bit() -> None:
    plain = small_run("fedavg")
    assert same_bits(small_run("feduv", lam=0.0, mu=0.0), plain)
    assert not same_bits(small_run("feduv", lam=0.0), plain)
    assert not same_bits(small_run("feduv", mu=0.0), plain)


def test_a_term_without_strength_is_not_computed() -> None:
    """Features whose squares overflow spoil the gradient of the term, though not that of the cross entropy."""
    for method, sound in ((FedUV(lam=0.0, mu=0.0), True), (FedUV(), False)):
        h = torch.tensor([[1e25, 0.0], [0.0, 1e25], [1e25, 1e25]], requires_grad=True)
        method.loss(client_of(method, [2, 2]), batch_of(h, [0, 1, 0])).backward()
        assert torch.isfinite(h.grad).all() == sound
