"""Training in float16: what would vanish does not, what overflows is taken again, and engines agree."""

import pytest
import torch
from same import OPTIONS, SMALL, assert_equal

import fedetf
from fedetf.core.loss_scale import FIRST, LossScale


class _Half(torch.autograd.Function):
    """Lets a gradient through as float16 holds it."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.half().float()


def gradient(slope: float, scale: LossScale) -> float:
    w = torch.ones((), requires_grad=True)
    scale.backward(slope * _Half.apply(w), [w])
    return float(w.grad)


def test_a_gradient_below_the_smallest_number_of_float16_survives() -> None:
    w = torch.ones((), requires_grad=True)
    (1e-8 * _Half.apply(w)).backward()
    assert float(w.grad) == 0.0  # half of 2⁻²⁴ and less is nothing
    assert gradient(1e-8, LossScale()) == pytest.approx(1e-8, rel=1e-2)


def test_a_factor_that_is_too_large_is_halved_until_it_fits() -> None:
    """65,504 is the largest number of float16: 6.0 · 2¹³ = 49,152 fits, 6.0 · 2¹⁴ does not."""
    scale = LossScale()
    assert gradient(6.0, scale) == 6.0
    assert scale.factor == 2.0**13
    assert gradient(0.5, scale) == 0.5
    assert scale.factor == 2.0**13  # it stays


def test_a_loss_that_is_no_number_ends_all_the_same() -> None:
    scale = LossScale()
    assert gradient(float("inf"), scale) == float("inf")
    assert scale.factor == 1.0 < FIRST


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_runs_learn_and_engines_agree(precision: str) -> None:
    options = {**OPTIONS, "method": "fedavg", "model": "mlp", "rounds": 1}
    settings = {**SMALL, "engine.precision": precision, "personal.enabled": False}
    mixed = fedetf.run(engine="serial", **options, settings=settings)
    assert_equal(mixed, fedetf.run(engine="processes", workers=2, **options, settings=settings))
    full = fedetf.run(engine="serial", **options, settings={**settings, "engine.precision": "float32"})
    assert mixed.rounds[0].loss != full.rounds[0].loss
    assert mixed.rounds[0].loss == pytest.approx(full.rounds[0].loss, rel=0.02)
