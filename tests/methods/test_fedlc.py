"""FedLC's margins by hand, and when it is FedAvg."""

import math

import pytest
import torch
from by_hand import batch_of, client_of, loss_of, same_bits, small_run

from fedetf.methods import METHODS

FedLC = METHODS["fedlc"]


@pytest.mark.parametrize(("label", "loss"), [(0, 0.858619), (1, 1.025285), (2, 1.525285)])
def test_by_hand(label: int, loss: float) -> None:
    """n = (81, 16, 1), z = 0: the margins are 1/3, 1/2 and 1."""
    method = FedLC()
    client = client_of(method, [81, 16, 1])
    assert method.margins(client.counts).tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    assert loss_of(method, client, [[0.0] * 3], [label]).item() == pytest.approx(loss, abs=1e-6)


def test_the_true_class_is_in_the_denominator() -> None:
    """n = (16, 1), z = 0: 0.474077; as printed in the paper, without it, the loss would be −0.5."""
    client = client_of(FedLC(), [16, 1])
    assert loss_of(FedLC(), client, [[0.0, 0.0]], [0]).item() == pytest.approx(0.474077, abs=1e-6)
    assert loss_of(FedLC(), client, [[0.0, 0.0]], [1]).item() == pytest.approx(0.974077, abs=1e-6)


def test_an_absent_class_leaves_the_softmax_or_counts_as_one() -> None:
    masked, one = FedLC(tau=0.5), FedLC(tau=0.5, zero_count="one")
    client = client_of(masked, [4, 4, 0])
    assert loss_of(masked, client, [[0.0, 0.0, 9.0]], [0]).item() == pytest.approx(math.log(2))
    assert one.margins(client.counts)[2] == 0.5
    assert loss_of(one, client, [[0.0, 0.0, 9.0]], [0]).item() > 8


def test_a_client_of_a_single_class_learns_nothing_and_nothing_breaks() -> None:
    client = client_of(FedLC(), [5, 0, 0])
    h = torch.randn(4, 3, requires_grad=True)
    loss = FedLC().loss(client, batch_of(h, [0] * 4))
    loss.backward()
    assert loss.item() == 0
    assert not h.grad.any()


def test_margins_that_are_alike_change_nothing() -> None:
    """A common shift of all logits leaves the softmax as it is, whatever τ."""
    z = [[0.3, -1.0, 2.0], [1.0, 1.0, -2.0]]
    client = client_of(FedLC(), [7, 7, 7])
    plain = loss_of(METHODS["fedavg"](), client, z, [2, 0]).item()
    assert loss_of(FedLC(tau=3.0), client, z, [2, 0]).item() == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("zero_count", ["one", "mask"])
@pytest.mark.slow
def test_tau_zero_is_fedavg_to_the_bit(zero_count: str) -> None:
    assert same_bits(small_run("fedlc", tau=0.0, zero_count=zero_count), small_run("fedavg"))


@pytest.mark.slow
def test_it_is_not_fedavg_otherwise() -> None:
    assert not same_bits(small_run("fedlc"), small_run("fedavg"))
