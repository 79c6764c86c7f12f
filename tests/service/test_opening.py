"""A service whose store does not serve goes on trying, and says why; where it ends, it says so."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres_server import PostgresServer
from service_process import POLICY, Running, service
from waiting import PATIENCE, eventually

SMALL = 4096  # bytes that a file may have on a full disk


@contextmanager
def serving(folder: Path, *arguments: str, full: bool = False) -> Iterator[subprocess.Popen[str]]:
    """`capri serve`, whose files may not grow where the disk is full; its pipe may."""

    def limit() -> None:
        if full:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, hard))

    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "capri", "serve", str(folder / "policy.toml")),
            *("--insecure-local", "--port", "0", *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=limit,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def said(process: subprocess.Popen[str], pattern: str) -> str:
    """The next line that holds something."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended: {''.join(lines)}")


def ready(folder: Path, line: str) -> None:
    found = re.search(r":(\d+)/", line)
    assert found is not None
    running = Running(folder, port=int(found[1]))
    eventually(lambda: running.ask("GET", "/readyz")[0] == 200)


def test_a_full_disk_at_the_start_is_waited_for(folder: Path) -> None:
    """Before, the service ended, and on a full disk without a word."""
    with service(folder, "--insecure-local"):
        pass  # the store is there
    with serving(folder, full=True) as process:
        said(process, "not ready, and trying again: .*policy.db")
        assert process.poll() is None
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        ready(folder, said(process, "http://"))


def test_a_server_that_is_away_at_the_start_is_waited_for(
    folder: Path, postgres_server: PostgresServer
) -> None:
    (folder / "policy.toml").write_text(POLICY.format(top="", reward="", more="", first=100))
    with PostgresServer() as server, server.database() as url:
        server.crash()
        with serving(folder, "--store", url) as process:
            line = said(process, "not ready, and trying again: .*cannot be reached")
            assert "Traceback" not in line
            assert process.poll() is None
            server.start()
            ready(folder, said(process, "http://"))


def test_a_store_that_will_never_serve_ends_it_in_one_line(folder: Path) -> None:
    (folder / "policy.toml").write_text(POLICY.format(top="", reward="", more="", first=100))
    (folder / "policy.db").write_bytes(b"no database at all" * 1000)
    with serving(folder) as process:
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode != 0
        assert output.count("\n") == 1
        assert "is damaged or no SQLite database" in output
