"""What was deleted is gone from every byte, or whoever asked is told that it is not."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capri import Capri
from operated_stores import SETTINGS, command, play
from stores import found_in
from waiting import eventually

pytestmark = pytest.mark.usefixtures("unforced")
SECRET = 0.123456789012345  # a context that occurs nowhere else
KEY = bytes(range(32))


@contextmanager
def reader(file: Path) -> Iterator[None]:
    """A backup or a shell, in the middle of reading."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM decisions").fetchone()
    try:
        yield
    finally:
        connection.close()


def is_left(file: Path) -> bool:
    raw = b"\0".join(each.read_bytes() for each in sorted(file.parent.glob(f"{file.name}*")))
    return bool(found_in(raw, [SECRET]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def policy(file: Path) -> Iterator[Capri]:
    with Capri(**SETTINGS, store=f"sqlite:///{file}") as opened:
        opened.act([SECRET], user="ann", key="a")
        play(opened, 2)
        assert is_left(file)
        yield opened


def test_forgetting_says_so_while_a_reader_keeps_the_values(policy: Capri, file: Path) -> None:
    url = f"sqlite:///{file}"
    with reader(file):
        said = command("store", "forget", url, "--user", "ann", "--wait", "0", code=1)
        assert "decisions: 1" in said
        assert "can still be read" in said
        assert is_left(file)
        assert "can still be read" in command("store", "clean", url, "--wait", "0", code=1)
    assert "is overwritten" in command("store", "clean", url)
    assert not is_left(file)
    assert "decisions: 0" in command("store", "forget", url, "--user", "ann")


def test_a_policy_that_runs_overwrites_as_soon_as_it_can(policy: Capri, file: Path) -> None:
    with reader(file):
        assert policy.forget("ann").decisions == 1
        assert is_left(file)
    eventually(lambda: not is_left(file))


def test_a_first_store_key_leaves_no_plain_value(policy: Capri, file: Path) -> None:
    url, key = f"sqlite:///{file}", file.with_name("key")
    key.write_bytes(KEY)
    policy._engine.pace.planner.stop()  # type: ignore[union-attr]
    with reader(file):
        words = ("store", "rotate-key", url, "--new-key-file", str(key), "--wait", "0")
        assert "can still be read" in command(*words, code=1)
        assert is_left(file)
        words = ("store", "rotate-ids", url, "--store-key-file", str(key), "--wait", "0")
        assert "can still be read" in command(*words, code=1)
    command("store", "clean", url)
    assert not is_left(file)


def test_the_wait_is_for_who_reads(policy: Capri, file: Path) -> None:
    from threading import Timer

    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM decisions").fetchone()
    end = Timer(1.0, connection.close)
    end.start()
    command("store", "forget", f"sqlite:///{file}", "--user", "ann")
    end.join()
    assert not is_left(file)


def test_a_number_of_json_is_found_by_its_digits(url: str) -> None:
    with Capri(**SETTINGS, store=url) as policy:
        for user in (42, "42", 43, "43", 44, "044"):
            policy.act([0.5], user=user, key=f"{user!r}")

        def forgotten(*words: str, code: int = 0) -> int:
            said = command("store", "forget", url, "--user", *words, code=code)
            return int(said.split("decisions: ")[1].split()[0])

        assert forgotten("43", "--text") == 1
        assert forgotten("43", "--number") == 1
        assert forgotten("42") == 2
        assert forgotten("42") == 0  # nothing is left of somebody who was here
        assert forgotten("044") == 1  # no number is written so
        assert forgotten("45", code=1) == 0
        said = command("store", "forget", url, "--user", "nobody", code=1)
        assert "never seen" in said
        assert "nobody" not in said
        assert "whole number" in command("store", "forget", url, "--user", "x", "--number", code=2)
