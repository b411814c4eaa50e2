"""Eq. 6 against NumPy and numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedetf import balanced_cross_entropy
from fedetf.nn.losses import log_prior


def equation_6(z: np.ndarray, y: np.ndarray, n: np.ndarray, gamma: float) -> float:
    weighted = n.astype(float) ** gamma * np.exp(z)
    return float(np.mean(-np.log(weighted[np.arange(len(y)), y] / weighted.sum(axis=1))))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_equation_6(gamma: float) -> None:
    rng = np.random.default_rng(0)
    z, y, n = rng.normal(size=(16, 5)), rng.integers(0, 5, 16), np.array([1, 3, 40, 7, 200])
    loss = balanced_cross_entropy(torch.tensor(z), torch.tensor(y), torch.tensor(n), gamma)
    assert loss.item() == pytest.approx(equation_6(z, y, n, gamma), abs=1e-12)


def test_the_logarithm_has_the_precision_of_the_logits() -> None:
    """In single precision runs keep the bits they always had: on some CPUs log 7 is not the double one rounded."""
    counts = torch.arange(1, 100)
    assert torch.equal(log_prior(counts, 1.0), counts.to(torch.float32).log())
    in_double = log_prior(counts, 1.0, dtype=torch.float64)
    assert in_double.tolist() == pytest.approx([math.log(n) for n in range(1, 100)], rel=1e-15)
    half = balanced_cross_entropy(torch.zeros(1, 2, dtype=torch.float16), torch.tensor([1]), torch.tensor([99_999, 1]))
    assert half.item() == pytest.approx(math.log(100_000))


def test_worked_examples() -> None:
    def loss(y: int, n: list[int], gamma: float = 1.0, zero_count: str = "one") -> float:
        counts = torch.tensor(n)
        return balanced_cross_entropy(torch.zeros(1, len(n)), torch.tensor([y]), counts, gamma, zero_count).item()

    assert loss(0, [3, 1]) == pytest.approx(math.log(4 / 3))
    assert loss(1, [3, 1]) == pytest.approx(math.log(4))
    assert loss(0, [3, 1], gamma=0) == pytest.approx(math.log(2))
    assert loss(0, [4, 0]) == pytest.approx(math.log(5 / 4))  # an absent class counts as one sample
    assert loss(0, [4, 0], zero_count="mask") == 0  # the printed formula: it leaves the softmax


def test_mask_gives_a_single_class_client_no_gradient_and_one_a_little() -> None:
    counts, y = torch.tensor([4, 0]), torch.tensor([0])
    gradients = {}
    for rule in ("mask", "one"):
        z = torch.zeros(1, 2, requires_grad=True)
        balanced_cross_entropy(z, y, counts, 1.0, rule).backward()
        gradients[rule] = z.grad
    assert torch.equal(gradients["mask"], torch.zeros(1, 2))
    torch.testing.assert_close(gradients["one"], torch.tensor([[-0.2, 0.2]]))


@pytest.mark.parametrize("counts", [[5, 5, 5], [500, 500, 500]])
def test_equal_counts_are_plain_cross_entropy(counts: list[int]) -> None:
    z, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    torch.testing.assert_close(balanced_cross_entropy(z, y, torch.tensor(counts)), F.cross_entropy(z, y))


def test_scaling_all_counts_changes_nothing() -> None:
    z, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    n = torch.tensor([1, 4, 9])
    torch.testing.assert_close(balanced_cross_entropy(z, y, n), balanced_cross_entropy(z, y, 10 * n))


@pytest.mark.parametrize("zero_count", ["one", "mask"])
def test_gamma_0_is_plain_cross_entropy_also_with_absent_classes(zero_count: str) -> None:
    z, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    loss = balanced_cross_entropy(z, y, torch.tensor([4, 4, 0]), 0.0, zero_count)
    torch.testing.assert_close(loss, F.cross_entropy(z, y))


def test_gradient_agrees_with_finite_differences() -> None:
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    y, n = torch.tensor([0, 1, 2, 1]), torch.tensor([5, 1, 0])
    assert torch.autograd.gradcheck(lambda z: balanced_cross_entropy(z, y, n, 0.7), (z,))
