"""Differential privacy of whole sites: clipping and noise in closed form, the accountant against the exact curve."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import kstest
from sites import Wire, make_app

from fedetf.engines.steps import Missing, Trained
from fedetf.errors import UserError
from fedetf.flower import privacy
from fedetf.flower.federate import Federate
from fedetf.flower.privacy import PrivacyLedger, clipped, epsilon, noised, normal_numbers
from fedetf.methods import Upload

RECEIVED = {"w": torch.zeros(2), "n": torch.tensor(3)}


def federate(**more: float) -> Federate:
    given = {"sites": "a,b,c", "classes": "0,1", "shape": "1x8x8", "out": "x", **more}
    return Federate.of(given)


def ledger(folder: Path) -> PrivacyLedger:
    return PrivacyLedger(folder, federate(noise=1.0))


def trained(client: int, samples: int, **state: torch.Tensor) -> Trained:
    return Trained(Upload(client, samples, state, 0.5, 10), {})


def test_updates_are_clipped_as_one_vector() -> None:
    received = {"a": torch.ones(2), "b": torch.ones(1), "n": torch.tensor(5)}
    state = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0]), "n": torch.tensor(9)}  # an update (2, 0, 1)
    short = clipped(state, received, 10.0)
    assert (short["a"].tolist(), short["b"].tolist(), "n" in short) == ([2.0, 0.0], [1.0], False)
    long = clipped(state, received, 0.5)
    assert torch.cat([long["a"], long["b"]]).tolist() == pytest.approx([x * 0.5 / math.sqrt(5) for x in (2, 0, 1)])
    assert not clipped(received, received, 1.0)["a"].any()


def test_a_method_sees_the_plain_mean_of_clipped_updates_and_nothing_of_the_unsound(tmp_path: Path) -> None:
    answers = {
        0: trained(0, 100, w=torch.tensor([3.0, 4.0]), n=torch.tensor(13)),  # clipped to (0.6, 0.8)
        1: trained(1, 1, w=torch.tensor([0.0, 0.5]), n=torch.tensor(4)),
        2: trained(2, 5, w=torch.tensor([math.nan, 0.0]), n=torch.tensor(4)),
        3: Missing(3, "late"),
    }
    private = noised(answers, RECEIVED, federate(noise=1e-9, clip=1.0), ledger(tmp_path), 1e6)
    for client in (0, 1):
        state = private[client].upload.state
        assert state["w"].tolist() == pytest.approx([0.3, 0.65], abs=1e-6)
        assert state["n"] == 3  # a counter would tell how much data a site has
    assert private[2] is answers[2]
    assert private[3] is answers[3]


def test_the_noise_has_the_standard_deviation_of_the_mean_and_differs_from_run_to_run(tmp_path: Path) -> None:
    received = {"w": torch.zeros(200_000), "bn.running_var": torch.zeros(1000)}
    answers = {k: trained(k, 1, **received) for k in range(4)}
    asked, book = federate(noise=2.0, clip=3.0), ledger(tmp_path)
    first, second = (noised(answers, received, asked, book, 1e6)[0].upload.state["w"] for _ in range(2))
    assert float(first.std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.01)
    assert not torch.equal(first, second)
    variance = noised(answers, received, asked, book, 1e6)[0].upload.state["bn.running_var"]
    assert float(variance.min()) == 0


def test_the_noise_is_normal() -> None:
    draws = normal_numbers((400, 500)).flatten()
    assert draws.dtype == torch.float64
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):  # of a standard normal number
        spread = draws.pow(power).std() / math.sqrt(len(draws))
        assert abs(float(draws.pow(power).mean()) - moment) < 6 * spread
    assert kstest(draws.numpy(), "norm").pvalue > 1e-6
    assert abs(float((draws[:-1] * draws[1:]).mean())) < 6 / math.sqrt(len(draws))


def test_a_mean_counts_before_it_is_used_and_twice_if_it_is_drawn_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {0: trained(0, 1, **RECEIVED)}
    noised(answers, RECEIVED, federate(noise=1.0), ledger(tmp_path), 1e6)

    def power_cut(shape: object) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(privacy, "normal_numbers", power_cut)
    with pytest.raises(KeyboardInterrupt):
        noised(answers, RECEIVED, federate(noise=1.0), ledger(tmp_path), 1e6)
    monkeypatch.undo()
    noised(answers, RECEIVED, federate(noise=1.0), ledger(tmp_path), 1e6)  # by the server that was started anew
    spent = json.loads((tmp_path / "privacy.json").read_text())
    assert spent["releases"] == 3
    assert spent["epsilon"] == pytest.approx(epsilon(1.0, 1e-5, 3, 3))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_epsilon_lies_between_the_exact_value_and_the_simple_bound(noise: float, rounds: int) -> None:
    delta = 1e-5
    mu = math.sqrt(rounds) / noise  # T Gaussian mechanisms are one with a √T-fold signal (Dong et al. 2022)

    def excess(e: float) -> float:
        return math.exp(log_ndtr(mu / 2 - e / mu)) - math.exp(e + log_ndtr(-mu / 2 - e / mu)) - delta

    exact = brentq(excess, 0, 200)
    simple = rounds / (2 * noise**2) + math.sqrt(2 * rounds * math.log(1 / delta)) / noise  # Mironov 2017, best order
    assert exact <= epsilon(noise, delta, 3, rounds) <= simple * 1.001


@pytest.mark.parametrize("method", ["fednh", "fedproto", "ccvr"])
def test_methods_that_send_statistics_are_refused(method: str, tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", method)
    with pytest.raises(UserError, match=f"{method} sends statistics of classes besides the model"):
        Wire(app, tmp_path / "kept", out=str(tmp_path / "run"), noise=1.0).run_server()
    assert not (tmp_path / "run").exists()


def test_a_private_run_counts_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedetf.flower.engine.PAUSE", 0.0)
    app = make_app(tmp_path / "app", "fedavg", model="mlp", limit=60)
    Wire(app, tmp_path / "kept", out=str(tmp_path / "run"), noise=0.5, clip=0.1).run_server()
    spent = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert spent["releases"] == 2
    assert spent["epsilon"] == pytest.approx(epsilon(0.5, 1e-5, 3, 2))
    assert (tmp_path / "run" / "result.json").is_file()
