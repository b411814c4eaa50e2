"""FedDecorr's penalty by hand and by its invariances, and when it is FedAvg."""

import numpy as np
import pytest
import torch
from by_hand import batch_of, client_of, loss_of, same_bits, small_run

from fedetf.methods import METHODS
from fedetf.methods.feddecorr import decorrelation

FedDecorr = METHODS["feddecorr"]


def test_by_hand() -> None:
    """Rows (1,2), (2,4), (3,9): r = 0.970725, and the penalty ((B−1)²/B) r² = (4/3) r²."""
    assert decorrelation(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 9.0]])).item() == pytest.approx(1.256410, abs=1e-6)
    uncorrelated = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    assert decorrelation(uncorrelated).item() == pytest.approx(0, abs=1e-12)


def test_it_is_the_mean_squared_correlation_of_numpy() -> None:
    h = np.random.default_rng(0).normal(size=(16, 5)) @ np.random.default_rng(1).normal(size=(5, 5))
    K = np.corrcoef(h.T)
    squared = (K**2)[~np.eye(5, dtype=bool)].mean()
    assert decorrelation(torch.tensor(h)).item() == pytest.approx(15**2 / 16 * squared, rel=1e-6)


def test_scale_shift_and_order_of_dimensions_do_not_matter() -> None:
    h = torch.randn(12, 4, dtype=torch.float64)
    other = (h * torch.tensor([2.0, 0.5, 1.0, 10.0]) + torch.tensor([1.0, -3.0, 0.0, 7.0]))[:, [2, 0, 3, 1]]
    assert decorrelation(other).item() == pytest.approx(decorrelation(h).item(), rel=1e-6)


def test_the_loss_adds_it_and_leaves_the_head_alone() -> None:
    method = FedDecorr(coef=0.3)
    client = client_of(method, [2, 2])
    h = [[1.0, 2.0], [2.0, 4.0], [3.0, 9.0]]
    apart = loss_of(method, client, h, [0, 1, 0]) - loss_of(METHODS["fedavg"](), client, h, [0, 1, 0])
    assert apart.item() == pytest.approx(0.3 * 1.256410, abs=1e-6)


@pytest.mark.parametrize("h", [torch.randn(1, 4), torch.randn(6, 1), torch.ones(6, 4)])
def test_one_sample_one_dimension_or_constant_features_cost_nothing(h: torch.Tensor) -> None:
    h = h.clone().requires_grad_()
    penalty = decorrelation(h)
    assert penalty.item() == 0
    if penalty.requires_grad:
        penalty.backward()
        assert torch.isfinite(h.grad).all()


@pytest.mark.slow
def test_strength_zero_is_fedavg_to_the_bit() -> None:
    plain = small_run("fedavg")
    assert same_bits(small_run("feddecorr", coef=0.0), plain)
    assert not same_bits(small_run("feddecorr"), plain)


def test_a_term_without_strength_is_not_computed() -> None:
    """Features whose sum overflows spoil the gradient of the term, though not that of the cross entropy."""
    for method, sound in ((FedDecorr(coef=0.0), True), (FedDecorr(), False)):
        h = torch.tensor([[3e38, 0.0], [3e38, 0.0], [3e38, 1.0]], requires_grad=True)
        method.loss(client_of(method, [2, 2]), batch_of(h, [0, 0, 0])).backward()
        assert torch.isfinite(h.grad).all() == sound
