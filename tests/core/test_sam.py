"""SAM, ``train.sam``: the worst point nearby by hand, and what the second pass must leave alone."""

import pytest
import torch
from torch import nn

import fedetf
from fedetf.core.client import Client
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.nn.heads import Net
from fedetf.nn.optim import uphill

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 3, "alpha": 0.3, "rounds": 2, "epochs": 2}
SMALL = {"data.limit": 120, "personal.rounds": 2}


def client_of(method: str | type[fedetf.Method], **settings: object) -> Client:
    options = {**OPTIONS, "rounds": 1, "epochs": 1}
    job = fedetf.run(method=method, settings={**SMALL, "personal.enabled": False, **settings}, **options).job
    return Worker(job, torch.device("cpu")).client(0, 1, Federation(job, [])._received(), {}, epochs=1, lr=0.1)


class Bowl(fedetf.Method):
    """L = scale·‖w‖²/2, from w = (3, 4)."""

    scale: float = 1.0

    def build(self, encoder, features, classes, seed):
        head = nn.Linear(2, 1, bias=False)
        head.weight.data = torch.tensor([[3.0, 4.0]])
        return Net(encoder, head)

    def loss(self, client, batch):
        return self.scale * client.net.head.weight.square().sum() / 2

    def logits(self, net, h, personal):
        return h[:, :2]


def test_a_step_by_hand() -> None:
    """e = 0.1·(3, 4)/5, so the gradient is (3.06, 4.08), and a step of 0.1 ends at (2.694, 3.592)."""
    client = client_of(Bowl, **{"train.sam": 0.1, "train.momentum": 0.0, "train.weight_decay": 0.0})
    client.train(Bowl().loss)
    assert client.net.head.weight.flatten().tolist() == pytest.approx([2.694, 3.592])
    assert client.mean_loss == pytest.approx(12.5)  # at w, not where the gradient was taken
    assert client.steps == 1


def test_weight_decay_and_momentum_act_at_w() -> None:
    """m = (3.06, 4.08) + 0.5·(3, 4): w = (2.544, 3.392)."""
    client = client_of(Bowl, **{"train.sam": 0.1, "train.momentum": 0.9, "train.weight_decay": 0.5})
    client.train(Bowl().loss)
    assert client.net.head.weight.flatten().tolist() == pytest.approx([2.544, 3.392])


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_how_far_does_not_depend_on_the_scale_of_the_loss(scale: float) -> None:
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    (scale * w.square().sum() / 2).backward()
    with uphill([w], [], 0.1):
        assert w.tolist() == pytest.approx([3.06, 4.08])
    assert w.tolist() == [3, 4]


def test_no_gradient_no_way() -> None:
    w, other = (torch.tensor([3.0], requires_grad=True) for _ in range(2))
    (0 * w).sum().backward()
    with uphill([w, other], [], 0.1):
        assert (w.item(), other.item()) == (3, 3)


def test_batchnorm_statistics_are_those_of_the_pass_at_w() -> None:
    """After one step they are bitwise those of training without SAM; the weights are not."""
    nets = []
    for sam in (0.0, 0.5):
        client = client_of("fedavg", **{"train.sam": sam, "train.batch_size": 1000})
        client.train(fedetf.Method().loss)
        nets.append({name: tensor.clone() for name, tensor in client.net.state_dict().items()})
    buffers = {name for name, _ in client.net.named_buffers()}
    assert any("running_var" in name for name in buffers)
    for name, tensor in nets[0].items():
        assert torch.equal(tensor, nets[1][name]) == (name in buffers), name


def test_an_augmented_batch_is_the_same_in_both_passes() -> None:
    seen = []

    class Watching(fedetf.Method):
        def loss(self, client, batch):
            seen.append(batch.x.clone())
            return super().loss(client, batch)

    client = client_of(Watching, **{"train.sam": 0.1, "data.augment": "crop_flip", "train.batch_size": 16})
    seen.clear()
    client.train(Watching().loss)
    assert len(seen) == 2 * client.steps > 2
    assert all(torch.equal(a, b) for a, b in zip(seen[::2], seen[1::2], strict=True))
    assert not torch.equal(seen[0], seen[2][: len(seen[0])])


@pytest.mark.parametrize("method", ["fedetf", "fedrep", "scaffold", "moon"])
def test_any_method_trains_with_it_and_otherwise_than_without(method: str) -> None:
    a, b = (fedetf.run(method=method, settings={**SMALL, "train.sam": rho}, **OPTIONS) for rho in (0.0, 0.05))
    assert b.personal is not None
    a, b = a.model().state_dict(), b.model().state_dict()
    assert any(not torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_processes_give_the_same_bits() -> None:
    settings = {**SMALL, "train.sam": 0.05}
    engines = ({"engine": "serial"}, {"engine": "processes", "workers": 2})
    a, b = (fedetf.run(method="fedetf", settings=settings, **OPTIONS, **engine).model() for engine in engines)
    assert all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())
