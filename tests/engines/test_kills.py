"""SIGKILL at random moments to the main process, its workers and what makes them: the same bits in the end.

FEDETF_KILLS says how many kills there are; an ordinary run of the tests makes do with a few.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from processes import Forked, children
from same import assert_same_run

from fedetf.cli import main

KILLS = int(os.environ.get("FEDETF_KILLS", "9"))
METHODS = ("feddyn", "ditto", "fedetf")  # private state of two kinds, and a long personal stage
FLAGS = [
    "--clients",
    "4",
    "--rounds",
    "4",
    "--epochs",
    "3",
    "--alpha",
    "0.3",
    "--engine",
    "processes",
    "--workers",
    "2",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(max(900, 60 * KILLS))]


def victim(main: int, who: str, rng: random.Random) -> int | None:
    """The main process, what forks its workers, or one of these; None if there is none yet."""
    servers = children(main)
    workers = [worker for server in servers for worker in children(server)]
    found = {"main": [main], "server": servers, "worker": workers}[who]
    return rng.choice(found) if found else None


def go_on(folder: Path, method: str) -> Forked:
    if (folder / "config.toml").is_file():
        return Forked("resume", str(folder))
    return Forked("run", "--method", method, *FLAGS, "--out", str(folder))


def killed_until_done(folder: Path, method: str, kills: int, rng: random.Random) -> int:
    """Run, with so many kills, and as often as it takes; returns how many there were."""
    process, done = go_on(folder, method), 0
    while process.poll() is None or not (folder / "result.json").is_file():
        if process.poll() is not None:
            process = go_on(folder, method)
        time.sleep(rng.uniform(0.1, 3.0))
        target = victim(process.pid, rng.choice(["main", "worker", "worker", "server"]), rng) if done < kills else None
        if target is not None and process.poll() is None:
            os.kill(target, signal.SIGKILL)
            done += 1
    process.wait()
    return done


@pytest.mark.parametrize("method", METHODS)
def test_killed_anywhere_it_ends_in_the_same_bits(tmp_path: Path, method: str) -> None:
    rng = random.Random(f"kills {method}")
    assert main(["run", "--method", method, *FLAGS, "--out", str(tmp_path / "whole")]) == 0
    wanted, done, number = -(-KILLS // len(METHODS)), 0, 0
    while done < wanted:  # a run may be over before all of them
        number += 1
        broken = tmp_path / f"broken{number}"
        done += killed_until_done(broken, method, wanted - done, rng)
        assert_same_run(tmp_path / "whole", broken)
