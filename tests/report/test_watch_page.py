"""The live page in a real browser while a real run goes on, is killed and goes on again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, Browser
from made_runs import make_run

from fedetf.report.live import LivePage
from fedetf.report.serve import POLL, serving

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.slow,
]

ROUND = "Number(document.querySelector('[data-round]')?.dataset.round ?? -1)"  # of the one run that goes on
STATE = "document.querySelector('.live').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@contextmanager
def watched(folder: Path, port: int = 0) -> Iterator[str]:
    """A live page of a folder, kept current by a thread that ends with it."""
    live, over = LivePage([folder]), threading.Event()

    def keep_current() -> None:
        while not over.wait(POLL):
            live.look()

    live.look()
    thread = threading.Thread(target=keep_current)
    with serving(live, port) as address:
        thread.start()
        try:
            yield address
        finally:
            over.set()
            thread.join()


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a group of its own, which is killed at the end."""
    command = [sys.executable, "-m", "fedetf", *words]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(browser: Browser, expression: str, fits: Callable[[Any], bool], seconds: float = 120) -> Any:
    """The value of an expression as soon as it fits."""
    deadline = time.monotonic() + seconds
    while not fits(value := browser.run(expression)):
        assert time.monotonic() < deadline, (expression, value, browser.run("document.body.innerText"))
        time.sleep(0.05)
    return value


def assert_quiet(browser: Browser) -> None:
    assert browser.seen("Runtime.exceptionThrown") == []
    assert browser.seen("Runtime.consoleAPICalled") == []
    refused = [entry["entry"]["text"] for entry in browser.seen("Log.entryAdded")]
    assert [text for text in refused if "Content Security Policy" in text] == []


def test_rounds_come_in_while_a_run_goes_on_is_killed_and_resumed(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ["--clients", "4", "--rounds", "400", "--epochs", "1", "--engine", "serial"]
    with watched(tmp_path) as address:
        browser.open(address)
        until(browser, STATE, lambda text: text == "live")
        assert "No run yet" in browser.run("document.querySelector('h1').textContent")
        delays = []
        with running("run", *small, "--out", str(run)), noted(run / "rounds.jsonl") as ends:
            for _ in range(5):
                before = until(browser, ROUND, lambda done: done > 0) if not delays else browser.run(ROUND)
                shown = until(browser, ROUND, lambda done, before=before: done > before)
                delays.append(time.monotonic() - ends[shown])
        assert "Waiting" not in browser.run("document.body.innerText")
        # The best of five, for the machine may be busy with other things: a round is there within two seconds.
        assert min(delays) < 2
        stopped = browser.run(ROUND)
        with running("resume", str(run)):
            until(browser, ROUND, lambda done: done > stopped + 2)
        assert browser.run("document.querySelectorAll('[data-chart=general] .series').length") == 1
        assert browser.run("document.querySelector('[data-chart=general] .line').getTotalLength()") > 20
        assert browser.run(STATE) == "live"
        assert_quiet(browser)


@contextmanager
def noted(rounds: Path) -> Iterator[dict[int, float]]:
    """When each round of a run that goes on was first in its file."""
    ends: dict[int, float] = {}
    over = threading.Event()

    def note() -> None:
        while not over.wait(0.02):
            done = rounds.read_text().count("\n") if rounds.exists() else 0
            ends.update({number: time.monotonic() for number in range(1, done + 1) if number not in ends})

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield ends
    finally:
        over.set()
        thread.join()


def test_what_the_reader_did_stays_when_the_page_changes(browser: Browser, tmp_path: Path) -> None:
    for method in ("fedavg", "fedetf"):
        for alpha in (0.1, 0.5):
            make_run(tmp_path / f"{method}-{alpha}", method, 7, 10, measures=["nc2", "drift"], **{"data.alpha": alpha})
    with watched(tmp_path) as address:
        browser.open(address, width=420)
        until(browser, STATE, lambda text: text == "live")
        browser.run(
            """(() => {
            document.querySelectorAll('details').forEach((fold) => { fold.open = true; });
            const chosen = { view: 'FedETF, all settings', holding: 'digits, 4 clients, alpha = 0.5, seed 7' };
            for (const [id, text] of Object.entries(chosen)) {
              const select = document.getElementById(id);
              [...select.options].find((option) => option.text === text).selected = true;
              select.dispatchEvent(new Event('change', { bubbles: true }));
            }
            [...document.querySelectorAll('#toggles button')][0].click();
            document.querySelector('#repeat .scroll').scrollLeft = 60;
            document.querySelector('#cost').scrollIntoView();
            })()"""
        )
        look = """({ open: [...document.querySelectorAll('details')].map((fold) => fold.open),
            chosen: ['view', 'holding'].map((id) => document.getElementById(id).selectedOptions[0].text),
            pressed: [...document.querySelectorAll('#toggles button')].map((b) => b.getAttribute('aria-pressed')),
            along: document.querySelector('#repeat .scroll').scrollLeft,
            place: Math.round(document.querySelector('#cost').getBoundingClientRect().top) })"""
        before = browser.run(look)
        assert before["chosen"] == ["FedETF, all settings", "digits, 4 clients, alpha = 0.5, seed 7"]
        assert "false" in before["pressed"]
        assert all(before["open"])
        assert before["along"] == 60
        for alpha in (0.1, 0.5):  # a method that comes first in every list
            make_run(tmp_path / f"fedprox-{alpha}", "fedprox", 7, 10, measures=["nc2"], **{"data.alpha": alpha})
        rows = "document.querySelector('#results table.results tbody')?.rows.length"
        until(browser, rows, lambda count: count == 3)
        after = browser.run(look)
        place = before.pop("place"), after.pop("place")
        assert after == before
        assert abs(place[1] - place[0]) < 200  # the rows above have moved it; the reader is where he was
        assert_quiet(browser)


def test_a_server_that_was_restarted_is_found_again(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedavg")
    with watched(tmp_path) as address:
        browser.open(address)
        until(browser, STATE, lambda text: text == "live")
        port = int(address.rstrip("/").rpartition(":")[2])
    browser.run("window.same = true")
    make_run(tmp_path / "b", "fedetf")
    with watched(tmp_path, port):
        until(browser, "document.querySelector('#results table.results tbody')?.rows.length", lambda count: count == 2)
        assert browser.run("window.same")  # the page was not loaded again


def test_names_in_a_folder_cannot_become_markup(browser: Browser, tmp_path: Path) -> None:
    nasty = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    make_run(tmp_path / "a", "fedavg")
    with watched(tmp_path) as address:
        browser.open(address)
        until(browser, STATE, lambda text: text == "live")
        make_run(tmp_path / "b", classes=[nasty, "cat"])
        (tmp_path / "b" / "result.json").unlink()
        until(browser, ROUND, lambda done: done == 5)
        assert browser.run("window.hacked") is None
        assert browser.run("document.querySelectorAll('img').length") == 0
