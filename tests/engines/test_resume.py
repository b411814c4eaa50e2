"""A run that is killed at any moment and resumed ends in the same bits as one that was never stopped."""

import io
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import Forked, children, command, in_child
from rich.console import Console
from same import assert_same_run

import fedetf
from fedetf.cli import main
from fedetf.core.state import load_state
from fedetf.engines.pages import Page, round_of
from fedetf.errors import UserError
from fedetf.federation import Listener
from fedetf.methods import METHODS
from fedetf.report.progress import make_progress

OPTIONS = {
    "dataset": "digits",
    "clients": 5,
    "alpha": 0.5,
    "participation": 0.6,
    "rounds": 4,
    "epochs": 1,
    "engine": "serial",
    "settings": {"data.limit": 300, "data.test_limit": 50, "personal.rounds": 1, "measure.tensorboard": False},
}


def go_on(folder: Path, method: str) -> None:
    if (folder / "config.toml").is_file():
        fedetf.resume(folder)
    else:
        fedetf.run(method=method, out=folder, **OPTIONS)


class DieOnce(Listener):
    """Ends the process with SIGKILL in round 2, or after the first personal model."""

    def __init__(self, moment: str):
        self.moment = moment

    def client_done(self, record) -> None:
        if (self.moment, record.round) == ("round", 2):
            os.kill(os.getpid(), signal.SIGKILL)

    def personal_done(self, personal) -> None:
        if self.moment == "personal":
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    # All take part in all rounds: what a client keeps is used after the kill.
    options = {**OPTIONS, "method": method, "clients": 3, "participation": 1.0, "rounds": 3, "model": "mlp"}
    options["settings"] = {**OPTIONS["settings"], "data.limit": 90, "train.batch_size": 16}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    fedetf.run(out=whole, **options)
    for moment, work in (
        ("round", lambda killer: fedetf.run(out=broken, listeners=[killer], **options)),
        ("personal", lambda killer: fedetf.resume(broken, listeners=[killer])),
    ):
        assert in_child(lambda work=work, moment=moment: work(DieOnce(moment))) == signal.SIGKILL
    fedetf.resume(broken)
    assert_same_run(whole, broken)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    rng = random.Random(7)
    kills, in_personal_stage = 0, 0
    for method in ("ditto", "feddyn", "fedrep", "fedetf", "ccvr", "fedproto"):
        whole, broken = tmp_path / f"{method}-whole", tmp_path / f"{method}-broken"
        began = time.monotonic()
        fedetf.run(method=method, out=whole, **OPTIONS)
        lasts = time.monotonic() - began
        patience = 0.0
        while not (broken / "result.json").exists():
            patience += lasts / 30  # a slow machine must get on as well
            delay = rng.uniform(0.05, 0.3) * lasts + patience

            def kill(pid: int, delay: float = delay) -> None:
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)

            status = in_child(lambda method=method, broken=broken: go_on(broken, method), kill)
            assert status in (0, signal.SIGKILL)
            kills += status == signal.SIGKILL
            in_personal_stage += status == signal.SIGKILL and (broken / "personal").exists()
        assert_same_run(whole, broken)
    assert kills >= 20
    assert in_personal_stage >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_before_each_single_write(tmp_path: Path) -> None:
    """Not left to chance: killed before the n-th rename, sync or removal of a run, for every n there is."""
    small = {**OPTIONS["settings"], "data.limit": 60}
    # The third checkpoint lets the first be removed.
    options = {**OPTIONS, "rounds": 3, "clients": 3, "model": "mlp", "settings": small}
    whole = tmp_path / "whole"
    fedetf.run(method="ditto", out=whole, **options)
    for n in range(1, 1000):
        broken = tmp_path / str(n)
        status = in_child(lambda n=n, broken=broken: _die_at_write(n, broken, options))
        if status == 0:
            break
        assert status == signal.SIGKILL
        if (broken / "config.toml").is_file():
            fedetf.resume(broken)
        else:
            fedetf.run(method="ditto", out=broken, **options)
        assert_same_run(whole, broken)
    assert n > 20


def _die_at_write(n: int, folder: Path, options: dict) -> None:
    count = 0

    def counted(real: Callable) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    # In a child that ends with this.
    Path.replace, os.fsync, Path.unlink = counted(Path.replace), counted(os.fsync), counted(Path.unlink)
    fedetf.run(method="ditto", out=folder, **options)


# --- the process engine, from the command line ------------------------------------------------------------------------

FLAGS = "--method feddyn --clients 4 --rounds 6 --epochs 2 --engine processes --workers 2 --set data.limit=300"


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def workers(main: int) -> list[int]:
    """What a run has started, and what that has started."""
    servers = children(main)
    return [*servers, *(worker for server in servers for worker in children(server))]


@pytest.mark.slow
def test_killed_with_worker_processes(tmp_path: Path) -> None:
    fedetf.run(method="feddyn", clients=4, rounds=6, epochs=2, settings={"data.limit": 300}, out=tmp_path / "whole")
    broken = tmp_path / "broken"
    process = Forked("run", *FLAGS.split(), "--out", str(broken))
    for checkpoint in ("round-00001", "round-00004"):
        wait_for(lambda name=checkpoint: (broken / f"checkpoints/{name}.safetensors").exists())
        started = workers(process.pid)
        assert started
        process.kill()
        process.communicate()
        wait_for(lambda pids=started: not any("serve_forks" in command(pid) for pid in pids))  # nothing is left running
        process = Forked("resume", str(broken))
    assert process.communicate()[1].count("round ") <= 3
    assert process.returncode == 0
    assert_same_run(tmp_path / "whole", broken)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_how_to_go_on(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    process = Forked("run", *FLAGS.split(), "--rounds", "500", "--out", str(folder))
    wait_for(lambda: (folder / "checkpoints/round-00001.safetensors").exists())
    process.send_signal(number)
    error = process.communicate()[1]
    assert process.returncode == 130, error
    assert error.splitlines()[-1] == f"interrupted; what was done is saved; go on with: fedetf resume {folder}"
    assert "Traceback" not in error
    assert (folder / "rounds.jsonl").read_text().endswith("\n")
    assert list((folder / "checkpoints").glob("*.safetensors"))
    assert not (folder / "result.json").exists()


# --- damaged files, wrong folders -------------------------------------------------------------------------------------


class StopAfter(Listener):
    def __init__(self, round: int):
        self.round = round

    def round_done(self, record, server) -> None:
        if record.round == self.round:
            raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        fedetf.run(method="ditto", out=tmp_path / "stopped", listeners=[StopAfter(3)], **OPTIONS)
    return tmp_path / "stopped"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ditto") / "whole"
    fedetf.run(method="ditto", out=folder, **OPTIONS)
    return folder


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-50] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, empty])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(stopped: Path, whole: Path, damage: Callable) -> None:
    damage(stopped / "checkpoints/round-00003.safetensors")
    with pytest.warns(UserWarning, match="round-00003.safetensors cannot be used .*going on from the one before"):
        result = fedetf.resume(stopped)
    assert len(result.rounds) == 4
    assert_same_run(whole, stopped)


def test_a_damaged_client_state_falls_back_as_well(stopped: Path, whole: Path) -> None:
    last = sorted((stopped / "clients").glob("kept-00003-*.safetensors"))[0]
    cut_short(last)
    with pytest.warns(UserWarning, match="round-00003.safetensors cannot be used"):
        fedetf.resume(stopped)
    assert_same_run(whole, stopped)


def test_a_damaged_personal_model_is_made_again(tmp_path: Path, whole: Path) -> None:
    fedetf.run(method="ditto", out=tmp_path / "run", **OPTIONS)
    (tmp_path / "run/result.json").unlink()
    empty(tmp_path / "run/personal/2.safetensors")
    fedetf.resume(tmp_path / "run")
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.filterwarnings("error")
def test_twelve_clients_with_private_state_go_on_where_they_were(tmp_path: Path) -> None:
    seen: list[int] = []

    class Seen(Listener):
        def round_done(self, record, server) -> None:
            seen.append(record.round)

    options = {**OPTIONS, "clients": 12, "participation": 1.0}
    with pytest.raises(KeyboardInterrupt):
        fedetf.run(method="feddyn", out=tmp_path / "run", listeners=[StopAfter(3)], **options)
    fedetf.resume(tmp_path / "run", listeners=[Seen()])
    assert seen == [4]


def test_if_no_checkpoint_can_be_read_nothing_is_thrown_away(stopped: Path) -> None:
    before = {path.name for path in stopped.rglob("*")}
    for path in (stopped / "checkpoints").glob("*.safetensors"):
        empty(path)
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(UserError, match=r"no checkpoint in .* can be read"),
    ):
        fedetf.resume(stopped)
    assert {path.name for path in stopped.rglob("*")} == before


def test_a_flipped_bit_in_a_client_state_is_noticed(stopped: Path, whole: Path) -> None:
    flip_a_bit(sorted((stopped / "clients").glob("kept-00003-*.safetensors"))[0])
    with pytest.warns(
        UserWarning, match=r"round-00003.safetensors cannot be used \(.*clients.*is damaged: its content has changed"
    ):
        fedetf.resume(stopped)
    assert_same_run(whole, stopped)


def test_only_what_is_missing_is_done(stopped: Path) -> None:
    class Seen(Listener):
        rounds, personal = [], []

        def round_done(self, record, server) -> None:
            self.rounds.append(record.round)

        def personal_done(self, personal) -> None:
            self.personal.append(personal.client)

    first = fedetf.resume(stopped, listeners=[Seen()])
    assert (Seen.rounds, Seen.personal) == ([4], [0, 1, 2, 3, 4])
    again = fedetf.resume(stopped, listeners=[Seen()])
    assert (Seen.rounds, Seen.personal) == ([4], [0, 1, 2, 3, 4])
    assert again.summary == first.summary


def test_old_client_states_are_removed(stopped: Path) -> None:
    schedule = json.loads((stopped / "schedule.json").read_text())
    pages = list((stopped / "clients").glob("*.safetensors"))
    assert pages
    for path in pages:
        round, clients = round_of(path), Page(path).names
        later = [[t for t in range(round + 1, 4) if client in schedule[t - 1]] for client in clients]
        needed = sum(
            rounds in ([], [3]) for rounds in later
        )  # the checkpoint of round 2 may need what round 3 replaced
        assert 2 * needed >= len(clients)


def test_checkpoints_every_n_rounds(tmp_path: Path, whole: Path) -> None:
    options = {**OPTIONS, "settings": {**OPTIONS["settings"], "engine.checkpoint": 2}}
    with pytest.raises(KeyboardInterrupt):
        fedetf.run(method="ditto", out=tmp_path / "run", listeners=[StopAfter(3)], **options)
    assert [path.stem for path in (tmp_path / "run/checkpoints").iterdir()] == ["round-00002"]
    fedetf.resume(tmp_path / "run")
    (whole_model, model) = (load_state(folder / "model.safetensors") for folder in (whole, tmp_path / "run"))
    assert all(torch.equal(tensor, model[name]) for name, tensor in whole_model.items())


def test_own_data_is_asked_for_and_checked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(2)]
    options = {"model": "mlp", "rounds": 2, "epochs": 1, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fedetf.run(data=data, listeners=[StopAfter(1)], **options)
    with pytest.raises(UserError, match=r"was given its data in Python; go on with fedetf.resume\(folder, data=...\)"):
        fedetf.resume(tmp_path / "run")
    with pytest.raises(UserError, match=r"the data are not those that .* was made with"):
        fedetf.resume(tmp_path / "run", data=[*data, data[0]])
    assert len(fedetf.resume(tmp_path / "run", data=data).rounds) == 2


def test_what_cannot_be_resumed_is_said(tmp_path: Path, stopped: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nothing; check the path"):
        fedetf.resume(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"is not a run folder: there is no config.toml in it"):
        fedetf.resume(tmp_path)


def test_another_engine_may_finish_a_run(stopped: Path, whole: Path) -> None:
    before = (stopped / "config.toml").read_text()
    fedetf.resume(stopped, engine="processes", workers=2)
    assert_same_run(whole, stopped)
    assert (stopped / "config.toml").read_text() == before


@pytest.mark.parametrize("live", [False, True])
def test_progress_of_what_is_left(stopped: Path, live: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=live, width=100)
    fedetf.resume(stopped, listeners=[make_progress(console)])
    for path in ("result.json", "personal/3.safetensors", "personal/4.safetensors"):
        (stopped / path).unlink()
    fedetf.resume(stopped, listeners=[make_progress(console)])  # no round is left, and two personal models
    assert "5/5" in output.getvalue()


def test_two_processes_do_not_work_in_one_folder(stopped: Path) -> None:
    class Second(Listener):
        def round_done(self, record, server) -> None:
            with pytest.raises(UserError, match="another process is working in"):
                fedetf.resume(stopped)

    fedetf.resume(stopped, listeners=[Second()])


def test_a_complete_run_is_said_to_be_so_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    run = ["run", "--method", "fedavg", "--clients", "3", "--rounds", "1", "--epochs", "1", "--out", str(out)]
    assert main(run) == 0
    assert "1 round of 1 epoch," in capsys.readouterr().out
    before = (out / "model.safetensors").read_bytes()
    assert main(["resume", str(out)]) == 0
    assert "was complete before" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == before
