"""Serves a live page to browsers on this machine, and tells them of every new version (server-sent events)."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedetf.errors import UserError
from fedetf.report.live import LivePage
from fedetf.report.page import policy

LOOPBACK = "127.0.0.1"
# Names of this machine that no name server can give to a stranger's page. The port is not looked at: that of an SSH
# tunnel's other end may differ.
OWN_NAMES = {LOOPBACK, "localhost", "[::1]"}
BEAT = 5.0  # seconds after which the server says that it is there, though nothing has changed
POLL = 0.5  # seconds between two looks at the folders


@contextmanager
def serving(live: LivePage, port: int) -> Iterator[str]:
    """Serve it from other threads; gives the address. Port 0 is any that is free."""

    class Handler(_Handler):
        page = live

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise UserError(f"cannot listen on port {port}: {error.strerror}; give another, --port 0 finds one") from None
    server.daemon_threads = True  # a browser that stays connected does not hold up the end
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}/"
    finally:
        live.end()
        server.shutdown()
        server.server_close()


def keep_current(live: LivePage) -> None:
    """Look at the folders for ever."""
    while True:
        live.look()
        time.sleep(POLL)


class _Handler(BaseHTTPRequestHandler):
    page: LivePage
    timeout = 60  # seconds without a word of a request

    def handle(self) -> None:
        """One request; the browser may go away at any moment."""
        with suppress(OSError):
            super().handle()

    def parse_request(self) -> bool:
        """Whether it is one. Headers are read as those of mail, of which some say how the rest is to be read."""
        try:
            return super().parse_request()
        except OSError:
            raise
        except Exception:  # of Python's reader of mail, which may be led astray in many ways
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False

    def do_GET(self) -> None:
        """The page, or its versions as they come."""
        host = self.headers.get("Host", "")
        if not OWN_NAMES & {host, host.rpartition(":")[0]}:
            # A stranger's page whose name was made to point here: it would read ours as if it were its own.
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server is called localhost")
        elif self.path == "/":
            page = self.page.page  # once: it may be another in a moment
            self._begin(HTTPStatus.OK, "text/html; charset=utf-8", len(page))
            self.wfile.write(page)
        elif self.path == "/events":
            self._tell()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is one page here: /")

    def _tell(self) -> None:
        self._begin(HTTPStatus.OK, "text/event-stream")
        version = ""
        while version := self.page.wait(version, BEAT):
            word = json.dumps({"version": version, "now": int(1000 * time.time())})
            self.wfile.write(f"retry: 1000\ndata: {word}\n\n".encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What Python's own code refuses: like all else, and without a word of the request."""
        status = HTTPStatus(code)
        self._refuse(status, status.phrase)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._begin(status, "text/plain; charset=utf-8", len(why))
        if self.command != "HEAD":
            self.wfile.write(why.encode())

    def _begin(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.request_version = self.protocol_version  # to HTTP/0.9 there would be no status and no policy
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'; base-uri 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are nobody's business."""
