"""The live page: what its server answers, to whom, and how it ends."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_runs import make_run

from fedetf.cli import main
from fedetf.files import packaged
from fedetf.report.groups import arrange
from fedetf.report.live import LivePage
from fedetf.report.page import policy, render
from fedetf.report.serve import serving
from fedetf.runs.read import gather, read_so_far


def unfinished(folder: Path, rounds: int = 3, method: str = "fedetf", seed: int = 7, of: int = 5) -> list[str]:
    """A run of which so many rounds are done; returns the lines of those that are to come."""
    make_run(folder, method, seed, of)
    (folder / "result.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:rounds]))
    return lines[rounds:]


@contextmanager
def asked(live: LivePage, path: str = "/", host: str | None = None) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request for a path of its server, by whatever name."""
    with serving(live, 0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.putrequest("GET", path, skip_host=host is not None)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        yield connection.getresponse()
        connection.close()


def shown(live: LivePage) -> str:
    live.look()
    return live.page.decode()


def rounds_of(page: str) -> dict[str, str]:
    """How far the runs are that the page calls unfinished, by their folders' last part."""
    return {Path(folder).name: done for folder, done in re.findall(r'data-folder="(.+?)" data-round="(\d+)"', page)}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_running_run_is_beside_the_finished_ones_and_in_no_mean(tmp_path: Path) -> None:
    done = make_run(tmp_path / "done", seed=7)
    for_later = unfinished(tmp_path / "going", seed=8)
    live = LivePage([tmp_path])
    page = shown(live)
    assert rounds_of(page) == {"going": "3"}
    assert "3 of 5" in page
    data = json.loads(re.search(r'id="data">(.+?)</script>', page)[1])
    assert data["variants"] == ["FedETF", "FedETF (seed 8, running)"]
    lengths = {curve["at"][0]: len(curve["x"]) for curve in data["charts"]["general"]["curves"]}
    assert lengths == {0: 5, 1: 3}
    assert f">{100 * done['general_last5']:.2f}<" in page  # of seed 7 alone
    results = re.search(r'data-part="results">(.+?)</table>', page, re.DOTALL)[1]
    assert "running" not in results
    with (tmp_path / "going" / "rounds.jsonl").open("a") as file:
        file.write(for_later[0] + for_later[1][:20])  # a round, and one that is just being written
    assert rounds_of(shown(live)) == {"going": "4"}


def test_a_run_that_ends_joins_the_others(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=7)
    unfinished(tmp_path / "b", seed=8)
    live = LivePage([tmp_path])
    assert "One run is not done yet" in shown(live)
    shutil.rmtree(tmp_path / "b")
    make_run(tmp_path / "b", seed=8)
    assert "not done yet" not in shown(live)
    assert "seeds 7, 8" in live.page.decode()


def test_the_page_is_made_anew_only_when_something_has_changed(tmp_path: Path) -> None:
    unfinished(tmp_path / "a")
    live = LivePage([tmp_path])
    live.look()
    page, version = live.page, live.version
    live.look()
    assert live.page is page
    make_run(tmp_path / "b", "fedavg")
    live.look()
    assert live.version != version
    assert live.wait(version, 60) == live.version  # which does not wait


def test_folders_may_be_empty_vanish_and_come_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    live = LivePage([folder])
    assert "No run yet" in shown(live)
    unfinished(folder / "a")
    assert rounds_of(shown(live)) == {"a": "3"}
    shutil.rmtree(folder)
    assert "No run yet" in shown(live)
    unfinished(folder / "a", rounds=0)
    assert rounds_of(shown(live)) == {"a": "0"}


def test_what_failed_or_is_damaged_is_named(tmp_path: Path) -> None:
    unfinished(tmp_path / "failed")
    (tmp_path / "failed" / "error.part").write_text("Traceback\nfedetf.errors.UserError: no such dataset\n")
    unfinished(tmp_path / "damaged")
    (tmp_path / "damaged" / "rounds.jsonl").write_text("{}\n")
    page = shown(LivePage([tmp_path]))
    assert "failed: no such dataset" in page
    assert "rounds.jsonl is damaged" in page
    assert rounds_of(page) == {}


def test_a_report_on_disk_has_finished_runs_only(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    unfinished(tmp_path / "b", method="fedavg")
    runs, left_out = gather([tmp_path])
    assert [run.folder.name for run in runs] == ["a"]
    assert "not finished, 3 rounds done" in left_out[0].reason
    assert read_so_far(tmp_path / "b").value("general") is None


def test_all_that_changes_is_part_of_the_live_page() -> None:
    """What the template takes in is inside an element that the script replaces, unless it never changes."""
    text = packaged("report", "page.html")
    inside = re.findall(r"data-part=[^>]+>([^<]*)<", text)
    kept_current = {name for part in inside for name in re.findall(r"\$(\w+)", part)}
    fixed = {"policy", "style", "script", "made", "accuracy", "loss"}  # the last two are frames of charts
    assert set(re.findall(r"\$(\w+)", text)) - kept_current == {*fixed, "data"}


# --- the server -------------------------------------------------------------------------------------------------------


def test_the_policy_of_the_file_and_one_more_permission(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    live = LivePage([tmp_path])
    live.look()
    with asked(live) as answer:
        assert (answer.status, answer.read()) == (200, live.page)
        header = answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"
    without_hash = [re.sub(r"sha256-[^']+", "", text) for text in (policy(), policy(live=True))]
    assert without_hash[1] == without_hash[0] + "; connect-src 'self'"
    assert header == policy(live=True) + "; frame-ancestors 'none'; base-uri 'none'"
    assert f'content="{policy(live=True)}"' in live.page.decode()
    assert "EventSource" not in render(arrange(gather([tmp_path])[0]))  # the file asks nobody


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:8765", "[::1]:80"])
def test_it_answers_to_its_own_names(tmp_path: Path, host: str) -> None:
    with asked(LivePage([tmp_path]), host=host) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil:1", ""]
)
@pytest.mark.parametrize("path", ["/", "/events"])
def test_a_name_that_was_made_to_point_here_is_refused(tmp_path: Path, host: str, path: str) -> None:
    with asked(LivePage([tmp_path]), path, host) as answer:
        assert answer.status == 421
        assert answer.read() == b"this server is called localhost"


@pytest.mark.parametrize("path", ["/a", "/../etc/passwd", "/config.toml", "/?x", "/events/"])
def test_there_is_one_page(tmp_path: Path, path: str) -> None:
    with asked(LivePage([tmp_path]), path) as answer:
        assert answer.status == 404


def test_browsers_are_told_of_every_version(tmp_path: Path) -> None:
    live = LivePage([tmp_path])
    live.look()
    with asked(live, "/events") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert _next_version(answer) == live.version
        make_run(tmp_path / "a")
        live.look()
        assert _next_version(answer) == live.version


def _next_version(answer: http.client.HTTPResponse) -> str:
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the server has hung up"
    return json.loads(line.removeprefix(b"data: "))["version"]


# --- the command ------------------------------------------------------------------------------------------------------


@contextmanager
def watching(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``fedetf watch`` in a process of its own, and its address."""
    words = [sys.executable, "-m", "fedetf", "watch", "--port", "0", *arguments]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_with_a_browser_connected(tmp_path: Path, number: int) -> None:
    with watching(tmp_path) as (process, address):  # there is no folder runs yet: it waits for one
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=60)
        connection.request("GET", "/events")
        assert _next_version(connection.getresponse())
        process.send_signal(number)
        assert process.wait(60) == 130
        assert process.stderr.read() == "interrupted\n"


@pytest.mark.slow
def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    with watching(tmp_path) as (process, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        sockets = Path(f"/proc/{process.pid}/net/tcp")
        if not sockets.exists():
            pytest.skip("no /proc to see sockets in")
        listening = [line.split()[1] for line in sockets.read_text().splitlines() if line.split()[3] == "0A"]
        assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "no folder" in capsys.readouterr().err
    for port in ("-1", "65536", "x", "²"):
        assert main(["watch", f"--port={port}", str(tmp_path)]) == 2
        assert "is no port" in capsys.readouterr().err
    with serving(LivePage([tmp_path]), 0) as address:
        taken = address.rstrip("/").rpartition(":")[2]
        assert main(["watch", "--port", taken, str(tmp_path)]) == 2
    assert "--port 0 finds one" in capsys.readouterr().err
