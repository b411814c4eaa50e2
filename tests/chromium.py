"""A headless Chromium, spoken to in the DevTools protocol over two pipes."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """One browser with one page. Chromium reads commands from descriptor 3 and answers on descriptor 4."""

    def __init__(self, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # out of the way of 3 and 4, which they become in the child
        given = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (commands, answers)]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(given, (3, 4), strict=True)]
        actions += [(os.POSIX_SPAWN_DUP2, quiet, number) for number in (1, 2)]
        arguments = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._pid = os.posix_spawn(CHROMIUM, arguments, dict(os.environ), file_actions=actions)
        for end in (commands, answers, quiet, *given):
            os.close(end)
        self._left, self._number, self.events = b"", 0, []
        self._session = None
        page = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                assert "error" not in received, (method, received["error"])
                return received["result"]
            self.events.append(received)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._read], [], [], 60)[0], "Chromium does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium has ended"
            self._left += chunk
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path | str, width: int = 1200, height: int = 900, scripts: bool = True) -> None:
        """Open a file or an address in a window of some size and wait until it is loaded; its events are kept."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not self.seen("Page.loadEventFired"):
            self.events.append(self._receive())

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def media(self, media: str = "", scheme: str = "light") -> None:
        """Pretend a medium (``print``) and a colour scheme (``dark``)."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """The page as PNG."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)
        os.close(self._write)
        os.close(self._read)
