"""Differential privacy of whole clients: clipping and noise in closed form, the accountant against the exact curve."""

import json
import math
import stat
from pathlib import Path

import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import kstest
from sites import Wire, make_app

import fedetf
from fedetf.core.server import Noise, RoundNoise
from fedetf.core.server.privacy import clipped, epsilon
from fedetf.core.state import State
from fedetf.errors import UserError
from fedetf.flower.privacy import PrivacyLedger
from fedetf.methods import Server, Upload
from fedetf.settings import UpdateSettings

RECEIVED = {"w": torch.zeros(2), "n": torch.tensor(3)}


def asked(noise: float = 1.0, clip: float = 1.0) -> UpdateSettings:
    return UpdateSettings(noise=noise, clip=clip)


def server(received: State, update: UpdateSettings, noise: object = None) -> Server:
    source = noise or RoundNoise(Noise(b"key"))
    return Server(dict(received), 4, parameters=("w",), update=update, noise=source, round=1)


def upload(client: int, samples: int, **state: torch.Tensor) -> Upload:
    return Upload(client, samples, state, 0.5, 10)


def test_updates_are_clipped_as_one_vector() -> None:
    received = {"a": torch.ones(2), "b": torch.ones(1), "n": torch.tensor(5)}
    state = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0]), "n": torch.tensor(9)}  # an update (2, 0, 1)
    assert clipped(state, received, 10.0) is state
    long = clipped(state, received, 0.5)
    update = torch.cat([long["a"] - 1, long["b"] - 1])
    assert update.tolist() == pytest.approx([x * 0.5 / math.sqrt(5) for x in (2, 0, 1)])
    assert long["n"] == 9
    assert clipped(received, received, 1.0) is received  # nothing is divided by a length of 0


def test_the_mean_is_plain_and_of_clipped_updates() -> None:
    sent = [
        upload(0, 100, w=torch.tensor([3.0, 4.0]), n=torch.tensor(13)),  # clipped to (0.6, 0.8)
        upload(1, 1, w=torch.tensor([0.0, 0.5]), n=torch.tensor(4)),
    ]
    combined = server(RECEIVED, asked(noise=1e-9)).combine(sent)
    assert combined["w"].tolist() == pytest.approx([0.3, 0.65], abs=1e-6)
    assert combined["n"] == 3  # a counter would tell how much data a client has


def test_without_noise_clipped_updates_count_by_their_samples() -> None:
    sent = [upload(0, 3, w=torch.tensor([3.0, 4.0])), upload(1, 1, w=torch.tensor([0.0, 0.5]))]
    combined = server(RECEIVED, UpdateSettings(clip=1.0)).combine(sent)
    assert combined["w"].tolist() == pytest.approx([0.45, 0.725])


def test_the_noise_has_the_standard_deviation_of_the_mean_and_differs_from_round_to_round() -> None:
    received = {"w": torch.zeros(200_000), "bn.running_var": torch.zeros(1000)}
    made = server(received, asked(noise=2.0, clip=3.0))
    sent = [upload(k, 1, **received) for k in range(4)]
    first = made.combine(sent)
    assert float(first["w"].std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.01)
    assert float(first["bn.running_var"].min()) == 0
    assert torch.equal(made.combine(sent)["w"], first["w"])  # a simulation can be repeated
    made.round = 2
    assert not torch.equal(made.combine(sent)["w"], first["w"])


def test_the_noise_is_normal_and_of_its_own_for_every_tensor() -> None:
    noise = Noise(b"key")
    draws = noise.draw((400, 500), 1, "w").flatten()
    assert draws.dtype == torch.float64
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):  # of a standard normal number
        spread = draws.pow(power).std() / math.sqrt(len(draws))
        assert abs(float(draws.pow(power).mean()) - moment) < 6 * spread
    assert kstest(draws.numpy(), "norm").pvalue > 1e-6
    assert abs(float((draws[:-1] * draws[1:]).mean())) < 6 / math.sqrt(len(draws))
    others = [noise.draw((400, 500), 1, "v"), noise.draw((400, 500), 2, "w"), Noise(b"yek").draw((400, 500), 1, "w")]
    assert all(abs(float((draws * other.flatten()).mean())) < 6 / math.sqrt(len(draws)) for other in others)


def test_on_real_sites_a_mean_counts_before_it_is_used_and_twice_if_it_is_drawn_twice(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, asked())
    sent = [upload(0, 1, **RECEIVED)]
    first = server(RECEIVED, asked(), ledger).combine(sent)
    again = server(RECEIVED, asked(), PrivacyLedger(tmp_path, asked())).combine(
        sent
    )  # by a server that was started anew
    assert not torch.equal(first["w"], again["w"])  # the same noise on another mean would uncover both
    spent = json.loads((tmp_path / "privacy.json").read_text())
    assert spent["releases"] == 2
    assert spent["epsilon"] == pytest.approx(epsilon(1.0, 1e-5, 2))
    assert stat.S_IMODE((tmp_path / "noise.key").stat().st_mode) == 0o600
    assert len((tmp_path / "noise.key").read_bytes()) == 32
    (tmp_path / "noise.key").write_bytes(b"short")
    with pytest.raises(UserError, match=r"noise.key is damaged"):
        server(RECEIVED, asked(), ledger).combine(sent)


def test_two_runs_have_two_keys(tmp_path: Path) -> None:
    draws = []
    for name in "ab":
        (tmp_path / name).mkdir()
        draws.append(PrivacyLedger(tmp_path / name, asked()).noise.draw((3,), 1, "w"))
    assert not torch.equal(*draws)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_epsilon_lies_between_the_exact_value_and_the_simple_bound(noise: float, rounds: int) -> None:
    delta = 1e-5
    mu = math.sqrt(rounds) / noise  # T Gaussian mechanisms are one with a √T-fold signal (Dong et al. 2022)

    def excess(e: float) -> float:
        return math.exp(log_ndtr(mu / 2 - e / mu)) - math.exp(e + log_ndtr(-mu / 2 - e / mu)) - delta

    exact = brentq(excess, 0, 200)
    simple = rounds / (2 * noise**2) + math.sqrt(2 * rounds * math.log(1 / delta)) / noise  # Mironov 2017, best order
    assert exact <= epsilon(noise, delta, rounds) <= simple * 1.001


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (10.0, 200, 1e-3), (0.5, 3, 1e-6), (1, 200, 1e-3)]
)
def test_epsilon_is_that_of_dp_accounting(noise: float, rounds: int, delta: float) -> None:
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), rounds))
    assert epsilon(noise, delta, rounds) == pytest.approx(accountant.get_epsilon(delta), rel=0.01)


def test_epsilon_over_whole_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders 2 to 256: 4.752728 for one release with z = 1, 5.499106 for 200 with z = 10; more orders only help."""
    more = epsilon(1.0, 1e-5, 1)
    monkeypatch.setattr("fedetf.core.server.privacy.ORDERS", range(2, 257))
    assert epsilon(1.0, 1e-5, 1) == pytest.approx(4.752728, rel=1e-6)
    assert epsilon(10.0, 1e-3, 200) == pytest.approx(5.499106, rel=1e-6)
    assert 4.377178 < more < 4.752728  # the first is the exact value
    assert epsilon(1.0, 1e-5, 0) == 0


@pytest.mark.parametrize("method", ["fednh", "fedproto", "ccvr"])
def test_methods_that_send_statistics_are_refused(method: str, tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", method)
    with pytest.raises(UserError, match=f"{method} sends .* besides the model, which the noise does not cover"):
        Wire(app, tmp_path / "kept", out=str(tmp_path / "run"), noise=1.0).run_server()
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="which the noise does not cover"):
        fedetf.run(method=method, settings={"update.noise": 1.0, "update.clip": 1.0})


def test_a_private_run_counts_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedetf.flower.engine.PAUSE", 0.0)
    app = make_app(tmp_path / "app", "fedavg", model="mlp", limit=60)
    Wire(app, tmp_path / "kept", out=str(tmp_path / "run"), noise=0.5, clip=0.1).run_server()
    spent = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert spent["releases"] == 2
    assert spent["epsilon"] == pytest.approx(epsilon(0.5, 1e-5, 2))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epsilon"] == spent["epsilon"]


def test_a_simulation_says_what_the_noise_is_worth(tmp_path: Path) -> None:
    settings = {"data.limit": 60, "update.noise": 0.5, "update.clip": 0.1, "engine.name": "serial"}
    options = {"method": "fedetf", "model": "mlp", "clients": 3, "rounds": 2, "epochs": 1}
    result = fedetf.run(settings=settings, **options)
    assert result.summary["epsilon"] == pytest.approx(epsilon(0.5, 1e-5, 2))
    assert fedetf.run(settings={"data.limit": 60, "engine.name": "serial"}, **options).summary["epsilon"] is None
