"""A store of the first schema, with people's data in it, goes on with the schema of today."""

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from capri import Capri, RewardStatus, StorageError
from capri.store import lineage
from capri.store.address import open_database
from capri.store.doctor import GOOD, Doctor
from capri.store.migrations import scripts
from capri.store.shelf import Shelf
from capri.store.tables import TABLES
from capri.store.transaction import Transaction
from first_store import NEW_TABLES, first_schema, on_a_server

pytestmark = pytest.mark.usefixtures("unforced")
LAST, LAST_ID = "k29", "AAAAAAAdDumrVKIUleKo"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(lineage, "_SEEN", {})  # the same line comes again with each kind
    source = first_schema(tmp_path / "first.db")
    if request.param == "postgres":
        found = str(request.getfixturevalue("postgres_url"))
        on_a_server(found, source)
    else:
        found = f"sqlite:///{tmp_path}/first.db"
    source.close()
    return found


def rows(url: str, sql: str) -> list[Any]:
    database = open_database(url, create=False)
    try:
        return database.read(lambda transaction: transaction.rows(sql))
    finally:
        database.close()


def test_a_store_of_the_first_schema_goes_on(url: str) -> None:
    before = rows(url, "SELECT number, state FROM epochs ORDER BY number")
    assert [state for _, state in before] == ["learnt", "learnt", "open"]
    with Capri.open(url, key_retention=timedelta(days=1)) as policy:
        spent = policy.ledger.spent
        assert len(policy.epochs) == 2
        # Options that it knows nothing of are at their defaults there, and may not be others.
        policy.again(store=url).close()
        with pytest.raises(StorageError, match=r"configuration: options\.memory differ"):
            policy.again(store=url, memory=50.0)
        again = policy.act([0.0], user="u29", key=LAST)
        assert (again.id, again.epoch, again.action_name) == (LAST_ID, 3, "green")
        assert policy.update(LAST_ID, 0.25) is RewardStatus.DUPLICATE
        # What is new works on what is old.
        policy.replace_actions(["green", "violet"])
        policy.set_mode("default", action="green")
        policy.set_mode("active")
        assert policy.forget("u29").unowned == 6  # rows of before do not say whose they are
        for place in range(24):
            decision = policy.act([0.5], user=f"new {place}", key=f"new {place}")
            policy.update(decision.id, 0.5)
        policy.close_epoch(early=True)
        assert policy.act([0.0], user="u29", key=LAST).action_name == "green"
        assert len(policy.ledger.events) >= 3
        assert policy.ledger.spent.epsilon == pytest.approx(spent.epsilon)
    database = open_database(url, create=False)
    shelf = Shelf(database, None)
    shelf.open()
    states = {finding.name: finding.state for finding in Doctor(shelf).findings()}
    database.close()
    expected = ("schema", "history", "epochs", "ledger", "forgetting", "users", "values")
    assert {name: states[name] for name in expected} == dict.fromkeys(expected, GOOD)


def test_every_table_of_the_code_is_in_the_schema_and_the_other_way_round(tmp_path: Path) -> None:
    for kind in ("sqlite", "postgres"):
        made = {
            line.split()[2]
            for script in scripts(kind)
            for line in script
            if line.startswith("CREATE TABLE")
        }
        assert made - {"writers"} == set(TABLES)
    database = open_database(f"sqlite:///{tmp_path}/new.db")

    def columns(transaction: Transaction) -> dict[str, list[str]]:
        return {
            name: [row[1] for row in transaction.rows(f"PRAGMA table_info({name})")]
            for name in TABLES
        }

    found = database.read(columns)
    database.close()
    assert found == {name: list(table.columns) for name, table in TABLES.items()}


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_schema(tmp_path / "first.db").close()
    good = scripts("sqlite")
    broken = [*good[:-1], [*good[-1], "CREATE TABLE counter (id INTEGER)"]]
    monkeypatch.setattr("capri.store.migrations.scripts", lambda kind: broken)
    with pytest.raises(StorageError):
        open_database(f"sqlite:///{tmp_path}/first.db")
    monkeypatch.undo()
    with sqlite3.connect(tmp_path / "first.db") as connection:
        assert connection.execute("SELECT version FROM capri_schema").fetchall() == [(1,)]
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert not tables & set(NEW_TABLES)
