"""Whatever bytes reach the server of the live page: a refusal, its one page with its policy, or a closed connection."""

import contextlib
import io
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from fuzz import examples
from hypothesis import example, given
from hypothesis import strategies as st
from made_runs import make_run

from fedetf.report.live import LivePage
from fedetf.report.page import policy
from fedetf.report.serve import serving

PATIENCE = 60  # seconds for what takes a moment
MEMORY = 200 * 2**20  # bytes that all examples may add
STREAM = 1000  # bytes that are read of a stream without end
CROWD = 30  # connections at once
PLAIN = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Served:
    """A page, and where it is."""

    live: LivePage
    port: int
    memory: int  # the most that this process had before the first request, in bytes


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A page with a run; its server finds out without delay that a browser has gone."""
    folder = tmp_path_factory.mktemp("watched")
    make_run(folder / "run")
    live = LivePage([folder])
    live.look()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedetf.report.serve.BEAT", 0.01)
        with serving(live, 0) as address:
            yield Served(live, int(address.rstrip("/").rpartition(":")[2]), memory())


# --- what arrives -----------------------------------------------------------------------------------------------------

spaces = st.sampled_from([b" ", b"  ", b"\t", b"\x0b", b"\xa0", b""])
ends = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r", b"\x00", b""])
methods = st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"OPTIONS", b"CONNECT", b"get", b"error"])
paths = st.sampled_from(
    [b"/", b"/", b"/events", b"//", b"*", b"/../../etc/passwd", b"/%2e%2e/x", b"http://localhost/", b"/" * 70_000]
)
versions = st.sampled_from(
    [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1." + b"1" * 5000, b"HTTP/1.\xb2", b"http/1.1", b""]
)
hosts = st.sampled_from([b"localhost", b"127.0.0.1:1", b"[::1]:80", b"evil.example", b"localhost.evil.example", b""])
# Headers are read as those of mail, of which some say how the rest is to be read.
kinds = st.sampled_from(
    [
        b"multipart/a; boundary=b",
        b"multipart/a; boundary*=utf-8''%ff",
        b"multipart/a; boundary*=idna''b",
        b"multipart/a; boundary*=a\x00b''c",
        b"multipart/a; boundary*9" + b"9" * 5000 + b"=b",
        b"message/rfc822\r\rContent-Type: " * 2000,
        b"message/delivery-status",
    ]
)
headers = st.one_of(
    st.tuples(st.just(b"Host"), hosts),
    st.tuples(st.just(b"Content-Type"), kinds),
    st.tuples(
        st.sampled_from([b"Connection", b"Expect", b"Content-Length", b"Transfer-Encoding", b"From ", b"", b" x"]),
        st.sampled_from([b"keep-alive", b"close", b"100-continue", b"-1", b"9" * 20, b"chunked", b""]),
    ),
    st.tuples(st.binary(max_size=9), st.binary(max_size=30)),
    st.tuples(st.just(b"x"), st.sampled_from([b"y" * 70_000, b"y" * 60_000])),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """What looks like a request, sound or odd in every part of it."""
    line = draw(methods) + draw(spaces) + draw(paths) + draw(spaces) + draw(versions) + draw(ends)
    lines = [b": ".join(each) + draw(ends) for each in draw(st.lists(headers, max_size=4))]
    if draw(st.booleans()):
        lines.insert(0, b"Host: localhost\r\n")
    if draw(st.integers(0, 9)) == 0:
        lines *= 60
    whole = line + b"".join(lines) + draw(st.sampled_from([b"\r\n", b"\r\n", b"\n", b""])) + draw(st.binary(max_size=9))
    return whole if draw(st.integers(0, 3)) else whole[: draw(st.integers(0, len(whole)))]


pieces = st.lists(requests() | st.binary(max_size=200), min_size=1, max_size=3)
endings = st.sampled_from(["read", "read", "read", "leave", "reset"])


# --- what comes of it -------------------------------------------------------------------------------------------------


def ask(port: int, sent: Sequence[bytes], ending: str = "read") -> bytes:
    """What the server answers before it closes, and of a stream without end the beginning."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        with contextlib.suppress(ConnectionError):  # it may have read enough
            for each in sent:
                connection.sendall(each)
        if ending == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ending != "read":
            return answer
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(2**20):
                answer += more
                if b"text/event-stream" in answer and len(answer) > STREAM:
                    break
    return answer


def check(answer: bytes, page: bytes) -> None:
    """Nothing, or a status with the policy, and the page or a few plain words."""
    if not answer:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    assert re.fullmatch(r"HTTP/1\.0 (200|400|404|414|421|431|501|505) [\w -]+", status)
    assert f"Content-Security-Policy: {policy(live=True)}; frame-ancestors 'none'; base-uri 'none'" in lines
    assert "X-Content-Type-Options: nosniff" in lines
    if "200" not in status:
        assert "Content-Type: text/plain; charset=utf-8" in lines
        assert re.fullmatch(rb"[\w :/-]{0,40}", body)
    elif "Content-Type: text/event-stream" in lines:
        assert body.startswith(b"retry: 1000\ndata: {")
    else:
        assert "Content-Type: text/html; charset=utf-8" in lines
        assert page.startswith(body)  # to its end, unless the client sent more than a request


def memory() -> int:
    """The most that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def settle(threads: int) -> None:
    """Every connection comes to its end, and no more threads are left than there were."""
    end = time.monotonic() + PATIENCE
    while threading.active_count() > threads:
        assert time.monotonic() < end
        time.sleep(0.001)


LOCAL = b"Host: localhost\r\n"


@examples(300)
@given(pieces, endings)
@example([b"GET /\r\n" + LOCAL + b"\r\n"], "read")  # to such a request an answer had neither status nor policy
@example([b"GET / HTTP/0.9\r\n" + LOCAL + b"\r\n"], "read")
@example([b"nonsense\r\n"], "read")
@example([b"POST / HTTP/1.1\r\n" + LOCAL + b"\r\n"], "read")  # of Python's own refusals, in HTML without policy
@example([b"GET / HTTP/1.1\r\n" + LOCAL + b"Content-Type: multipart/a; boundary*=idna''b\r\n\r\n"], "read")
@example([b"GET / HTTP/1.1\r\n" + b"Content-Type: message/rfc822\r\r" * 2000 + b"\r\n\r\n"], "read")
@example([b"x" * 300_000], "read")
@example([b"GET / HTTP/1.1\r\n", (b"x: " + b"y" * 60_000 + b"\r\n") * 200], "read")
@example([PLAIN[:-2]], "reset")
@example([PLAIN.replace(b"/ ", b"/events ")], "read")
def test_any_bytes_are_refused_or_get_the_page(served: Served, sent: list[bytes], ending: str) -> None:
    threads = threading.active_count()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        check(ask(served.port, sent, ending), served.live.page)
        settle(threads)
        whole = ask(served.port, [PLAIN])
        settle(threads)
    assert said.getvalue() == ""
    assert whole.startswith(b"HTTP/1.0 200 OK\r\n")
    assert whole.endswith(b"\r\n\r\n" + served.live.page)
    assert memory() - served.memory < MEMORY


def test_clients_that_say_nothing_hold_up_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        for number in range(CROWD):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), PATIENCE))
            silent.sendall(PLAIN[: number % len(PLAIN)])
        assert ask(served.port, [PLAIN]).endswith(served.live.page)
        monkeypatch.setattr("fedetf.report.serve._Handler.timeout", 0.05)  # of those that come from now on
        late = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), PATIENCE))
        late.sendall(PLAIN[:9])
        assert late.recv(1) == b""
    settle(threads)
