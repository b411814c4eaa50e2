"""FedRS's restricted softmax by hand, and when it is FedAvg."""

import pytest
import torch
from by_hand import batch_of, client_of, loss_of, same_bits, small_run

from fedetf.methods import METHODS

FedRS = METHODS["fedrs"]
Z = [[2.0, 1.0, -1.0]]


def test_loss_and_gradient_by_hand() -> None:
    """Class 2 is absent: its logit −1 counts as −1/2, and so does its gradient."""
    client = client_of(FedRS(), [3, 3, 0])
    z = torch.tensor(Z, requires_grad=True)
    loss = FedRS().loss(client, batch_of(z, [0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.371539, abs=1e-6)
    assert z.grad[0].tolist() == pytest.approx([-0.310328, 0.253716, 0.028306], abs=1e-6)


def test_alpha_zero_does_not_remove_a_class() -> None:
    """Its logit is 0 then; without the class the loss would be 0.313262."""
    client = client_of(FedRS(), [3, 3, 0])
    assert loss_of(FedRS(alpha=0.0), client, Z, [0]).item() == pytest.approx(0.407606, abs=1e-6)


def test_graded_scales_by_hand() -> None:
    counts = torch.tensor([6, 3, 0])
    assert FedRS(graded=True).scales(counts).tolist() == [1, 0.75, 0.5]
    assert FedRS().scales(counts).tolist() == [1, 1, 0.5]


def test_predictions_are_of_plain_logits() -> None:
    method = FedRS(alpha=0.0)
    client = client_of(method, [3, 3, 0])
    h = torch.tensor([[0.1, 0.2, 5.0]])
    assert method.logits(client.net, h, personal=True).argmax() == 2


@pytest.mark.slow
def test_alpha_one_is_fedavg_to_the_bit() -> None:
    assert same_bits(small_run("fedrs", alpha=1.0, graded=True), small_run("fedavg"))


@pytest.mark.slow
def test_where_every_client_holds_every_class_it_is_fedavg_to_the_bit() -> None:
    iid = {"clients": 2, "data.partition": "iid", "data.limit": 200}
    runs = [small_run("fedrs", iid), small_run("fedavg", iid), small_run("fedrs", iid, graded=True)]
    assert (runs[0].partition.counts > 0).all()
    assert same_bits(runs[0], runs[1])
    assert not same_bits(runs[2], runs[1])
    assert not same_bits(small_run("fedrs"), small_run("fedavg"))  # whose clients lack classes
