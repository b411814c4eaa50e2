"""The queue of machine hours: killed at any moment it goes on; it pauses for benchmarks; it keeps what is needed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock
from fuzz import fingerprint
from processes import in_child

from fedetf import compare
from fedetf.bench import LOCK
from fedetf.core.state import load_state

SCRIPT = Path(__file__).parent.parent / "benchmarks/evidence.py"
LIST = """# a comment
fedetf reproduce table5 --methods fedavg --seeds 8,9 --engine serial --out smoke   # two of its runs are the next line's
fedetf reproduce table1 --methods fedavg,ditto --columns "CIFAR-10, α = 0.1" --seeds 8 --engine serial --out smoke

fedetf compare --no-references --methods fedprox --seeds 7,8 --clients 3 --rounds 3 --epochs 1 --set data.limit=200 \
  --out compared
"""

# FedDyn keeps something with every client.
ONE = (
    "fedetf compare --no-references --methods feddyn --seeds 7 --clients 3 --rounds 8 --epochs 1 "
    "--set data.limit=200 --out one"
)

LONG = (
    "fedetf compare --no-references --methods fedavg --seeds 7 --rounds 1000 --engine processes --workers 2 --out long"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
in_one_worker = pytest.mark.xdist_group("evidence")  # so that the whole queue runs once


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def first_child(pid: int) -> int:
    """The first process that a process starts, as soon as it does."""
    started = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(lambda: bool(started.read_text().split()))
    return int(started.read_text().split()[0])


def arguments(what: str, home: Path, commands: str = LIST, kept: Path | None = None) -> list[str]:
    """Of the queue's command line, with a list of its own."""
    home.mkdir(exist_ok=True)
    (home / "list.txt").write_text(commands, "utf-8")
    places = {"--list": home / "list.txt", "--out": home / "runs", "--results": kept or home / "kept"}
    return [what, "--nice", "0", *(str(word) for pair in places.items() for word in pair)]


def queue(home: Path, commands: str = LIST) -> subprocess.Popen:
    """The queue as one calls it."""
    command = [sys.executable, str(SCRIPT), *arguments("run", home, commands)]
    alone = {**os.environ, "TMPDIR": str(home)}  # another benchmark of this machine is none of its business
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=alone)


def script() -> ModuleType:
    """The queue as a module."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import evidence
    finally:
        sys.path.pop(0)
    return evidence


def call(*given: str) -> None:
    """The queue in this process."""
    evidence, home = script(), Path(given[given.index("--list") + 1]).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "LOCK", home / LOCK.name)
        patch.setattr(sys, "argv", [str(SCRIPT), *given])
        assert evidence.main() == 0


def in_fork(*given: str, then: Callable[[int], object] = bool) -> int:
    """The queue in a fork of this process, which has imported all it needs; the status it ends with."""
    return in_child(lambda: call(*given), then)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def results(home: Path) -> dict[str, object]:
    """The models to the bit, and the accuracies."""
    found: dict[str, object] = {}
    for path in sorted(home.glob("runs/**/result.json")):
        name = str(path.parent.relative_to(home))
        result = json.loads(path.read_text("utf-8"))
        found[name] = {key: result[key] for key in ("general", "general_last5", "personal_per_client", "bytes_up")}
        state = load_state(path.parent / "model.safetensors")
        found[f"{name} model"] = {key: tensor.numpy().tobytes() for key, tensor in state.items()}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("evidence") / "whole"
    assert in_fork(*arguments("run", home)) == 0
    return home


@in_one_worker
def test_killed_ten_times_it_comes_to_the_same(whole: Path, tmp_path: Path) -> None:
    rng, home = random.Random(19), tmp_path / "broken"

    def kill_soon(pid: int) -> None:
        time.sleep(rng.uniform(0.2, 5))
        kill(pid)

    for _ in range(10):
        assert in_fork(*arguments("run", home), then=kill_soon) in (0, signal.SIGKILL)
    assert in_fork(*arguments("run", home)) == 0
    assert len(results(whole)) == 2 * 7
    assert results(home) == results(whole)


def test_its_command_ends_with_it(tmp_path: Path) -> None:
    process = queue(tmp_path / "home")
    if not Path("/proc/self/stat").exists():
        process.kill()
        process.wait()
        pytest.skip("children are found in /proc")
    child = first_child(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists())


@in_one_worker
def test_what_is_done_and_what_is_left(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(*arguments("status", whole))
    said = capsys.readouterr().out
    assert [line.split(";")[0].split("  ")[0] for line in said.splitlines()[:3]] == [
        "4 of 4 runs",
        "2 of 2 runs",
        "2 of 2 runs",
    ]
    before = fingerprint(whole / "runs")
    call(*arguments("run", whole))
    assert capsys.readouterr().out == ""  # there is nothing to do
    assert fingerprint(whole / "runs").keys() == before.keys()


def test_a_benchmark_stops_it_meanwhile(tmp_path: Path) -> None:
    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    process = queue(tmp_path / "home", LONG)
    if not Path("/proc/self/stat").exists():
        process.kill()
        process.wait()
        pytest.skip("the state of a process is found in /proc")
    child = first_child(process.pid)
    server = first_child(child)
    with FileLock(tmp_path / "home" / LOCK.name):
        wait_for(lambda: state(child) == state(server) == "T")
    wait_for(lambda: "T" not in state(child) + state(server))
    process.kill()
    process.wait()


@in_one_worker
def test_small_files_are_kept_and_spare_a_new_machine_the_work(whole: Path, tmp_path: Path) -> None:
    evidence = script()
    commands = evidence.read_commands(whole / "list.txt")
    kept, new = tmp_path / "results", tmp_path / "new"
    evidence.keep(commands, whole / "runs", kept)
    folders = sorted(path.parent for path in kept.rglob("result.json"))
    assert len(folders) == 7
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [
            "config.toml",
            "counts.json",
            "result.json",
            "rounds.jsonl",
        ]
        (run,) = [run for command in commands for run in command.runs if kept / run.folder == folder][:1]
        counts = json.loads((folder / "counts.json").read_text())
        assert len(counts) == run.settings.data.clients
    evidence.restore(commands, new, kept)
    assert all(command.done(new) == len(command.runs) for command in commands)


def test_a_run_that_is_not_finished_goes_on_elsewhere_to_the_same_bits(tmp_path: Path) -> None:
    kept, first, second, whole = (tmp_path / name for name in ("kept", "first", "second", "whole"))
    begun = first / "runs/one/feddyn-s7"

    def kill_after_two_rounds(pid: int) -> None:
        wait_for(lambda: (begun / "checkpoints/round-00002.safetensors").exists())
        kill(pid)

    assert in_fork(*arguments("run", first, ONE, kept), then=kill_after_two_rounds) == signal.SIGKILL
    commands = script().read_commands(first / "list.txt")
    script().keep(commands, first / "runs", kept)
    assert not (kept / "one/feddyn-s7/result.json").exists()
    files = sorted(str(path.relative_to(kept)) for path in kept.glob("one/feddyn-s7/unfinished/**/*") if path.is_file())
    at = re.fullmatch(r".*/checkpoints/round-(\d+)\.safetensors", files[0])
    assert at is not None, files
    assert files[1:] == [f"one/feddyn-s7/unfinished/clients/kept-{at[1]}-0.safetensors"]  # of all three clients

    assert in_fork(*arguments("run", second, ONE, kept)) == 0
    few = {"data.limit": 200, "engine.name": "serial"}
    compare(["feddyn"], [7], references=False, clients=3, rounds=8, epochs=1, settings=few, out=whole / "runs/one")
    assert len(results(whole)) == 2
    assert results(second) == results(whole)
    done = int(at[1])  # rounds that were not run again: they took the same seconds, to the last digit
    assert seconds(second / "runs/one/feddyn-s7")[:done] == seconds(begun)[:done]
    assert seconds(second / "runs/one/feddyn-s7")[done:] != seconds(begun)[done:]

    script().keep(commands, second / "runs", kept)
    assert (kept / "one/feddyn-s7/result.json").exists()
    assert not list(kept.rglob("*.safetensors"))


def seconds(folder: Path) -> list[float]:
    """What each round of a run took."""
    return [json.loads(line)["seconds"] for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_what_is_large_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = script()
    compare(["fedavg"], [7], references=False, clients=3, rounds=2, epochs=1, out=tmp_path / "runs/one")
    run = tmp_path / "runs/one/fedavg-s7"
    (run / "result.json").unlink()
    (size,) = [path.stat().st_size for path in run.glob("checkpoints/round-00002.*")]
    for most, there in ((size - 1, False), (size, True)):
        monkeypatch.setattr(evidence, "MOST", most)
        evidence.keep_unfinished(run, tmp_path / "kept/unfinished")
        assert ("not kept" in capsys.readouterr().out) is not there
        kept = [path.name for path in (tmp_path / "kept").rglob("*.safetensors")]
        assert kept == (["round-00002.safetensors"] if there else [])
