"""A signal ends a command with status 130 and a line on how to go on, wherever it finds the command."""

import signal
from pathlib import Path

import pytest

from fedetf.cli import main

OWN = """
import signal
import fedetf

class Unlucky(fedetf.Method):
    name = "unlucky"

    def aggregate(self, server, uploads):
        super().aggregate(server, uploads)
        if server.round == 2:
            {meets}

class Dropped:  # Python prints an exception in __del__ and goes on
    def __del__(self):
        signal.raise_signal(signal.{signal})

def another_error():
    try:
        signal.raise_signal(signal.{signal})
    except KeyboardInterrupt:
        raise OSError("a file was closed twice") from None
"""


@pytest.fixture(autouse=True)
def handlers():
    """The command takes signals for itself; what comes after it shall not."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("meets", ["Dropped()", "another_error()"])
def test_neither_dropped_nor_taken_for_an_error(
    meets: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN.format(meets=meets, signal=number))
    out = tmp_path / "run"
    flags = ["--clients", "2", "--rounds", "9", "--epochs", "1", "--engine", "serial", "--set", "data.limit=60"]
    assert main(["run", "--method", f"{tmp_path}/own.py:Unlucky", *flags, "--out", str(out)]) == 130
    expected = f"interrupted; what was done is saved; go on with: fedetf resume {out}"
    assert capsys.readouterr().err.splitlines()[-1] == expected
    assert len((out / "rounds.jsonl").read_text().splitlines()) < 3  # not nine
    # The next command of the same process was not interrupted.
    assert main(["run", *flags, "--out", str(tmp_path / "next")]) == 0
