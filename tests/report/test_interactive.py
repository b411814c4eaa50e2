"""What people see when they call fedetf from Python: progress where somebody looks, silence elsewhere, Ctrl-C."""

import inspect
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedetf
from fedetf import api
from fedetf.comparison.run import compare
from fedetf.federation import Listener
from fedetf.report.interactive import NotebookProgress

SMALL = {"clients": 3, "rounds": 2, "epochs": 1, "model": "mlp", "engine": "serial", "settings": {"data.limit": 100}}
CALL = (
    "import sys, fedetf\n"
    "print('before')\n"
    "result = fedetf.run(clients=3, rounds={rounds}, epochs=1, model='mlp', engine='serial', out=sys.argv[1],"
    " settings={{'data.limit': 100, 'personal.rounds': 1}})\n"
    "print('after')\n"
)


def on_a_terminal(code: str, out: Path, look: Callable[[str, int], None] = lambda shown, pid: None) -> tuple[str, str]:
    """Run Python with standard error on a terminal: (standard output, what the terminal showed).

    ``look`` is called now and then with what was shown so far and the process.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, str(out)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown, ends = "", time.monotonic() + 120
        while time.monotonic() < ends:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    shown += os.read(ours, 65536).decode()
                except OSError:  # the other end is closed: the program has ended
                    break
            look(shown, process.pid)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(ours)
    return printed, shown


@pytest.mark.slow
def test_a_terminal_shows_what_happens_from_the_beginning(tmp_path: Path) -> None:
    printed, shown = on_a_terminal(CALL.format(rounds=2), tmp_path / "run")
    assert printed == "before\nafter\n"
    assert shown.index("loading data") < shown.index("rounds") < shown.index("personal models")
    assert "2/2" in shown


@pytest.mark.slow
def test_an_interrupted_call_says_how_to_go_on(tmp_path: Path) -> None:
    sent = []

    def interrupt(shown: str, pid: int) -> None:
        if not sent and re.search(r"loss \d", shown):
            sent.append(pid)
            os.kill(pid, signal.SIGINT)

    out = tmp_path / "run"
    printed, shown = on_a_terminal(CALL.format(rounds=9999), out, interrupt)
    assert printed == "before\n"
    assert shown.strip().splitlines()[-1] == (
        f"KeyboardInterrupt: what was done is saved; go on with: fedetf.resume({str(out)!r})"
    )


def test_elsewhere_not_a_word(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = fedetf.run(method="fedavg", **SMALL)
    fedetf.compare(["fedavg"], [7], out=tmp_path / "grid", **SMALL)
    assert result.rounds
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("rich.console.Console.is_jupyter", True, raising=False)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    fedetf.run(method="fedavg", **SMALL)
    first, *lines = stream.getvalue().split("\r")
    assert first == ""
    assert lines[0] == "loading data"
    assert lines[1].startswith("round 1/2  loss")
    assert lines[-1] == f"{'personal models 3/3'.ljust(len(lines[-2].rstrip()))}\n"
    assert stream.getvalue().count("\n") == 1


def test_own_listeners_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr("fedetf.report.interactive._for_people", lambda: shown.append("shown") or [])
    fedetf.run(method="fedavg", listeners=[], **SMALL)
    assert shown == []
    fedetf.run(method="fedavg", **SMALL)
    assert shown == ["shown"]


class Interrupt(Listener):
    def round_done(self, record: object, server: object) -> None:
        raise KeyboardInterrupt


def test_what_is_said_fits_the_call(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="nothing was saved; with out="):
        fedetf.run(method="fedavg", listeners=[Interrupt()], **SMALL)
    x, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    own = {"data": [(x, y), (x, y)], "out": tmp_path / "own", "listeners": [Interrupt()]}
    with pytest.raises(KeyboardInterrupt) as caught:
        fedetf.run(method="fedavg", rounds=2, epochs=1, model="mlp", engine="serial", **own)
    assert str(caught.value).endswith(f"fedetf.resume({str(tmp_path / 'own')!r}, data=...)")
    with pytest.raises(KeyboardInterrupt) as caught:
        fedetf.resume(tmp_path / "own", data=own["data"], listeners=[Interrupt()])
    assert str(caught.value).endswith(f"fedetf.resume({str(tmp_path / 'own')!r}, data=...)")
    assert fedetf.resume(tmp_path / "own", data=own["data"]).general is not None


def test_signatures_and_help_are_those_of_the_functions() -> None:
    for shown, work in ((fedetf.run, api.run), (fedetf.resume, api.resume), (fedetf.compare, compare)):
        assert inspect.signature(shown) == inspect.signature(work)
        assert shown.__doc__ == work.__doc__


def test_a_line_that_is_written_over_leaves_nothing_behind() -> None:
    stream = io.StringIO()
    progress = NotebookProgress(stream)
    progress._say("x")
    assert stream.getvalue() == "\rloading data\rx           "


@pytest.mark.slow
def test_a_run_does_not_wait_for_what_it_does_not_need() -> None:
    """The tests of statistics take seconds to import on a slow machine, and belong to comparisons."""
    code = (
        "import fedetf, sys\nfedetf.run\nassert not {'scipy.stats', 'pandas', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
