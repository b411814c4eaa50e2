"""What clients keep: many of them in few files, each as it was, whatever moment a crash chooses."""

from pathlib import Path

import pytest
import torch

from fedetf.core.state import State, save_state
from fedetf.engines import private
from fedetf.engines.private import PrivateStates
from fedetf.files import UnfitFile


def kept(client: int, round: int) -> State:
    return {"v.w": torch.full((3,), 100.0 * client + round), "steps": torch.tensor(round)}


def run(states: PrivateStates, round: int, clients: range | list[int]) -> None:
    """A round and its checkpoint."""
    for client in clients:
        states.keep(client, round, kept(client, round))
    states.sync()
    states.checkpoint_written()


def assert_kept(states: PrivateStates, client: int, round: int) -> None:
    state = states.load(client)
    assert state.keys() == {"v.w", "steps"}
    assert all(torch.equal(tensor, kept(client, round)[name]) for name, tensor in state.items())


def files(states: PrivateStates) -> list[str]:
    return sorted(path.name for path in states.folder.iterdir())


def test_a_thousand_clients_are_in_one_file(tmp_path: Path) -> None:
    states = PrivateStates(tmp_path / "clients")
    run(states, 1, range(1000))
    assert files(states) == ["kept-00001-0.safetensors"]
    for client in (0, 7, 999):
        assert_kept(states, client, 1)
    assert states.load(1000) == {}


def test_large_states_are_not_all_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "ENOUGH", 100)  # bytes: five states of 20 each
    states = PrivateStates(tmp_path / "clients")
    run(states, 1, range(12))
    assert files(states) == [f"kept-00001-{number}.safetensors" for number in range(3)]
    assert_kept(states, 11, 1)


def test_a_state_counts_before_it_is_written() -> None:
    states = PrivateStates()
    states.keep(4, 1, kept(4, 1))
    assert_kept(states, 4, 1)
    states.keep(5, 2, kept(5, 2))
    assert_kept(states, 4, 1)
    assert_kept(states, 5, 2)


def test_the_last_two_checkpoints_can_be_gone_back_to(tmp_path: Path) -> None:
    states = PrivateStates(tmp_path / "clients")
    for round in (1, 2, 3):
        run(states, round, range(4))
    assert files(states) == ["kept-00002-0.safetensors", "kept-00003-0.safetensors"]
    for round in (2, 3):
        again = PrivateStates(tmp_path / "clients")
        again.check(dict.fromkeys(range(4), round))
        again.rounds |= dict.fromkeys(range(4), round)
        for client in range(4):
            assert_kept(again, client, round)
    with pytest.raises(UnfitFile, match="no whole file with what client 0 kept in round 1"):
        PrivateStates(tmp_path / "clients").check({0: 1})


def test_after_a_resume_the_checkpoint_before_is_still_there(tmp_path: Path) -> None:
    run(PrivateStates(tmp_path / "clients"), 1, range(3))
    states = PrivateStates(tmp_path / "clients")
    states.keep(0, 2, kept(0, 2))
    states._write()  # a run that was cut short in round 2
    states = PrivateStates(tmp_path / "clients")
    states.remove_others({(client, 1) for client in range(3)})
    assert files(states) == ["kept-00001-0.safetensors"]
    states.rounds |= dict.fromkeys(range(3), 1)
    run(states, 2, range(3))
    assert files(states) == ["kept-00001-0.safetensors", "kept-00002-0.safetensors"]
    run(states, 3, range(3))
    assert files(states) == ["kept-00002-0.safetensors", "kept-00003-0.safetensors"]


def test_a_file_that_few_need_is_written_anew_for_them(tmp_path: Path) -> None:
    states = PrivateStates(tmp_path / "clients")
    run(states, 1, range(10))
    for round in range(2, 12):
        run(states, round, [round - 2])  # one client after the other moves on
        (first,) = states.folder.glob("kept-00001-*")
        assert len(private.Page(first).names) <= 2 * (10 - (round - 2))  # the checkpoint before needs so many of them
    for client in range(10):
        assert_kept(states, client, client + 2)
    run(states, 12, [0])
    assert not list(states.folder.glob("kept-00001-*"))


def test_a_crash_while_a_file_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = PrivateStates(tmp_path / "clients")
    run(states, 1, range(10))
    run(states, 2, range(8))
    monkeypatch.setattr(states, "_remove", lambda path: 1 / 0)  # the new file is there, the old one still is
    with pytest.raises(ZeroDivisionError):
        run(states, 3, range(8))
    needed = {**dict.fromkeys(range(8), 3), 8: 1, 9: 1}
    again = PrivateStates(tmp_path / "clients")
    again.check(needed)
    again.remove_others({*needed.items(), *((client, 2) for client in range(8))})
    again.rounds |= needed
    assert_kept(again, 9, 1)
    assert_kept(again, 3, 3)
    assert len([name for name in files(again) if name.startswith("kept-00001")]) == 1


def test_files_of_the_first_version_are_read_and_removed_when_their_time_comes(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    folder.mkdir()
    for client in (3, 10_000):
        save_state(kept(client, 5), folder / f"{client}-00005.safetensors", {"client": client, "round": 5})
    states = PrivateStates(folder)
    states.check({3: 5, 10_000: 5})
    states.remove_others({(3, 5), (10_000, 5)})
    states.rounds |= {3: 5, 10_000: 5}
    assert_kept(states, 3, 5)
    run(states, 6, [3])
    run(states, 7, [3])
    assert files(states) == ["10000-00005.safetensors", "kept-00006-0.safetensors", "kept-00007-0.safetensors"]
    assert_kept(states, 10_000, 5)
