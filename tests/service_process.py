"""A real service in a process of its own: started, asked, killed and started again."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from capri.service.auth import add_key
from waiting import PATIENCE, eventually

POLICY = """
name = "shop"
actions = ["mail", "call", "wait"]
{top}
[budget]
epsilon = 2.0
delta = 1e-6
[reward]
range = [0, 1]
{reward}
[[context]]
name = "age"
kind = "numeric"
low = 18
high = 98
missing = "own"
[[context]]
name = "plan"
kind = "categorical"
levels = ["free", "pro"]
[options]
first_epoch = {first}
{more}
"""
SOMEBODY = {"age": 41, "plan": "pro"}
# For the end of a policy file: an epoch may be planned for long on a busy machine, and whoever
# decides meanwhile is not to be refused.
PATIENT = f"\n[service]\nanswer_seconds = {PATIENCE:g}\n"


@dataclass
class Running:
    """A service that answers at a port; ``key`` may do everything."""

    folder: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    port: int = 0
    key: str | None = None
    said: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start, or start again at the same port, once a stranger has given it back."""
        eventually(self._listens)
        eventually(self._ready)

    def _listens(self) -> bool:
        """Start a process; whether its port was free."""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "capri",
                "serve",
                str(self.folder / "policy.toml"),
                "--port",
                str(self.port),
                *self.arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **self.environment},
            start_new_session=True,
        )
        out = self.process.stdout
        assert out is not None
        for line in out:
            self.said.append(line)
            if found := re.search(r"http://[\w.:\[\]]+:(\d+)/", line):
                self.port = int(found[1])
                break
        else:
            self.process.wait()
            out.close()
            assert "cannot be listened at" in self.said[-1], "".join(self.said)
            return False
        self._reader = Thread(target=lambda: self.said.extend(out), daemon=True)
        self._reader.start()
        return True

    def _ready(self) -> bool:
        assert self.process.poll() is None, "".join(self.said)
        return self.ask("GET", "/readyz")[0] == 200

    def kill(self) -> None:
        """As a crash does it: the service and whatever it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self._clean()

    def stop(self) -> None:
        """Ask it to end, and wait; where it is gone, only tidy up."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._clean()

    def _clean(self) -> None:
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and what was said; ``body`` as JSON unless it is bytes."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        own = self.key if key == "" else key
        if own is not None:
            request.add_header("Authorization", f"Bearer {own}")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                said, status = response.read(), response.status
        except urllib.error.HTTPError as refusal:
            said, status = refusal.read(), refusal.code
        except OSError:
            return 0, None
        try:
            return status, json.loads(said)
        except ValueError:
            return status, said.decode()

    def post(self, path: str, body: Any, **more: Any) -> Any:
        """What was answered to a request that is sound."""
        status, said = self.ask("POST", path, body, **more)
        assert status == 200, (status, said)
        return said

    def get(self, path: str) -> Any:
        """What was answered."""
        status, said = self.ask("GET", path)
        assert status == 200, (status, said)
        return said

    def decided(self) -> int:
        """Slots that were handed out.

        The service looks at most twice a second: after this pause, however long it gets, it does.
        """
        time.sleep(0.55)
        return int(self.get("/v1/policy")["progress"]["decided"])


def workers_of(supervisor: int) -> list[int]:
    """The processes that serve, forked from one that is beside the supervisor."""
    above: dict[int, int] = {}
    forking: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            above[int(entry.name)] = parent
            if parent == supervisor and b"forkserver" in (entry / "cmdline").read_bytes():
                forking.append(int(entry.name))
    return sorted(process for process, parent in above.items() if parent in forking)


@contextmanager
def service(
    folder: Path,
    *arguments: str,
    top: str = "",
    reward: str = "",
    more: str = "",
    first: int = 100_000,
    environment: dict[str, str] | None = None,
) -> Iterator[Running]:
    """A service on a fresh policy file in a folder, ended afterwards.

    ``more``: for the end of the file; limits of its own where it has a table [service].
    """
    text = POLICY.format(top=top, reward=reward, more=more, first=first)
    (folder / "policy.toml").write_text(text + ("" if "[service]" in more else PATIENT))
    key = None
    if "--insecure-local" not in arguments:
        key = add_key(folder / "policy.keys", "tests", ["admin"])
    running = Running(folder, arguments, environment or {}, key=key)
    running.start()
    try:
        yield running
    finally:
        running.stop()
