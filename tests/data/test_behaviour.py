"""Clients that fail or lag: as often as the settings say, the same for every method, engine and attempt."""

from pathlib import Path

import pytest

import fedetf
from fedetf.core.state import nbytes
from fedetf.data.behaviour import present, share_done
from fedetf.settings import SystemSettings

SHORT = {"clients": 5, "alpha": 10.0, "rounds": 3, "epochs": 2, "seed": 5}
QUIET = {"measure.tensorboard": False, "personal.enabled": False, "train.batch_size": 16}


def test_as_many_drop_out_as_the_settings_say() -> None:
    system = SystemSettings(dropout=0.3)
    answers = [len(present(range(10), t, system, seed=1)) for t in range(1, 501)]
    assert sum(answers) / 5000 == pytest.approx(0.7, abs=0.03)  # three standard deviations are 0.02
    assert present(range(10), 4, system, seed=1) == present(range(10), 4, system, seed=1)
    assert set(present(range(5), 4, system, 1)) == set(present(range(10), 4, system, 1)) & set(range(5))


def test_somebody_always_answers() -> None:
    assert all(len(present([3, 8], t, SystemSettings(dropout=0.999), 2)) == 1 for t in range(1, 50))


def test_stragglers_finish_a_uniform_share() -> None:
    shares = [share_done(k, t, SystemSettings(stragglers=0.5), 1) for k in range(50) for t in range(40)]
    slow = [share for share in shares if share < 1]
    assert len(slow) / len(shares) == pytest.approx(0.5, abs=0.04)
    assert sum(slow) / len(slow) == pytest.approx(0.5, abs=0.03)


def test_who_drops_out_received_the_model_and_sent_nothing() -> None:
    result = fedetf.run(method="fedavg", settings={**QUIET, "system.dropout": 0.5}, **SHORT)
    size = nbytes(result.outcome.model)
    assert any(record.missing for record in result.rounds)
    for record in result.rounds:
        assert set(record.missing.values()) <= {"dropped out"}
        assert record.bytes_down == 5 * size
        assert record.bytes_up == (5 - len(record.missing)) * size


@pytest.mark.slow
def test_a_straggler_takes_fewer_steps() -> None:
    whole = fedetf.run(method="fedavg", settings=QUIET, **SHORT)
    lagging = fedetf.run(method="fedavg", settings={**QUIET, "system.stragglers": 1.0}, **SHORT)
    system = SystemSettings(stragglers=1.0)
    for before, after in zip(whole.rounds, lagging.rounds, strict=True):
        assert after.images < before.images
        shares = [share_done(k, after.round, system, 5) for k in range(5)]
        wanted = sum(2 * len(part) * share for part, share in zip(whole.partition.train, shares, strict=True))
        assert after.images == pytest.approx(wanted, abs=5 * 17)  # whole batches


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fedetf"])
def test_engines_and_attempts_agree(method: str, tmp_path: Path) -> None:
    given = {**QUIET, "system.dropout": 0.4, "system.stragglers": 0.5}
    one = fedetf.run(method=method, settings=given, out=tmp_path / "one", **SHORT)
    fedetf.run(method=method, settings=given, out=tmp_path / "two", engine="processes", workers=2, **SHORT)
    model = (tmp_path / "one/model.safetensors").read_bytes()
    assert (tmp_path / "two/model.safetensors").read_bytes() == model
    other = fedetf.run(method="fedavg", settings=given, **SHORT)
    assert [record.missing for record in one.rounds] == [record.missing for record in other.rounds]
