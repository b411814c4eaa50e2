"""FedRoD: the private head never touches the rest."""

import math

import pytest
import torch
import torch.nn.functional as F
from by_hand import client_of as client_by_hand
from by_hand import loss_of

import fedetf
from fedetf.core.client import Batch
from fedetf.engines.worker import Worker
from fedetf.methods import METHODS
from fedetf.nn.losses import balanced_cross_entropy

pytestmark = pytest.mark.slow

OPTIONS = {"method": "fedrod", "clients": 3, "rounds": 2, "epochs": 1}


def client_of(result: fedetf.Result):
    worker = Worker(result.job, torch.device("cpu"))
    return worker.client(0, 1, result.outcome.model, {}, epochs=1, lr=0.1)


def test_the_private_loss_sends_no_gradient_to_encoder_and_generic_head() -> None:
    result = fedetf.run(**OPTIONS, settings={"data.limit": 150})
    client = client_of(result)
    h = torch.randn(6, 128, requires_grad=True)
    y = torch.arange(6)
    result.job.method.loss(client, Batch(h, y, torch.arange(6), lambda: h)).backward()
    head = client.net.head
    wanted = torch.autograd.grad(balanced_cross_entropy(head.generic(h), y, client.counts), [h, head.generic.weight])
    torch.testing.assert_close(h.grad, wanted[0])
    torch.testing.assert_close(head.generic.weight.grad, wanted[1])
    private = F.cross_entropy(head.generic(h).detach() + head.private(h.detach()), y)
    torch.testing.assert_close(head.private.weight.grad, torch.autograd.grad(private, head.private.weight)[0])


def test_encoder_and_generic_head_do_not_depend_on_the_private_one(monkeypatch) -> None:
    options = {**OPTIONS, "settings": {"data.limit": 150, "personal.enabled": False}}
    with_private = fedetf.run(**options).model().state_dict()
    monkeypatch.setattr(
        fedetf.methods.fedrod, "_private", lambda net, h: torch.zeros(len(h), 10) + 0 * net.head.private.bias
    )
    without = fedetf.run(**options).model().state_dict()
    assert all(torch.equal(with_private[name], without[name]) for name in without if "private" not in name)


def test_general_uses_g_and_personal_g_plus_p(tmp_path) -> None:
    result = fedetf.run(**OPTIONS, out=tmp_path / "run", settings={"data.limit": 150})
    net, method = result.model(client=0), result.job.method
    h = torch.randn(5, 128)
    generic, private = net.head.generic(h), net.head.private(h)
    assert torch.equal(method.logits(net, h, personal=False), generic)
    torch.testing.assert_close(method.logits(net, h, personal=True), generic + private)
    assert result.rounds[0].bytes_up == 3 * sum(
        t.numel() * t.element_size() for n, t in net.state_dict().items() if "private" not in n
    )


def test_the_private_head_starts_as_a_copy_of_the_generic_one() -> None:
    head = fedetf.run(**OPTIONS, settings={"data.limit": 150}).job.build_net().head
    assert torch.equal(head.generic.weight, head.private.weight)
    assert head.generic.weight.data_ptr() != head.private.weight.data_ptr()


def test_the_loss_by_hand() -> None:
    """Counts 3 and 1, a sample of class 1 with generic logits 0, 0 and private ones 0, ln 3.

    The balanced loss is −ln(1/(3 + 1)), that of the sum −ln(3/(1 + 3)).
    """
    method = METHODS["fedrod"]()
    client = client_by_hand(method, [3, 1])
    for layer in (client.net.head.generic, client.net.head.private):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    with torch.no_grad():
        client.net.head.private.bias.copy_(torch.tensor([0.0, math.log(3)]))
    assert loss_of(method, client, [[0.5, -0.5]], [1]).item() == pytest.approx(math.log(4) + math.log(4 / 3))
