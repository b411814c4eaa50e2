"""The queue of machine hours behind docs/results.md.

    python benchmarks/evidence.py run     go through the list, all cores, at the lowest priority (--nice)
    python benchmarks/evidence.py status  what is done, and how long the rest takes
    python benchmarks/evidence.py keep    copy the small files of every run to benchmarks/results, and of an
                                          unfinished one what it goes on from, on another machine if need be

The list (benchmarks/evidence.txt) has one ``fedetf reproduce`` or ``fedetf compare`` command a line. What is done is
not run again, so a queue that was killed, at whatever moment, goes on with the same call. It pauses while
``fedetf bench`` measures. Run it from a checkout that nobody edits meanwhile.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedetf.bench import LOCK
from fedetf.cli import build_parser
from fedetf.cli.flags import given_settings
from fedetf.cli.reproduce import chosen_part
from fedetf.comparison.plan import PlannedRun
from fedetf.comparison.run import plan_all
from fedetf.files import MIB, write_whole
from fedetf.paper.experiment import load_experiment
from fedetf.paper.experiment import plan as plan_experiment
from fedetf.runs.folder import needed_to_go_on
from fedetf.runs.read import is_done, read_holdings, rounds_so_far
from fedetf.runs.records import CONFIG, PARTITION, RESULT, ROUNDS

HERE = Path(__file__).resolve().parent
KEPT = (CONFIG, ROUNDS, RESULT)  # the last last: it says that a run is whole
# and of partition.json who holds how many of a class
UNFINISHED = "unfinished"  # the folder of what a run goes on from, for as long as it is not finished
MOST = 20 * MIB  # that is kept of one
PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent dies


@dataclass(frozen=True)
class Command:
    """One line of the list."""

    words: list[str]
    runs: list[PlannedRun]  # its runs, with folders relative to the queue's own

    @property
    def text(self) -> str:
        """As one types it."""
        return shlex.join(self.words)

    def done(self, out: Path) -> int:
        """How many of its runs are there."""
        return sum(is_done(out / run.folder) for run in self.runs)

    def seconds_left(self, out: Path) -> float | None:
        """At the pace of the rounds that it has done; None if there are none."""
        rounds = [rounds_so_far(out / run.folder) for run in self.runs]
        paces = [line.seconds for lines in rounds for line in lines]
        total = sum(run.settings.train.rounds for run in self.runs)
        return statistics.mean(paces) * (total - len(paces)) if paces else None


def read_commands(path: Path) -> list[Command]:
    """The list, each command checked and planned before the first is run."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [Command(words, list(planned(words))) for words in map(shlex.split, filter(None, lines))]


def planned(words: list[str]) -> Iterator[PlannedRun]:
    """The runs of a command."""
    options = build_parser().parse_args(words[1:])
    if options.out is None:
        raise SystemExit(f"error: give every command of the list an --out, which is below the queue's folder: {words}")
    if words[1] == "reproduce":
        part = chosen_part(options)
        trials = plan_experiment(
            load_experiment(options.name), options.scale, part, given_settings(options), options.out
        )
        yield from {trial.run.folder: trial.run for trial in trials}.values()
    elif words[1] == "compare":
        seeds = options.seeds if isinstance(options.seeds, list) else [options.seeds]
        settings, equal, references = given_settings(options), options.equal_budget, not options.no_references
        yield from plan_all(
            options.methods, seeds, options.source, settings, equal, options.out, references=references
        )[1]
    else:
        raise SystemExit(f"error: the list takes fedetf reproduce and fedetf compare, not: {shlex.join(words)}")


# --- the three commands -----------------------------------------------------------------------------------------------


def run(commands: list[Command], out: Path, results: Path, nice: int) -> int:
    """Run what is missing, in order; a command that fails is tried again by the next call."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(out / ".queue.lock").acquire(timeout=0)
    except Timeout:
        print(f"error: a queue is running in {out} already", file=sys.stderr)
        return 2
    failed = 0
    with lock:
        os.nice(nice)
        restore(commands, out, results)
        for number, command in enumerate(commands, start=1):
            if command.done(out) == len(command.runs):
                continue
            print(f"{time.strftime('%F %T')} {number} of {len(commands)}: {command.text}", flush=True)
            status = attend(command, out, nice)
            print(f"{time.strftime('%F %T')} status {status}: {describe(command, out)}", flush=True)
            failed += status != 0
    return 1 if failed else 0


def attend(command: Command, out: Path, nice: int) -> int:
    """Run one command in the queue's folder, behind all else; stop it while a benchmark measures."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}  # this checkout's own, whatever is installed
    if "FEDETF_DATA" in os.environ:
        environment["FEDETF_DATA"] = str(Path(os.environ["FEDETF_DATA"]).resolve())
    words = [sys.executable, "-m", *command.words]
    with (out / "queue.log").open("a", encoding="utf-8") as log:
        child = subprocess.Popen(
            words,
            cwd=out,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        paused = False
        while child.poll() is None:
            stand_back(child.pid, nice)
            measuring = benchmark_runs()
            if measuring != paused:
                tell(child.pid, signal.SIGSTOP if measuring else signal.SIGCONT)
                paused = measuring
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1)
    return child.returncode


def stand_back(pid: int, nice: int) -> None:
    """Let a command and its workers wait for others: between sessions, Linux may look at this niceness only."""
    for leader in leaders(pid):
        with contextlib.suppress(OSError):  # it has ended, or there are no such groups
            Path(f"/proc/{leader}/autogroup").write_text(str(nice))


def tell(pid: int, number: int) -> None:
    """Send a signal to a command and to its workers."""
    for leader in leaders(pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, number)


def leaders(pid: int) -> list[int]:
    """A command and what forks its workers: each leads a session, and so a process group, of its own."""
    started = Path(f"/proc/{pid}/task/{pid}/children")
    with contextlib.suppress(OSError):
        return [*map(int, started.read_text().split()), pid]
    return [pid]


def die_with_parent() -> None:
    """Let nothing go on behind the back of the next queue; workers end with the command that started them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def benchmark_runs() -> bool:
    """Whether a benchmark measures on this machine."""
    try:
        with FileLock(LOCK, timeout=0):
            return False
    except Timeout:
        return True


def describe(command: Command, out: Path) -> str:
    """How far a command is."""
    done, left = command.done(out), command.seconds_left(out)
    rest = "" if done == len(command.runs) else "; not begun" if left is None else f"; about {left / 3600:.1f} h left"
    return f"{done} of {len(command.runs)} runs{rest}"


def status(commands: list[Command], out: Path) -> int:
    """Print how far each command is."""
    for command in commands:
        print(f"{describe(command, out):38} {command.text}")
    known = [left for command in commands if (left := command.seconds_left(out)) is not None]
    print(f"\n{sum(known) / 3600:.1f} h left of the commands that have begun")
    return 0


def keep(commands: list[Command], out: Path, results: Path) -> int:
    """Copy what the documentation is made from, also of runs that are not finished."""
    for run in (run for command in commands for run in command.runs):
        source, target = out / run.folder, results / run.folder
        if not (source / PARTITION).is_file():
            continue
        counts = [client.counts for client in read_holdings(source).clients]
        write_whole(target_file(target, "counts.json"), (json.dumps(counts) + "\n").encode())
        for name in KEPT:
            if (source / name).is_file():
                write_whole(target / name, (source / name).read_bytes())
        if is_done(source):
            shutil.rmtree(target / UNFINISHED, ignore_errors=True)
        else:
            keep_unfinished(source, target / UNFINISHED)
    return 0


def keep_unfinished(source: Path, target: Path) -> None:
    """Copy what a run goes on from, unless it is large; what was kept of it before is replaced as a whole."""
    try:
        files = {path.relative_to(source): path.read_bytes() for path in needed_to_go_on(source)}
    except FileNotFoundError:  # the run went on meanwhile; the next call keeps it
        return
    size = sum(map(len, files.values()))
    if size > MOST:
        print(f"{source} needs {size / MIB:.0f} MiB to go on: not kept")
        return
    new = target.with_suffix(".part")
    shutil.rmtree(new, ignore_errors=True)
    for name, content in files.items():
        write_whole(target_file(new / name.parent, name.name), content)
    if files:
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)


def target_file(folder: Path, name: str) -> Path:
    """A file's path in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def restore(commands: list[Command], out: Path, results: Path) -> None:
    """Put back what was kept, so that a new machine runs nothing again and goes on with what was not finished."""
    new = out / ".part"  # a folder of a run is there as a whole, or not at all
    for run in (run for command in commands for run in command.runs):
        source, target = results / run.folder, out / run.folder
        shutil.rmtree(new, ignore_errors=True)
        if target.exists() or not (is_done(source) or (source / UNFINISHED).is_dir()):
            continue
        if not is_done(source):
            shutil.copytree(source / UNFINISHED, new)
        for name in KEPT:
            if (source / name).is_file():
                write_whole(target_file(new, name), (source / name).read_bytes())
        new.rename(target_file(target.parent, target.name))


def main() -> int:
    """Parse, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "status", "keep"])
    parser.add_argument("--list", metavar="FILE", type=Path, default=HERE / "evidence.txt", help="the commands")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("runs/evidence"), help="where the runs go")
    kept = HERE / "results"
    parser.add_argument("--results", metavar="DIR", type=Path, default=kept, help="where small files of runs are kept")
    parser.add_argument("--nice", metavar="N", type=int, default=19, help="how far it stands back; 19: behind all else")
    options = parser.parse_args()
    commands = read_commands(options.list)
    if options.what == "status":
        return status(commands, options.out)
    if options.what == "keep":
        return keep(commands, options.out, options.results)
    return run(commands, options.out, options.results, options.nice)


if __name__ == "__main__":
    sys.exit(main())
