"""The tests' own machinery: a test that hangs fails, a worker that dies ends the run, and neither stands still."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
OTHERS = "".join(f"def test_{k}(): time.sleep(0.05)\n" for k in range(8))
DIES = "@pytest.mark.xdist_group('one')\ndef test_dies(): time.sleep({after}); os._exit(1)\n"
AFTER = "".join(f"@pytest.mark.xdist_group('one')\ndef test_after_{k}(): pass\n" for k in range(3))

pytestmark = pytest.mark.slow


def run_pytest(folder: Path, tests: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A run of other tests, with the options of this project."""
    (folder / "test_them.py").write_text(f"import os, subprocess, time, pytest\n{tests}")
    command = [sys.executable, "-m", "pytest", "-c", str(PROJECT), "--rootdir", ".", "-p", "no:cacheprovider", *flags]
    return subprocess.run([*command, "test_them.py"], cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    "tests",
    [OTHERS + DIES.format(after=0) + AFTER, DIES.format(after=0) + AFTER + OTHERS, OTHERS + DIES.format(after=3)],
    ids=["between others", "first", "when all others are done"],
)
def test_a_worker_that_dies_ends_the_run(tmp_path: Path, tests: str) -> None:
    done = run_pytest(tmp_path, tests, "--numprocesses", "2", "--dist", "loadgroup")
    assert done.returncode != 0
    assert "crashed while running 'test_them.py::test_dies" in done.stdout


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    hangs = "def test_hangs(): subprocess.run(['sleep', '600'])\n"
    done = run_pytest(tmp_path, OTHERS + hangs, "-n2", "--dist", "loadgroup", "-o", "timeout=2")
    assert done.returncode == 1
    assert "Timeout (>2.0s) from pytest-timeout" in done.stdout
    assert "1 failed, 8 passed" in done.stdout


def test_tests_of_a_group_run_in_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these builds the fixture anew in every worker; its file is there once for each time."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    tests = """
@pytest.fixture(scope="module")
def expensive(): open(f"built-{os.getpid()}", "x").close()

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("k", range(9))
def test_them(expensive, k): time.sleep(0.05)
"""
    done = run_pytest(tmp_path, OTHERS + tests, "-n3", "--dist", "loadgroup", "-p", "groups")
    assert "17 passed" in done.stdout
    assert len(list(tmp_path.glob("built-*"))) == 1


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
