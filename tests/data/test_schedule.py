import pytest

from fedetf.data import make_schedule


@pytest.mark.parametrize(
    ("clients", "ratio", "size"), [(20, 1.0, 20), (50, 0.4, 20), (100, 0.6, 60), (100, 0.29, 29), (10, 0.01, 1)]
)
def test_size_of_a_round(clients: int, ratio: float, size: int) -> None:
    for participants in make_schedule(clients, ratio, rounds=4, seed=7):
        assert len(set(participants)) == size
        assert participants == sorted(participants)
        assert min(participants) >= 0
        assert max(participants) < clients


def test_seeded_and_a_longer_run_begins_like_a_shorter_one() -> None:
    assert make_schedule(20, 0.3, 5, seed=7) == make_schedule(20, 0.3, 9, seed=7)[:5]
    assert make_schedule(20, 0.3, 5, seed=7) != make_schedule(20, 0.3, 5, seed=8)


def test_every_client_is_as_likely() -> None:
    rounds = make_schedule(10, 0.5, 2000, seed=1)
    times = [sum(k in participants for participants in rounds) for k in range(10)]
    assert all(abs(t - 1000) < 5 * (2000 * 0.25) ** 0.5 for t in times)
