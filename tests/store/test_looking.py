"""Looking at a store changes nothing: no byte of it, its rollback guard, what was seen of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capri import Capri, StorageError
from capri.store.transaction import Transaction, open_database
from operated_stores import SETTINGS, command, forget_what_was_seen, play

pytestmark = pytest.mark.usefixtures("unforced")
COUNT = "SELECT count(*) FROM decisions"


def everything(folder: Path) -> dict[str, bytes]:
    """All files with their bytes; the index of a log is shared memory, which readers write to."""
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each): each.read_bytes() for each in files if each.suffix != ".db-shm"}


def dumped(url: str) -> list[tuple[str, ...]]:
    """All rows of a server's database, as text."""
    import psycopg

    with psycopg.connect(url) as server:
        tables = server.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
        ).fetchall()
        return [
            (name, str(row))
            for (name,) in tables
            for row in server.execute(f"SELECT t::text FROM {name} AS t ORDER BY 1")
        ]


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_the_check_leaves_every_byte_as_it_was(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store that is well, of an older copy, and of one whose rollback guard is gone."""
    place = "guard.json" if kind == "file" else "guard.db"
    rollback_guard = f"{'sqlite:///' * (kind == 'sqlite')}{tmp_path}/{place}"
    file, url = tmp_path / "store.db", f"sqlite:///{tmp_path}/store.db"
    with Capri(**SETTINGS, store=url, rollback_guard=rollback_guard) as policy:
        play(policy, 3)
        command("backup", url, str(tmp_path / "copy.db"))
        policy.close_epoch(early=True)
        policy._engine.pace.planner.stop()  # type: ignore[union-attr]
        during = everything(tmp_path)
        command("check", url, "--rollback-guard", rollback_guard, code=1)  # synchronous is OFF here
        assert everything(tmp_path) == during
    before = everything(tmp_path)
    assert str(file) + "-wal" not in before
    monkeypatch.undo()
    assert " bad " not in command("check", url, "--rollback-guard", rollback_guard)
    command("store", "operations", url)
    command("backup", url, str(tmp_path / "again.db"))
    (tmp_path / "again.db").unlink()
    assert everything(tmp_path) == before
    # An older copy: by what was seen beside it, and by the guard. Exit code 1, as the docs say.
    shutil.copyfile(tmp_path / "copy.db", file)
    forget_what_was_seen(monkeypatch)
    before = everything(tmp_path)
    lines = command("check", url, "--rollback-guard", rollback_guard, code=1).splitlines()
    assert {"newest", "rollback_guard"} <= {line.split()[0] for line in lines if " bad " in line}
    assert everything(tmp_path) == before
    # The same where neither is there any more.
    for name in (place, "store.db-seen"):
        (tmp_path / name).unlink()
    before = everything(tmp_path)
    assert "knows nothing" in command("check", url, "--rollback-guard", rollback_guard, code=1)
    assert everything(tmp_path) == before


def test_the_check_leaves_a_server_as_it_was(postgres_url: str, tmp_path: Path) -> None:
    with Capri(**SETTINGS, store=postgres_url) as policy:
        play(policy, 3)
    before = dumped(postgres_url)
    command("check", postgres_url, "--rollback-guard", f"{tmp_path}/guard.json", code=1)
    command("backup", postgres_url, f"{tmp_path}/copy.db")
    assert dumped(postgres_url) == before
    assert not (tmp_path / "guard.json").exists()


def test_what_is_looked_at_may_not_be_written(url: str) -> None:
    with pytest.raises(StorageError, match="there is no policy"):
        open_database(url, read_only=True)
    with Capri(**SETTINGS, store=url) as policy:
        play(policy, 2)
    database = open_database(url, read_only=True)
    for write in (lambda: database.write(lambda _: None), database.forget):
        with pytest.raises(StorageError, match="to be looked at"):
            write()
    with pytest.raises(StorageError):
        database.read(lambda transaction: transaction.run("DELETE FROM decisions"))
    assert database.read(lambda transaction: transaction.row(COUNT)) == (2,)
    database.close()
    with pytest.raises(StorageError, match="was closed"):
        database.read(lambda transaction: transaction.row(COUNT))


def test_a_log_that_a_killed_process_left_is_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    open_database(url).close()
    script = (
        "import os, sys; from capri.store.transaction import open_database;"
        "open_database(sys.argv[1]).write(lambda t: t.insert('decisions', [(1, b'x')]));"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, url], check=True, env=os.environ)
    before = everything(tmp_path)
    assert before[f"{tmp_path}/store.db-wal"]
    database = open_database(url, read_only=True)
    assert database.read(lambda transaction: transaction.row(COUNT)) == (1,)
    database.close()
    assert everything(tmp_path) == before


def test_a_file_that_begins_to_change_is_read_anew(tmp_path: Path) -> None:
    """A process starts while a file without a log is read as one that does not change."""
    url = f"sqlite:///{tmp_path}/store.db"
    open_database(url).close()
    database, times = open_database(url, read_only=True), []

    def count(transaction: Transaction) -> object:
        times.append(transaction.row(COUNT))
        if len(times) == 1:
            other = open_database(url)
            other.write(lambda each: each.insert("decisions", [(1, b"x")]))
            other.close()
        return times[-1]

    assert database.read(count) == (1,)
    assert times == [(0,), (1,)]
    database.close()
