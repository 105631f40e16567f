"""A headless Chromium spoken to over a pipe, in Chrome's DevTools protocol: no driver and no package is needed."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    "--disable-dev-shm-usage",
)


def find_browser() -> str | None:
    """The program of an installed Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page. ``complaints`` collects console messages, uncaught errors and requests for anything but the page."""

    def __init__(self, to_browser: IO[bytes], from_browser: IO[bytes]) -> None:
        self._to, self._from = to_browser, from_browser
        self._ids = count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, path: Path, *, width: int, dark: bool) -> None:
        """Show a file in a window of this width, in a theme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._read()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def send(self, method: str, **parameters: Any) -> Any:
        """The browser's answer to one call."""
        message = {"id": next(self._ids), "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        parts = []
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "the browser has gone"
            parts.append(byte)
        message: dict[str, Any] = json.loads(b"".join(parts))
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.complaints.append(url)
        elif event in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(parameters)[:500])


@contextlib.contextmanager
def browser_tab(program: str, profile: Path) -> Iterator[Tab]:
    """A tab of a browser that ends with the block."""
    there, to_browser = os.pipe()
    from_browser, back = os.pipe()
    flags = [*_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    # The browser reads from descriptor 3 and writes to 4.
    shell = f'exec "$@" 3<&{there} 4>&{back}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", program, *flags],
        pass_fds=(there, back),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(there)
    os.close(back)
    try:
        with os.fdopen(to_browser, "wb") as write, os.fdopen(from_browser, "rb") as read:
            yield Tab(write, read)
    finally:
        process.terminate()
        process.wait(timeout=20)
