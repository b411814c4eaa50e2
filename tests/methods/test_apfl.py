"""APFL: FedAvg's global model, the mixture by hand, and its two ends."""

import pytest
import torch
from by_hand import same_bits, small_run
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method

APFL = METHODS["apfl"]


@pytest.mark.slow
def test_the_global_model_is_fedavgs_to_the_bit() -> None:
    """With BatchNorm and momentum: v_k has statistics of its own, and its loss is not in the record."""
    options = {"model": "cnn", "participation": 0.7, "rounds": 3}
    a, b = small_run("fedavg", options), small_run("apfl", options)
    assert all(torch.equal(tensor, b.outcome.model[name]) for name, tensor in a.outcome.model.items())
    assert [r.loss for r in a.rounds] == [r.loss for r in b.rounds]


def test_alpha_0_is_fedavg_to_the_bit() -> None:
    assert same_bits(small_run("fedavg"), small_run("apfl", alpha=0, adaptive=False))


def test_alpha_1_is_training_alone() -> None:
    """v_k does not depend on who else takes part."""
    job = small_run("apfl", alpha=1, adaptive=False).job
    kept = []
    for schedule in ([[0], [0]], [[0, 1, 2], [0, 2]]):
        federation = Federation(job, schedule)
        list(federation.rounds())
        kept.append(federation.private.load(0))
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
    assert not torch.equal(kept[0]["v.head.weight"], federation.server.state["head.weight"])


@pytest.mark.parametrize("lr_head", [1.0, 0.3])
def test_alpha_1_in_a_first_round_is_what_fedavgs_client_trains(lr_head: float) -> None:
    """The head at its own rate too."""
    job = small_run("apfl", {"train.lr_head": lr_head}, alpha=1, adaptive=False).job
    first = Federation(job, [[0]])
    list(first.rounds())
    v = first.private.load(0)
    assert all(torch.equal(v[f"v.{name}"], tensor) for name, tensor in first.server.state.items())


def test_a_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """L = (x − 2)²/2, w = 0, v = 1, α = 1/2, η = 0.1: v̄ = 1/2 with gradient −3/2."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([2.0]))
    federation = quadratic(APFL, [2.0], [[0]], lr=0.1)
    kept = {"v.head.weight": torch.ones(1, 1), "alpha": torch.tensor(0.5)}
    trained = federation.engine._worker.train(0, 1, federation.server.state, kept)
    assert trained.upload.state["head.weight"].item() == pytest.approx(0.2)  # 0 + 0.1·2
    assert trained.private["v.head.weight"].item() == pytest.approx(1.075)  # 1 + 0.1·½·3/2
    assert trained.private["alpha"].item() == pytest.approx(0.65)  # ½ + 0.1·3/2·(1 − 0)


def test_momentum_and_weight_decay_are_not_for_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", quadratic_loss([2.0]))
    settings = {"train.weight_decay": 0.1}
    federation = quadratic(APFL, [2.0], [[0]], lr=0.1, epochs=1, momentum=0.9, settings=settings)
    kept = {"v.head.weight": torch.ones(1, 1), "alpha": torch.tensor(0.5)}
    trained = federation.engine._worker.train(0, 1, federation.server.state, kept)
    assert trained.private["alpha"].item() == pytest.approx(0.65)
    assert trained.private["v.head.weight"].item() == pytest.approx(1.065)  # less 0.1·0.1·1


@pytest.mark.parametrize(("v", "wanted"), [(9.0, 1.0), (-9.0, 0.0)])
def test_alpha_stays_between_0_and_1(v: float, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """v̄ = ±4.5; the centre ±40 is so far beyond that α would leave [0, 1]."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([40.0]))
    federation = quadratic(APFL, [40.0], [[0]], lr=0.1)
    kept = {"v.head.weight": torch.full((1, 1), v), "alpha": torch.tensor(0.5)}
    assert federation.engine._worker.train(0, 1, federation.server.state, kept).private["alpha"].item() == wanted


def test_the_mixture_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", quadratic_loss([2.0]))
    federation = quadratic(APFL, [2.0], [[0]], lr=0.1, settings={"personal.epochs": 0}, start=1.0)
    kept = {"v.head.weight": torch.full((1, 1), 3.0), "alpha": torch.tensor(0.25)}
    personal = federation.engine._worker.personalise(0, federation.server.state, kept)
    assert personal.state["head.weight"].item() == pytest.approx(1.5)  # ¼·3 + ¾·1
    assert weight(federation) == 1.0


def test_alpha_is_checked() -> None:
    with pytest.raises(fedetf.UserError, match=r"method\.alpha"):
        small_run("apfl", alpha=1.5)
