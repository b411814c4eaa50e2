"""FedALA: where it is FedAvg, the mixing weights by hand, and how long clients search."""

import pytest
import torch
from by_hand import job_of, same_bits, small_run
from quadratic import quadratic, quadratic_loss, weight

from fedetf.engines.worker import Worker
from fedetf.methods import METHODS, Method
from fedetf.methods.fedala import MOST_EPOCHS

FedALA = METHODS["fedala"]
LAST, MIX, ROUNDS = "last.head.weight", "mix.head.weight", "rounds"


def test_rate_0_is_fedavg_to_the_bit() -> None:
    assert same_bits(small_run("fedavg"), small_run("fedala", lr_mix=0))


def test_a_clients_first_round_is_fedavgs_to_the_bit_and_its_second_is_not() -> None:
    one = {"rounds": 1, "personal.enabled": False}
    assert same_bits(small_run("fedavg", one), small_run("fedala", one))
    assert not same_bits(small_run("fedavg"), small_run("fedala"))


def test_mixing_weights_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """θ_l = 0, θ_g = 1, W = 1, L = (θ − 1/4)²/2: the gradient 3/4 takes W to 1/4, where θ is best and it stays."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([0.25]))
    federation = quadratic(FedALA, [0.25], [[0]], lr=0.0, start=1.0)
    kept = {LAST: torch.zeros(1, 1), MIX: torch.ones(1, 1)}
    for rounds in (1, 5):  # the first search, and a later one of a single epoch
        trained = federation.engine._worker.train(0, 1, federation.server.state, {**kept, ROUNDS: torch.tensor(rounds)})
        assert trained.private[MIX].item() == pytest.approx(0.25)
        assert trained.upload.state["head.weight"].item() == pytest.approx(0.25)
        assert trained.private[ROUNDS].item() == rounds + 1


def test_mixing_weights_move_by_their_gradient_whatever_trains_the_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same by hand; Adam's first step, whatever the gradient, would take W from 1 to 0."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([0.25]))
    federation = quadratic(FedALA, [0.25], [[0]], lr=0.0, start=1.0, settings={"train.optimiser": "adam"})
    kept = {LAST: torch.zeros(1, 1), MIX: torch.ones(1, 1), ROUNDS: torch.tensor(5)}
    trained = federation.engine._worker.train(0, 1, federation.server.state, kept)
    assert trained.private[MIX].item() == pytest.approx(0.25)


@pytest.mark.parametrize(("centre", "wanted"), [(-3.0, 0.0), (7.0, 1.0)])
def test_mixing_weights_stay_between_0_and_1(centre: float, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1/2 the gradient would take W to −3 and to 7; at the ends θ is one of the two heads to the bit."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([centre]))
    federation = quadratic(FedALA, [centre], [[0]], lr=0.0, start=0.7)
    kept = {LAST: torch.full((1, 1), -0.3), MIX: torch.full((1, 1), 0.5), ROUNDS: torch.tensor(2)}
    trained = federation.engine._worker.train(0, 1, federation.server.state, kept)
    assert trained.private[MIX].item() == wanted
    assert torch.equal(trained.upload.state["head.weight"], torch.full((1, 1), 0.7 if wanted else -0.3))


def test_equal_heads_leave_the_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", quadratic_loss([5.0]))
    federation = quadratic(FedALA, [5.0], [[0]], lr=0.0, start=1.0)
    kept = {LAST: torch.ones(1, 1), MIX: torch.full((1, 1), 0.5), ROUNDS: torch.tensor(1)}
    assert federation.engine._worker.train(0, 1, federation.server.state, kept).private[MIX].item() == 0.5


def test_training_goes_on_from_the_mixture_and_the_last_head_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1: 0 → 2 = θ_l, and the server is there. Round 2 starts from it and steps halfway to 4 once more."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0]))
    federation = quadratic(FedALA, [4.0], [[0], [0]], lr=0.5)
    list(federation.rounds())
    assert weight(federation) == pytest.approx(3.0)
    assert federation.private.load(0)[LAST].item() == pytest.approx(3.0)


def test_the_first_search_ends_when_the_loss_has_settled_and_sees_a_share_of_the_data() -> None:
    """Ten samples, of which an epoch sees eight: 11 epochs if any deviation is small enough, all of them if none is."""
    for threshold, epochs in ((1e9, 11), (0.0, MOST_EPOCHS)):
        method = FedALA(threshold=threshold)
        job = job_of(method, [[5, 5]], 2, torch.randn(10, 2, generator=torch.Generator().manual_seed(0)))
        worker = Worker(job, torch.device("cpu"))
        first = worker.client(0, 1, worker.net.state_dict(), {}, epochs=0, lr=0.1)
        first.private[ROUNDS] += 1
        first.private["last.head.bias"] += 1.0
        method.local(first)
        assert first.images == epochs * 8
        method.local(first)
        assert first.images == (epochs + 1) * 8
