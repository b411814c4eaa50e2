"""FedNTD's not-true distillation by hand, and when it is FedAvg."""

import pytest
import torch
from by_hand import batch_of, client_of, same_bits, small_run

from fedetf.methods import METHODS
from fedetf.methods.fedntd import not_true_divergence

FedNTD = METHODS["fedntd"]
STUDENT, TEACHER = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])


@pytest.mark.parametrize(("tau", "term", "whole"), [(1.0, 0.432278, 0.872468), (2.0, 0.447297, 0.887487)])
def test_by_hand(tau: float, term: float, whole: float) -> None:
    """The received encoder and head are the identity, so that an input is what the teacher says of it."""
    method = FedNTD(tau=tau)
    client = client_of(method, [1, 1, 1, 1], inputs=TEACHER.repeat(4, 1))
    client.received = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    loss = method.loss(client, batch_of(STUDENT, [0], rows=[0]))
    assert loss.item() == pytest.approx(whole, abs=1e-6)
    label = torch.tensor([0])
    assert tau**2 * not_true_divergence(STUDENT, TEACHER, label, tau).item() == pytest.approx(term, abs=1e-6)


def test_the_true_class_does_not_matter_and_the_gradient_is_that_by_hand() -> None:
    z, label = STUDENT.clone().requires_grad_(), torch.tensor([0])
    divergence = not_true_divergence(z, TEACHER, label, 1.0)
    divergence.backward()
    assert z.grad[0].tolist() == pytest.approx([0, 0.453299, -0.331388, -0.121911], abs=1e-6)
    shout = torch.tensor([[50.0, 0.0, 0.0, 0.0]])
    other = not_true_divergence(STUDENT + shout, TEACHER - shout, label, 1.0)
    assert other.item() == pytest.approx(divergence.item(), abs=1e-6)


def test_it_is_no_divergence_the_other_way_round() -> None:
    """0.474321 would be that of the student as the target."""
    label = torch.tensor([0])
    assert not_true_divergence(TEACHER, STUDENT, label, 1.0).item() == pytest.approx(0.474321, abs=1e-6)


def test_every_label_leaves_its_own_column_out() -> None:
    z, g = torch.randn(3, 3), torch.randn(3, 3)
    for y in range(3):
        kept = [c for c in range(3) if c != y]
        p, q = g[:, kept].softmax(1), z[:, kept].softmax(1)
        wanted = (p * (p / q).log()).sum(1).mean().item()
        assert not_true_divergence(z, g, torch.tensor([y] * 3), 1.0).item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_the_first_step_of_a_round_is_fedavgs() -> None:
    """The student is the teacher then, and without BatchNorm it gives the same features."""
    one_step = {"rounds": 1, "epochs": 1, "train.batch_size": 128, "personal.enabled": False}
    a, b = (small_run(method, one_step).outcome.model for method in ("fedntd", "fedavg"))
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_strength_zero_is_fedavg_to_the_bit() -> None:
    plain = small_run("fedavg")
    assert same_bits(small_run("fedntd", beta=0.0), plain)
    assert not same_bits(small_run("fedntd"), plain)


@pytest.mark.parametrize(("method", "classes"), [(FedNTD(), 2), (FedNTD(beta=0.0), 3)])
def test_with_two_classes_or_no_strength_the_teacher_is_not_asked(method, classes: int) -> None:
    client = client_of(method, [2] * classes)
    client.received = {}
    batch = batch_of(torch.eye(classes), list(range(classes)))
    assert method.loss(client, batch) == METHODS["fedavg"]().loss(client, batch)
