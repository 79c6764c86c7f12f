"""Drive headless Chromium over its DevTools pipe: JSON messages on two file descriptors.

No server, no port, no library: https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from waiting import PATIENCE, eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The browser of ``$CAPRI_BROWSER``, else one on the path.

    None lets tests be skipped. Not in CI (``$CI`` is set): there a missing browser is named all the
    same, and starting it fails.
    """
    wanted = os.environ.get("CAPRI_BROWSER")
    names = (wanted,) if wanted else NAMES
    missing = names[0] if os.environ.get("CI") else None
    return next((path for path in map(shutil.which, names) if path), missing)


class Browser:
    """One page in one browser. Console errors, exceptions and requests are collected."""

    def __init__(self, program: str) -> None:
        if shutil.which(program) is None:
            raise FileNotFoundError(f"no browser {program}: run tools/install_browser.sh")
        self._profile = tempfile.mkdtemp(prefix="capri-browser-")
        to_browser, ours = os.pipe()
        theirs, from_browser = os.pipe()[::-1]
        # The browser reads from 3 and writes to 4: keep our ends away from these numbers.
        self._write = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 10)
        self._read = fcntl.fcntl(from_browser, fcntl.F_DUPFD_CLOEXEC, 10)
        there_read = fcntl.fcntl(to_browser, fcntl.F_DUPFD_CLOEXEC, 10)
        there_write = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 10)
        for end in (to_browser, ours, theirs, from_browser):
            os.close(end)
        self._log = open(Path(self._profile) / "log", "w+b")  # noqa: SIM115
        arguments = [
            program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run",
            "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
            "--disable-background-networking", "--hide-scrollbars", "--force-color-profile=srgb",
            f"--user-data-dir={self._profile}", "about:blank",
        ]  # fmt: skip
        null = os.open(os.devnull, os.O_RDONLY)
        self._process = os.posix_spawn(
            program,
            arguments,
            os.environ | {"HOME": self._profile},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, self._log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, self._log.fileno(), 2),
                (os.POSIX_SPAWN_DUP2, there_read, 3),
                (os.POSIX_SPAWN_DUP2, there_write, 4),
            ],
            setpgroup=0,
        )
        for end in (null, there_read, there_write):
            os.close(end)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = next(
            each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The browser has a group of its own: its helpers go with it.
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._read)
        os.close(self._write)
        self._log.close()
        for _ in range(50):
            shutil.rmtree(self._profile, ignore_errors=True)
            if not os.path.exists(self._profile):
                return
            time.sleep(0.1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before it are noted."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            piece = os.read(self._read, 1 << 16) if ready else b""
            if not piece:
                self._log.seek(0)
                raise RuntimeError(f"the browser is gone: {self._log.read()[-2000:]!r}")
            self._buffer += piece
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, parameters: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(str([each.get("value") for each in parameters["args"]]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, path: Path | str) -> None:
        """Load a file, or an address, and wait until it is drawn."""
        url = path if isinstance(path, str) else path.resolve().as_uri()
        self.call("Page.navigate", url=url)
        eventually(lambda: self.run("document.readyState") == "complete")
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: sizes are observed and charts are drawn in between."""
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def look(self, *, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """Set the size of the window and the theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.settle()

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name,
                windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "",
            )  # fmt: skip
        self.settle()

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])
