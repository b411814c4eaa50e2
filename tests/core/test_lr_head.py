"""``train.lr_head``: the head's own learning rate, as a multiple of the encoder's."""

import pytest
import torch
from same import OPTIONS, SMALL, assert_equal
from test_sam import Bowl, client_of

import fedetf

pytestmark = pytest.mark.slow

BARE = {"train.momentum": 0.0, "train.weight_decay": 0.0}


def test_a_step_by_hand() -> None:
    """The gradient at (3, 4) is (3, 4): a step of 0.5 · 0.1 ends at (2.85, 3.8)."""
    client = client_of(Bowl, **{"train.lr_head": 0.5, **BARE})
    client.train(Bowl().loss)
    assert client.net.head.weight.flatten().tolist() == pytest.approx([2.85, 3.8])


def test_a_rate_that_a_method_gives_is_taken_as_it_is() -> None:
    """As for the turns of Algorithm 2: a step of 0.2 ends at (2.4, 3.2)."""
    client = client_of(Bowl, **{"train.lr_head": 0.5, **BARE})
    client.train(Bowl().loss, lr=0.2)
    assert client.net.head.weight.flatten().tolist() == pytest.approx([2.4, 3.2])


def run(method: str, **settings: object) -> fedetf.Result:
    return fedetf.run(method=method, settings={**SMALL, **settings}, **OPTIONS)


@pytest.mark.parametrize("method", ["fedavg", "fedetf", "fedrod"])
def test_one_is_as_without(method: str) -> None:
    assert_equal(run(method, **{"train.lr_head": 1.0}), run(method))


def test_with_nought_fedavg_is_fedbabu() -> None:
    """A head that stands still is FedBABU's: the encoder takes the same way, to the bit."""
    ours = run("fedavg", **{"train.lr_head": 0.0, "personal.enabled": False}).outcome.model
    theirs = run("fedbabu", **{"personal.enabled": False}).outcome.model
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    other = run("fedavg", **{"personal.enabled": False}).outcome.model
    assert not torch.equal(ours["head.weight"], other["head.weight"])


@pytest.mark.parametrize("method", ["fedetf", "fedprox"])
def test_engines_agree(method: str) -> None:
    settings = {"train.lr_head": 0.3}
    assert_equal(run(method, **settings), run(method, **settings, **{"engine.name": "processes", "engine.workers": 2}))


@pytest.mark.parametrize("method", ["scaffold", "fedpvr"])
def test_control_variates_know_one_rate(method: str) -> None:
    with pytest.raises(fedetf.UserError, match=r"train\.lr_head"):
        run(method, **{"train.lr_head": 0.5})
