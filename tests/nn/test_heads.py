"""The ETF head: Eq. 5, the logits, and what happens at their edges."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedetf import ETFHead, UserError, balanced_cross_entropy, simplex_etf
from fedetf.nn.heads import unit


def test_logits_are_equation_5_and_6() -> None:
    head = ETFHead(features=7, classes=4, dim=5, seed=2, beta=3.0)
    h = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    P, b = (t.detach().double().numpy() for t in (head.projection.weight, head.projection.bias))
    mu_hat = h.double().numpy() @ P.T + b
    mu = mu_hat / np.linalg.norm(mu_hat, axis=1, keepdims=True)
    np.testing.assert_allclose(head.embed(h).detach().numpy(), mu, atol=1e-6)
    np.testing.assert_allclose(head(h).detach().numpy(), 3 * mu @ head.V.double().numpy(), atol=1e-5)


@pytest.mark.parametrize(("C", "beta", "loss"), [(10, 1.0, 1.376935), (10, 10.0, 1.34499e-4), (3, 1.0, 0.368981)])
def test_loss_at_collapse(C: int, beta: float, loss: float) -> None:
    """At μ = v_y with equal counts: ln(1 + (C−1) exp(−β C/(C−1)))."""
    assert loss == pytest.approx(math.log1p((C - 1) * math.exp(-beta * C / (C - 1))), rel=1e-5)
    head = ETFHead(features=C, classes=C, beta=beta)
    y = torch.arange(C)
    torch.nn.init.eye_(head.projection.weight)
    torch.nn.init.zeros_(head.projection.bias)
    value = balanced_cross_entropy(head(head.V.T), y, torch.full((C,), 5))
    assert value.item() == pytest.approx(loss, rel=2e-3, abs=2e-6)


def test_gradients_at_collapse() -> None:
    """∂loss/∂β = Σ q_c v_cᵀμ − v_yᵀμ, which is −0.830721 for C = 10, β = 1; ∂loss/∂μ = β(Σ q_c v_c − v_y)."""
    C, y = 10, 4
    V = simplex_etf(C, C, seed=1).double()
    beta = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    mu = V[:, y].clone().requires_grad_()
    F.cross_entropy((beta * (mu @ V))[None], torch.tensor([y])).backward()
    assert beta.grad is not None
    assert beta.grad.item() == pytest.approx(-0.830721, abs=1e-6)
    q = torch.softmax((V.T @ V)[y], 0)
    torch.testing.assert_close(mu.grad, V @ q - V[:, y])


def test_autograd_agrees_with_finite_differences() -> None:
    head = ETFHead(features=4, classes=3, seed=1).double()
    h = torch.randn(5, 4, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    y, n = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([9, 1, 3])

    def loss(h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        state = {"projection.weight": weight, "projection.bias": bias, "beta": beta, "V": head.V}
        return balanced_cross_entropy(torch.func.functional_call(head, state, (h,)), y, n)

    inputs = (h, head.projection.weight, head.projection.bias, head.beta)
    assert torch.autograd.gradcheck(loss, inputs)


def test_v_is_fixed_saved_and_no_parameter() -> None:
    head = ETFHead(features=4, classes=3)
    assert {name for name, _ in head.named_parameters()} == {"projection.weight", "projection.bias", "beta"}
    assert "V" in head.state_dict()
    assert not head.V.requires_grad


def test_a_vanishing_feature_gives_zero_and_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    unit(x).sum().backward()
    assert torch.equal(unit(x)[0], torch.zeros(2))
    torch.testing.assert_close(unit(x)[1], torch.tensor([0.6, 0.8]))
    assert x.grad is not None
    assert torch.equal(x.grad[0], torch.zeros(2))
    assert x.grad[1].abs().max() > 0


def test_ablations() -> None:
    bare = ETFHead(features=8, classes=3, projection=False)
    assert bare.V.shape == (8, 3)
    h = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(bare.embed(h), F.normalize(h))
    fixed = ETFHead(features=8, classes=3, beta=4.0, learn_beta=False)
    assert "beta" not in dict(fixed.named_parameters())
    assert fixed.beta.item() == 4
    with pytest.raises(UserError, match="without a projection"):
        ETFHead(features=8, classes=3, projection=False, dim=3)
    with pytest.raises(UserError, match="dim >= 9"):
        ETFHead(features=8, classes=10, projection=False)


def test_one_dimension_is_refused() -> None:
    """A normalised number is ±1 whatever it was: with two classes and d = 1 nothing would learn."""
    with pytest.raises(UserError, match="dimension of 2 or more"):
        ETFHead(features=8, classes=2, dim=1)
    assert ETFHead(features=8, classes=2).V.shape == (2, 2)
