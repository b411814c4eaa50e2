"""Every engine gives the same bits, whatever happens to its workers."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import children
from pydantic import Field
from same import OPTIONS, SMALL, assert_equal
from torch import nn

import fedetf
from fedetf.engines.dispatch import ENOUGH, in_order
from fedetf.engines.forkserver import fork_server
from fedetf.engines.memory import flatten, restore, store, stored
from fedetf.engines.private import PrivateStates
from fedetf.engines.steps import Personal, Step, Trained
from fedetf.engines.wire import Message, pack_error, pack_results, pack_steps, read, unpack_results, unpack_steps
from fedetf.errors import RunError, StepError, UserError
from fedetf.federation import Listener
from fedetf.methods import METHODS, Upload

THREE = {"engine": "processes", "workers": 3}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_serial_one_worker_and_three_give_the_same_bits(method: str, tmp_path: Path) -> None:
    runs = {"serial": {"engine": "serial"}, "one": {"engine": "processes", "workers": 1}, "three": THREE}
    for name, engine in runs.items():
        fedetf.run(method=method, **OPTIONS, **engine, settings={**SMALL, "data.limit": 150}, out=tmp_path / name)
    for path in (tmp_path / "serial").rglob("*.safetensors"):
        if "checkpoints" in path.parts:  # they hold how long the rounds took
            continue
        for other in ("one", "three"):
            assert (tmp_path / other / path.relative_to(tmp_path / "serial")).read_bytes() == path.read_bytes()


def test_images_of_channels_last_and_resnets(tmp_path: Path) -> None:
    options = {**OPTIONS, "clients": 3, "rounds": 1, "model": "resnet20", "settings": {**SMALL, "data.limit": 60}}
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(**THREE, **options))


# --- the user's own code in workers -----------------------------------------------------------------------------------


class Halved(fedetf.Method):
    factor: float = Field(0.5, description="on the loss")

    def loss(self, client, batch):
        return self.factor * super().loss(client, batch)


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 7)

    def forward(self, x):
        return self.linear(x.flatten(1)).relu()


def test_own_classes_of_a_module(tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder = Flat()
    options = {**OPTIONS, "method": Halved, "model": encoder, "settings": {**SMALL, "method.factor": 0.25}}
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(**THREE, **options))


SCRIPT = """
import fedetf

class Mine(fedetf.Method):
    def loss(self, client, batch):
        return 2 * super().loss(client, batch)

print("once")
result = fedetf.run(method=Mine, clients=2, rounds=1, epochs=1, engine="processes", workers=2,
                    settings={"data.limit": 100})
print(result.general > 0)
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard_and_its_classes_reach_the_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("once\nTrue\n", "")


def test_a_method_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "halved_loss.py").write_text(
        "from fedetf import Method\n"
        "def half(x): return x / 2\n"
        "class Mine(Method):\n"
        "    def loss(self, client, batch): return half(super().loss(client, batch))\n"
    )
    options = {**OPTIONS, "method": f"{tmp_path}/halved_loss.py:Mine", "settings": SMALL}
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(**THREE, **options))


# --- errors and warnings in workers -----------------------------------------------------------------------------------


class Fails(fedetf.Method):
    def local(self, client):
        if client.id == 2 and client.round == 2:
            raise ValueError("boom")
        super().local(client)


@pytest.mark.parametrize("engine", [{"engine": "serial"}, THREE])
def test_an_error_in_a_method_names_client_and_round_once(engine: dict) -> None:
    with pytest.raises(
        StepError, match=r"^client 2, round 2: ValueError: boom \(.*test_engines.py, line \d+\)$"
    ) as caught:
        fedetf.run(method=Fails, **{**OPTIONS, "participation": 1.0}, **engine, settings=SMALL)
    assert "boom" in str(caught.value.__cause__)


def test_the_command_line_shows_the_traceback_and_one_error_line(tmp_path: Path, capsys) -> None:
    from fedetf.cli import main

    (tmp_path / "fails.py").write_text(
        "from fedetf import Method\nclass Mine(Method):\n    def local(self, client): raise ValueError('boom')\n"
    )
    flags = f"run --method {tmp_path}/fails.py:Mine --rounds 1 --clients 2 --engine processes --workers 2"
    assert main([*flags.split(), "--out", str(tmp_path / "run"), "--set", "data.limit=50"]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: client ")
    assert error.splitlines()[-1].endswith(f", round 1: ValueError: boom ({tmp_path}/fails.py, line 3)")
    assert "StepError" not in error
    assert "def local" in error
    assert error.count("error: ") == 1


class Warns(fedetf.Method):
    def local(self, client):
        if client.id == 1:
            warnings.warn("take care", stacklevel=1)
        super().local(client)


def test_warnings_of_workers_reach_the_user() -> None:
    with pytest.warns(UserWarning, match="take care"):
        fedetf.run(method=Warns, **{**OPTIONS, "participation": 1.0}, **THREE, settings=SMALL)


# --- workers that die -------------------------------------------------------------------------------------------------


class DiesOnce(fedetf.Method):
    mark: str = ""

    def local(self, client):
        if client.id == 1 and self.mark and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().local(client)


class DiesAlways(fedetf.Method):
    def local(self, client):
        if client.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_replaced_and_its_client_trained_again(tmp_path: Path) -> None:
    options = {**OPTIONS, "participation": 1.0, "method": DiesOnce}
    whole = fedetf.run(engine="serial", settings=SMALL, **options)
    mark = tmp_path / "died"
    assert_equal(whole, fedetf.run(**THREE, settings={**SMALL, "method.mark": str(mark)}, **options))
    assert mark.exists()


def test_a_client_that_ends_every_worker_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"client 1, round 1: its worker died 3 times without an error message"):
        fedetf.run(method=DiesAlways, **{**OPTIONS, "participation": 1.0}, **THREE, settings=SMALL)


def kill(pid: int) -> None:
    """Kill a process, unless it has ended since it was seen: one that was killed before may still have been there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def all_gone() -> None:
    """Wait until there is no worker, which takes a moment, or longer on a busy machine."""
    end = time.monotonic() + 60
    while children(fork_server().pid):
        assert time.monotonic() < end, "workers live on"
        time.sleep(0.05)


class Killer(Listener):
    """Kills a worker after the first and the third client of every round, and once, in the personal stage, a worker and
    the process that makes them. No more than that: a step may lose two workers, and one that is just being made dies
    with its maker."""

    def __init__(self) -> None:
        self.killed, self.makers_killed = 0, 0

    def client_done(self, record) -> None:
        if record.trained in (1, 3):
            self._kill_a_worker()

    def personal_done(self, personal) -> None:
        if not self.makers_killed:
            self._kill_a_worker()
            kill(fork_server().pid)
            self.makers_killed += 1

    def _kill_a_worker(self) -> None:
        kill(children(fork_server().pid)[0])
        self.killed += 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "fedetf"])
def test_workers_killed_from_outside_change_nothing(method: str) -> None:
    options = {**OPTIONS, "participation": 1.0, "rounds": 3, "method": method, "settings": SMALL}
    killer = Killer()
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(**THREE, listeners=[killer], **options))
    assert (killer.killed, killer.makers_killed) == (7, 1)


class KillIdle(Listener):
    """Kills all workers when the last client of a round is trained and none has work."""

    def client_done(self, record) -> None:
        if record.trained == len(record.participants):
            for pid in children(fork_server().pid):
                kill(pid)
            all_gone()


def test_workers_that_die_while_idle_cost_no_tries() -> None:
    options = {**OPTIONS, "participation": 1.0, "rounds": 1, "settings": SMALL}
    many = {"engine": "processes", "workers": 5}
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(**many, listeners=[KillIdle()], **options))


class TakesSome(fedetf.Method):
    def aggregate(self, server, uploads):
        super().aggregate(server, itertools.islice(uploads, server.round))


def test_a_method_that_leaves_uploads_gets_no_stale_ones_later() -> None:
    options = {**OPTIONS, "participation": 1.0, "rounds": 3, "method": TakesSome, "settings": SMALL}
    assert_equal(fedetf.run(engine="serial", **options), fedetf.run(**THREE, **options))


def test_workers_end_with_the_run() -> None:
    fedetf.run(**OPTIONS, **THREE, settings=SMALL)
    all_gone()


# --- the order of work ------------------------------------------------------------------------------------------------


class Crew:
    """Two workers in virtual time: a step takes as long as it costs. One dies of some steps, a few times."""

    def __init__(self, deadly: int = -1, deaths: int = 1):
        self.now, self.busy, self.begun, self.deadly, self.deaths = 0, [], [], deadly, deaths

    def has_room(self) -> bool:
        return len(self.busy) < 2

    def give(self, place: int, steps: Sequence[Step]) -> None:
        self.begun.append(place)
        self.busy.append((self.now + sum(step.cost for step in steps), place, [step.client for step in steps]))

    def take(self):
        self.now, place, clients = done = min(self.busy)
        self.busy.remove(done)
        if self.deadly in clients and self.deaths:
            self.deaths -= 1
            return place, None
        return place, clients


def steps(costs: list[int]) -> list[Step]:
    return [Step("train", cost, client=i) for i, cost in enumerate(costs)]


def test_results_come_in_order_and_the_longest_goes_first() -> None:
    crew = Crew()
    ticks: list[int] = []
    assert list(in_order(crew, steps([1, 5, 2, 9, 3]), 10, lambda: ticks.append(1))) == [0, 1, 2, 3, 4]
    assert crew.begun == [3, 1, 4, 2, 0]
    assert crew.now == 10  # 9 + 1 beside 5 + 3 + 2; first come, first served would take 12
    assert len(ticks) == 5


def test_few_results_wait_for_their_turn() -> None:
    costs = np.random.default_rng(0).integers(1, 100, 500).tolist()
    crew, ahead = Crew(), 8
    for turn, _ in enumerate(in_order(crew, steps(costs), ahead, bool)):
        assert max(crew.begun) < turn + 2 * ahead
    assert sorted(crew.begun) == list(range(500))


def test_a_step_whose_worker_died_is_done_again() -> None:
    crew = Crew(deadly=1)
    assert list(in_order(crew, steps([4, 3, 2]), 10, bool)) == [0, 1, 2]
    assert crew.begun.count(1) == 2


def test_small_steps_travel_together_and_large_ones_alone() -> None:
    costs = [2] * 50 + [ENOUGH + 1] * 3 + [2] * 7
    crew, ticks = Crew(), []
    done = list(in_order(crew, steps(costs), 1000, lambda: ticks.append(1), together=16))
    assert done == list(range(60))
    assert len(ticks) == 60
    assert sorted(crew.begun) == [0, 16, 32, 48, 50, 51, 52, 53]


def test_no_more_travels_together_than_may_be_begun() -> None:
    crew = Crew()
    for turn, _ in enumerate(in_order(crew, steps([1] * 100), 8, bool, together=16)):
        assert max(crew.begun) < turn + 16


def test_of_steps_that_travelled_together_the_one_that_ends_workers_is_found() -> None:
    crew = Crew(deadly=5, deaths=2)
    assert list(in_order(crew, steps([1] * 10), 100, bool, together=10)) == list(range(10))
    assert crew.begun.count(5) == 2
    with pytest.raises(RunError, match="client 5, round 0: its worker died 3 times"):
        list(in_order(Crew(deadly=5, deaths=3), steps([1] * 10), 100, bool, together=10))


# --- what lies between processes --------------------------------------------------------------------------------------


def test_messages() -> None:
    state = {"a.b": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3), "beta": torch.tensor(0.1)}
    steps = [Step("train", 7, client=client, round=2) for client in (3, 4)]
    assert unpack_steps(bytearray(bytes(pack_steps(steps, [{}, {}], 5)))) == (steps, [{}, {}], 5)
    sent = [Trained(Upload(3, 10, state, float("nan"), 20), {"g": torch.ones(2)}), Personal(1, None, [0.5], 2.0, state)]
    message = pack_results([*sent, {"correct": torch.tensor(17)}, {}], [])
    assert message.size == len(bytes(message))
    trained, personal, evaluated, nothing = unpack_results(bytearray(bytes(message)))
    assert isinstance(trained, Trained)
    assert (trained.upload.client, trained.upload.samples, trained.upload.images) == (3, 10, 20)
    assert np.isnan(trained.upload.loss)
    assert all(torch.equal(trained.upload.state[name], tensor) for name, tensor in state.items())
    assert torch.equal(trained.private["g"], torch.ones(2))
    assert isinstance(personal, Personal)
    assert (personal.client, personal.accuracy, personal.curve, personal.epochs) == (1, None, [0.5], 2.0)
    assert torch.equal(personal.state["a.b"], state["a.b"])
    assert evaluated == {"correct": torch.tensor(17)}
    assert nothing == {}
    with pytest.raises(UserError, match="so not"):
        unpack_results(bytearray(bytes(pack_error(UserError("so not"), ""))))


def test_a_message_holds_tensors_of_every_type_and_shape_and_writes_itself_into_memory() -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    state = {str(kind): torch.tensor([[1, 0, 1]]).to(kind) for kind in kinds}
    state |= {"empty": torch.zeros(0, 5), "": torch.zeros((2, 1, 3), dtype=torch.int32), "é": torch.tensor(True)}
    message = Message({"numbers": [1, None]}, [state, {}, state])
    memory = bytearray(message.size + 100)
    message.write_to(memoryview(memory))
    about, (first, none, second) = read(memory)
    assert about == {"numbers": [1, None]}
    assert none == {}
    for found in (first, second):
        assert list(found) == list(state)
        for name, tensor in state.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found[name], tensor)
            assert found[name].data_ptr() % tensor.element_size() == 0  # where torch can read it


def test_shared_memory_holds_arrays_without_a_copy() -> None:
    samples = fedetf.data.Samples(
        torch.arange(48, dtype=torch.uint8).reshape(2, 2, 4, 3).permute(0, 3, 1, 2), torch.ones(2)
    )
    memory = store([b"first", *flatten(samples)])
    first, *parts = stored(memory)
    again = restore(parts)
    assert bytes(first) == b"first"
    assert torch.equal(again.x, samples.x)
    assert again.x.stride() == samples.x.stride()
    offset = len(memory.bytes) - samples.y.nbytes
    memory.bytes[offset : offset + 4] = np.float32(7).tobytes()
    assert again.y.tolist() == [7, 1]  # the very bytes
    memory.close()


def test_private_states_live_in_files_and_go_with_their_owner() -> None:
    states = PrivateStates()
    states.keep(3, 1, {"v": torch.ones(2)})
    states.keep(3, 4, {"v": torch.full((2,), 4.0)})
    states.keep(5, 4, {})
    assert states.load(3)["v"].tolist() == [4, 4]
    assert states.load(5) == states.load(9) == {}
    states.sync()
    assert [path.name for path in states.folder.iterdir()] == ["kept-00004-0.safetensors"]
    folder = states.folder
    del states
    assert not folder.exists()


def test_no_pickle_is_read_from_files() -> None:
    sources = Path(fedetf.__file__).parent.rglob("*.py")
    users = {path.name for path in sources if re.search(r"pickle\.load|torch\.load\(", path.read_text("utf-8"))}
    assert users == {"memory.py"}  # between a process and its own workers


def test_a_fork_server_that_is_just_dying_is_replaced() -> None:
    """Its socket is closed a moment before it can be seen to be dead; the next call must not get it again."""
    for _ in range(5):
        os.kill(fork_server().pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            fork_server().fork([0]).close()
        fork_server().fork([0]).close()
