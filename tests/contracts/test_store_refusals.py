"""A store that cannot be used says so, and is as it was before."""

import os
import re
import shutil
import sqlite3
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import capri
from builders import CONTEXTS, draw_contexts, small_policy
from capri import CapriError, ConfigurationError, StorageError
from stores import STORE_KEY, Place, in_a_process

PRIVATE: dict[str, Any] = {"simulation_seed": None}
on_files = pytest.mark.parametrize("store", ["sqlite", "sqlite-sealed"], indirect=True)
on_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("store", ["postgres"], indirect=True)


# -- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/at/all/doses.db",
        "postgresql://postgres@/doses?host=/nowhere/at/all",
        "postgresql://somebody:hunter2@127.0.0.1:1/doses?connect_timeout=2",
    ],
)
def test_a_store_out_of_reach_is_named_without_its_password(url: str) -> None:
    with pytest.raises(StorageError) as refused:
        small_policy(store=url)
    said = str(refused.value)
    assert "hunter2" not in said
    assert "nowhere" in said or "127.0.0.1" in said or "doses" in said


@pytest.mark.parametrize(
    "url", ["", "doses.db", "mysql://here/doses", "sqlite:", 7, b"sqlite:///x"]
)
def test_an_address_that_is_none_is_refused(url: object) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        small_policy(store=url)


def test_options_of_a_store_need_one() -> None:
    with pytest.raises(ConfigurationError, match="store"):
        small_policy(store_key=STORE_KEY)


@pytest.mark.parametrize("retention", [timedelta(0), timedelta(seconds=-1), 30, "a month"])
def test_retention_is_a_positive_time(retention: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="key_retention"):
        small_policy(store=f"sqlite:///{tmp_path}/doses.db", key_retention=retention)


# -- whose it is ----------------------------------------------------------------------------------


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"budget": capri.Budget(epsilon=3.0, delta=1e-5)}, "budget"),
    ({"budget": None}, "budget"),
    ({"kernel": capri.kernels.Matern(nu=1.5, lengthscale=0.4)}, "kernel"),
    ({"actions": [[0.0], [1.0]]}, "actions"),
    ({"contexts": capri.ContextPool(CONTEXTS / 2)}, "contexts"),
    ({"horizon": 90}, "horizon"),
    ({"preset": "practical"}, "preset"),
    ({"reward_wait": 5}, "rewards.wait"),
    ({"contributions_per_user": 2}, "limit"),
    ({"simulation_seed": 3}, "simulated"),
]


def test_another_policys_store_is_refused_with_what_differs(store: Place) -> None:
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    for changes, named in OTHERS:
        with pytest.raises(StorageError, match=named):
            store.open(**(PRIVATE | changes))
    assert store.open(**PRIVATE).act(CONTEXTS[0], key="order-1") == own


@on_files
def test_the_right_key_is_needed(store: Place) -> None:
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    policy.close()
    wrong = [{"store_key": bytes(32)}, {"store_key": None if store.sealed else STORE_KEY}]
    for key in wrong:
        with pytest.raises(StorageError, match="key") as refused:
            store.open(**(PRIVATE | key))
        assert STORE_KEY.hex() not in str(refused.value)
    assert store.open(**PRIVATE).act(CONTEXTS[0], key="order-1") == own


def test_a_policy_opens_from_its_store_alone(store: Place) -> None:
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    policy.close()
    key = {"store_key": STORE_KEY} if store.sealed else {}
    with capri.Capri.open(store.url, **key) as opened:
        assert opened.act(CONTEXTS[3], key="order-1") == own


def test_an_empty_store_has_no_policy_to_open(store: Place) -> None:
    """And stays empty: an address with a slip of the pen leaves nothing behind."""
    with pytest.raises(StorageError, match="this store is empty"):
        capri.Capri.open(store.url)
    if store.file is not None:
        assert list(store.file.parent.iterdir()) == []
        store.file.touch()
        with pytest.raises(StorageError, match="this store is empty"):
            capri.Capri.open(store.url)
        assert store.file.read_bytes() == b""
    else:
        assert store.raw() == b""


def execute(store: Place, statement: str) -> None:
    """A stranger's statement."""
    if store.file is not None:
        connection = sqlite3.connect(store.file, isolation_level=None)
        connection.execute(statement)
        connection.close()
    else:
        assert store.server is not None
        with store.server.connection(store.database) as connection:
            connection.execute(statement)


def test_a_newer_schema_is_refused(store: Place) -> None:
    store.open(**PRIVATE).close()
    execute(store, "UPDATE capri_schema SET version = version + 1")
    before = store.raw()
    with pytest.raises(StorageError, match="schema version 7, this release knows version 6"):
        store.open(**PRIVATE)
    assert store.raw() == before
    execute(store, "UPDATE capri_schema SET version = version - 1")
    store.open(**PRIVATE).act(CONTEXTS[0])


def test_tables_of_another_program_are_left_alone(store: Place) -> None:
    execute(store, "CREATE TABLE decisions (verdict TEXT)")
    before = store.raw()
    with pytest.raises(StorageError, match="another program"):
        store.open(**PRIVATE)
    assert store.raw() == before  # an SQLite file also in how it keeps its journal


# -- copies ---------------------------------------------------------------------------------------


@on_files
def test_an_older_copy_of_a_file_is_refused(store: Place, tmp_path: Path) -> None:
    """What was released since would be released again."""
    assert store.file is not None
    policy = store.open(**PRIVATE)
    decisions = policy.act_many(draw_contexts(0, policy.remaining))
    policy.update_many(decisions, [0.5] * len(decisions))
    policy.close()
    shutil.copy(store.file, tmp_path / "copy")
    policy = store.open(**PRIVATE)
    policy.close_epoch()
    policy.close()
    shutil.copy(tmp_path / "copy", store.file)
    with pytest.raises(StorageError, match=r"older|copy"):
        store.open(**PRIVATE)


@on_postgres
def test_an_older_copy_of_a_database_is_refused(store: Place) -> None:
    assert store.server is not None
    policy = store.open(**PRIVATE)
    policy.act_many(draw_contexts(0, policy.remaining))
    policy.close()
    name = store.database
    with store.server.connection() as connection:
        connection.execute(f"CREATE DATABASE {name}_old TEMPLATE {name}")
    policy = store.open(**PRIVATE)
    policy.close_epoch()
    policy.close()
    with store.server.connection() as connection:
        connection.execute(f"DROP DATABASE {name}")
        connection.execute(f"ALTER DATABASE {name}_old RENAME TO {name}")
    with pytest.raises(StorageError, match=r"older|copy"):
        store.open(**PRIVATE)


@on_sqlite
def test_an_older_copy_under_a_running_policy_is_refused(store: Place, tmp_path: Path) -> None:
    """It is told at once, and by every call; nobody looks for a newer view for ever."""
    policy = store.open(**PRIVATE)
    decision = policy.act(CONTEXTS[0])
    with sqlite3.connect(store.file) as file, sqlite3.connect(tmp_path / "old.db") as old:
        file.backup(old)
        policy.act_many(draw_contexts(0, policy.remaining))
        policy.close_epoch()
        policy.act(CONTEXTS[0])
        old.backup(file)
    file.close()
    old.close()
    for call in (
        lambda: policy.act(CONTEXTS[0]),
        lambda: policy.update(decision, 0.5),
        policy.close_epoch,
        lambda: policy.epochs,
    ):
        with pytest.raises(StorageError, match="older copy"):
            call()


def test_a_copy_that_went_another_way_is_refused_at_the_same_generation(store: Place) -> None:
    policy = store.open(**PRIVATE)
    policy.act(CONTEXTS[0])
    execute(store, "UPDATE history SET digest = '%s'" % ("0" * 64))
    for call in (policy.close_epoch, lambda: policy.epochs, lambda: policy.remaining):
        with pytest.raises(StorageError, match="went another way"):
            call()


# -- damage ---------------------------------------------------------------------------------------


@on_files
@pytest.mark.parametrize("damage", ["text", "header", "middle", "short"])
def test_a_damaged_file_is_a_storage_error(store: Place, damage: str) -> None:
    """Never a wrong answer: either it opens as it was, or it is refused."""
    assert store.file is not None
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    policy.close()
    good = store.file.read_bytes()
    bad = bytearray(good)
    if damage == "text":
        bad = bytearray(b"not a database, just a text that is long enough to be one\n" * 40)
    elif damage == "header":
        bad[:100] = os.urandom(100)
    elif damage == "middle":
        for start in range(4096, len(bad), 4096):
            bad[start : start + 64] = bytes(64)
    else:
        del bad[len(bad) // 2 :]
    store.file.write_bytes(bytes(bad))
    with pytest.raises(StorageError, match=r"damaged|SQLite|refused"):
        store.open(**PRIVATE).act(CONTEXTS[0], key="order-1")
    store.file.write_bytes(good)
    assert store.open(**PRIVATE).act(CONTEXTS[0], key="order-1") == own


@pytest.mark.parametrize("store", ["sqlite-sealed"], indirect=True)
def test_a_secret_that_was_changed_or_moved_is_noticed(store: Place) -> None:
    policy = store.open(**PRIVATE)
    decisions = policy.act_many(draw_contexts(0, policy.remaining))
    policy.update_many(decisions, [0.5] * len(decisions))
    policy.close()
    execute(
        store,
        "UPDATE decisions SET secret = (SELECT secret FROM decisions AS d WHERE d.number = "
        "(SELECT min(number) FROM decisions))",
    )
    policy = store.open(**PRIVATE)
    with pytest.raises(StorageError, match="damaged or was moved"):
        policy.close_epoch()
    assert len(policy.epochs) == 0


# -- full, read-only, locked ----------------------------------------------------------------------


FULL = """
import os, resource, sys
import capri
from builders import draw_contexts, small_policy
policy = small_policy(store=sys.argv[1], simulation_seed=None, preset="practical",
                      first_epoch=100_000, horizon=None)
first = policy.act(draw_contexts(0, 1)[0], key="order-1")
largest = max(os.path.getsize(sys.argv[2] + end) for end in ("", "-wal"))
resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 8192, resource.RLIM_INFINITY))
try:
    for turn in range(50):
        policy.act_many(draw_contexts(turn, 500))
        made = turn
except capri.StorageError as problem:
    print(problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert policy.act(draw_contexts(1, 1)[0], key="order-1") == first
print(policy.act(draw_contexts(2, 1)[0]).number)
"""


def test_a_disk_that_fails_is_told_and_leaves_whole_batches(tmp_path: Path) -> None:
    """Files may not grow: writes fail, in the COMMIT, and succeed once there is room."""
    file = tmp_path / "doses.db"
    said = in_a_process(FULL, f"sqlite:///{file}", str(file)).splitlines()
    assert re.search("nothing was changed|may be there or not", said[0])
    connection = sqlite3.connect(file)
    (rows,) = connection.execute("SELECT count(*) FROM decisions").fetchone()
    connection.close()
    assert rows % 500 == 2  # whole batches, the first decision and the last


@on_postgres
def test_a_full_server_is_told_and_what_failed_has_not_happened(store: Place) -> None:
    """The server's own error for a full disk, raised where it would be."""
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    assert store.server is not None
    execute(
        store,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$",
    )
    execute(
        store,
        "CREATE TRIGGER full_disk BEFORE INSERT ON decisions EXECUTE FUNCTION full_disk()",
    )
    with pytest.raises(StorageError, match="full"):
        policy.act(CONTEXTS[0], key="order-2")
    execute(store, "DROP TRIGGER full_disk ON decisions")
    assert policy.act(CONTEXTS[1], key="order-1") == own
    assert policy.act(CONTEXTS[1], key="order-2").id != own.id
    with store.server.connection(store.database) as connection:
        assert connection.execute("SELECT count(*) FROM decisions").fetchone() == (2,)


READ_ONLY = """
import os, sys
import capri, capri.joint.policy
from builders import small_policy
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    small_policy(store=sys.argv[1], simulation_seed=None).act([0.0])
except capri.StorageError as problem:
    print(problem)
"""


def test_a_read_only_file_is_told() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "doses.db"
        url = f"sqlite:///{file}"
        with small_policy(store=url, **PRIVATE) as policy:
            policy.act(CONTEXTS[0])
        for path in (*Path(folder).iterdir(), Path(folder)):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = file.read_bytes()
        assert re.search(
            "read-only|may not be written|cannot be opened", in_a_process(READ_ONLY, url)
        )
        assert file.read_bytes() == before
        Path(folder).chmod(0o700)


@on_postgres
def test_a_read_only_database_is_told(store: Place) -> None:
    store.open(**PRIVATE).close()
    execute(store, f"ALTER DATABASE {store.database} SET default_transaction_read_only = on")
    with (
        pytest.raises(StorageError, match=r"may not be written|read-only"),
        store.open(**PRIVATE) as opened,
    ):
        opened.act(CONTEXTS[0])


def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of patience, so that the test does not take half a minute."""
    import capri.store.postgres
    import capri.store.sqlite

    for module in (capri.store.sqlite, capri.store.postgres):
        for database in ("SqliteDatabase", "PostgresDatabase"):
            if hasattr(module, database):
                defaults = getattr(module, database).__init__.__kwdefaults__
                monkeypatch.setitem(defaults, "patience", 1.0)


def test_a_stranger_who_holds_the_store_is_told_of(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened(monkeypatch)
    policy = store.open(**PRIVATE)
    own = policy.act(CONTEXTS[0], key="order-1")
    if store.file is not None:
        stranger: Any = sqlite3.connect(store.file, isolation_level=None)
        stranger.execute("BEGIN EXCLUSIVE")
    else:
        import psycopg

        stranger = psycopg.connect(store.url)
        stranger.execute("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(StorageError, match="held by another program") as refused:
        policy.act(CONTEXTS[0], key="order-2")
    assert "database is locked" not in str(refused.value)
    stranger.execute("ROLLBACK")
    stranger.close()
    assert policy.act(CONTEXTS[0], key="order-1") == own
    assert policy.act(CONTEXTS[0], key="order-2").id != own.id


# -- afterwards -----------------------------------------------------------------------------------


def test_a_closed_policy_refuses_everything(store: Place) -> None:
    policy = store.open(**PRIVATE)
    decision = policy.act(CONTEXTS[0])
    policy.close()
    policy.close()  # twice is once
    for call in (
        lambda: policy.act(CONTEXTS[0]),
        lambda: policy.update(decision, 0.5),
        policy.close_epoch,
    ):
        with pytest.raises(CapriError, match="closed"):
            call()
