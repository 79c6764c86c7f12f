"""Copies, rotation, deletion and the check: each on files, most on a server, too."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import capri
from capri import Capri, ConfigurationError, RewardStatus, StorageError
from capri.cli import app
from capri.store.maintenance import copy_store
from capri.store.transaction import open_database
from operated_stores import SETTINGS, command, forget_what_was_seen, play
from stored_policies import building

pytestmark = pytest.mark.usefixtures("unforced")
OLD, NEW = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
def build(url: str) -> Iterator[Callable[..., Capri]]:
    yield from building(SETTINGS | {"store": url})


def test_the_mode_is_one_command_and_one_line(url: str) -> None:
    with Capri(**SETTINGS, store=url) as policy:
        said = command("store", "mode", url, "default", "--action", "green")
        assert re.search(r"mode action='green', by='\S+ at a shell', mode='default'", said)
        assert policy.act([0.5], user="a", key="a").action_name == "green"
        assert "none of the actions" in command(
            "store", "mode", url, "default", "--action", "pink", code=2
        )
        command("store", "mode", url, "active")
        assert len(command("store", "operations", url).splitlines()) == 2
        assert policy.act([0.5], user="b", key="b").status is capri.VisitStatus.SERVED


# -- copies ---------------------------------------------------------------------------------------


def test_a_copy_goes_on_as_the_store_would(
    build: Callable[..., Capri], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = build(store_key=OLD)
    policy.set_mode("active")
    made = play(policy, 14)
    policy.replace_actions(["green", "blue"])
    assert "copied generation" in command("backup", url, f"{tmp_path}/copy.db")
    assert os.stat(tmp_path / "copy.db").st_mode & 0o077 == 0
    assert "is there already" in command("backup", url, f"{tmp_path}/copy.db", code=2)
    policy.close()
    # Back into an empty place, which need not be of the same kind.
    other = open_database(f"sqlite:///{tmp_path}/again.db")
    source = open_database(f"sqlite:///{tmp_path}/copy.db", create=False)
    copy_store(source, other)
    with pytest.raises(StorageError, match="holds a policy already"):
        copy_store(source, other)
    source.close()
    other.close()
    forget_what_was_seen(monkeypatch)
    with Capri.open(f"sqlite:///{tmp_path}/again.db", store_key=OLD) as again:
        assert again.act([0.0], user="visit 3", key="visit 3").id == made[3].id
        assert again.ledger.events == policy.ledger.events
        assert len(again.operations) == 2
        play(again, 12, "after")


def test_a_copy_goes_back_to_a_server(postgres_url: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with Capri(**SETTINGS, store=url) as policy:
        made = play(policy, 12)
    assert "restored generation" in command("restore", f"{tmp_path}/store.db", postgres_url)
    with Capri.open(postgres_url) as again:
        assert again.act([0.0], user="visit 3", key="visit 3").id == made[3].id
        play(again, 12, "after")
        lines = command("check", postgres_url, code=1).splitlines()
        bad = [line.split()[0] for line in lines if " bad " in line]
        assert bad == ["durability"]  # the server of the tests does not wait for its disk


# -- rotation -------------------------------------------------------------------------------------


def test_a_rotated_store_key_locks_out_the_old_one(
    build: Callable[..., Capri], url: str, tmp_path: Path
) -> None:
    policy = build(store_key=OLD)
    made = play(policy, 7)
    old, new = tmp_path / "old.key", tmp_path / "new.key"
    old.write_bytes(OLD)
    new.write_text(NEW.hex() + "\n")
    said = command(
        "store", "rotate-key", url, "--new-key-file", str(new), "--store-key-file", str(old)
    )
    assert "21 values" in said  # seven decisions, rewards and keys
    with pytest.raises(StorageError, match="sealed under the key with identifier"):
        policy.act([0.5], user="late", key="late")  # it runs on with the old key
    with pytest.raises(StorageError, match="sealed under the key"):
        policy.update(made[0].id, 0.1)
    policy.close()
    with pytest.raises(StorageError, match="sealed under the key"):
        build(store_key=OLD)
    again = build(store_key=NEW)
    assert again.act([0.0], user="visit 2", key="visit 2").id == made[2].id
    assert again.update(made[2].id, 0.5) is RewardStatus.DUPLICATE
    play(again, 10, "after")
    again.close_epoch(early=True)
    assert sum(record.length for record in again.epochs) == 17
    assert again.operations[-1].kind == "store key"
    assert "is the one that the store has" in command(
        "store", "rotate-key", url, "--new-key-file", str(new), code=2, CAPRI_STORE_KEY=NEW.hex()
    )


def test_a_store_without_a_key_gets_one(
    build: Callable[..., Capri], url: str, tmp_path: Path
) -> None:
    policy = build()
    play(policy, 3)
    new = tmp_path / "new.key"
    new.write_bytes(NEW)
    command("store", "rotate-key", url, "--new-key-file", str(new))
    with pytest.raises(StorageError, match="was made with a store_key"):
        policy.act([0.5], user="late", key="late")
    policy.close()
    assert play(build(store_key=NEW), 3, "after")


def test_ids_of_the_key_before_are_known_and_older_ones_are_not(
    build: Callable[..., Capri], url: str
) -> None:
    one, two = build(), build()
    first = one.act([0.5], user="a", key="a")
    command("store", "rotate-ids", url)
    second = two.act([0.5], user="b", key="b")  # two has found the new key, one has not looked
    assert one.update(second.id, 0.5) is RewardStatus.ACCEPTED
    assert two.update(first.id, 0.5) is RewardStatus.ACCEPTED
    assert one.act([0.5], user="a", key="a").number == first.number
    command("store", "rotate-ids", url)
    one.act([0.5], user="c", key="c")  # it has looked since
    assert one.update(first.id, 0.5) is RewardStatus.UNKNOWN
    assert one.update(second.id, 0.5) is RewardStatus.DUPLICATE
    assert [each.kind for each in build().operations] == ["id key", "id key"]


# -- deletion -------------------------------------------------------------------------------------


def test_forgetting_a_user_moves_nobody_else(build: Callable[..., Capri], url: str) -> None:
    """Without a budget the release is exact: it is that of the others alone, over all visits."""
    from recount import Recount, Row, released_in

    policy = build(budget=None)
    rows = []
    for place in range(9):
        decision = policy.act([0.5], user=f"{place}", key=f"{place}")
        policy.update(decision.id, 0.25)
        rows.append(Row(decision.id, decision.number, decision.epoch, decision.action_index,
                        np.array([0.5]), place != 4, [0.25] * (place != 4)))  # fmt: skip
    assert "decisions: 1\nrewards: 1\nkeys: 1\ntoo late: 0" in command(
        "store", "forget", url, "--user", "4"
    )
    assert policy.forget("4").decisions == 0
    assert policy.update(rows[4].id, 0.5) is RewardStatus.UNCOUNTED
    assert policy.act([0.5], user="5", key="5").id == rows[5].id
    policy.close_epoch(early=True)
    (released,) = released_in(url, policy.problem.kernel)
    assert released.release.participants == 9
    Recount(policy.problem, released).check(rows)
    # The limit of a lifetime stays, under a digest.
    assert policy._users is not None
    assert policy._users.epochs_of("4") == {1: 1}
    assert policy.forget("5").keys == 1  # of a released epoch only the key is left


def test_forgetting_needs_a_store_that_knows_whose_a_decision_is(tmp_path: Path) -> None:
    settings = {name: each for name, each in SETTINGS.items() if name != "contributions_per_user"}
    with (
        Capri(**settings, store=f"sqlite:///{tmp_path}/store.db") as policy,
        pytest.raises(ConfigurationError, match="knows what belongs to whom"),
    ):
        policy.forget("anybody")


# -- the check -----------------------------------------------------------------------------------

WRONG = {
    "history": "DELETE FROM history WHERE generation = 2",
    "epochs": "UPDATE epochs SET first = first - 3 WHERE number = 2",
    "ledger": "UPDATE epochs SET state = 'closed' WHERE number = 1",
    "forgetting": "INSERT INTO decisions SELECT 1, secret FROM decisions LIMIT 1",
    "users": "UPDATE users SET total = total + 1",
    "values": "UPDATE decisions SET secret = x'0102'",
    "schema": "UPDATE capri_schema SET version = version - 0.0",
}


def test_the_check_finds_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, rollback_guard = tmp_path / "store.db", f"{tmp_path}/guard.json"
    with Capri(**SETTINGS, store=f"sqlite:///{file}", rollback_guard=rollback_guard) as policy:
        play(policy, 11)
        policy.close_epoch(early=True)
        play(policy, 3, "more")
        policy.close_epoch(early=True)
        play(policy, 3, "open")
    monkeypatch.undo()  # synchronous = FULL again
    said = command("check", f"sqlite:///{file}", "--rollback-guard", rollback_guard)
    assert " bad " not in said
    assert " warning " not in said
    assert " warning " in command("check", f"sqlite:///{file}")  # no rollback guard
    found = {}
    for name, statement in WRONG.items():
        sick = tmp_path / f"{name}.db"
        shutil.copyfile(file, sick)
        os.chmod(sick, 0o600)
        with sqlite3.connect(sick) as connection:
            connection.execute(statement)
        connection.close()
        lines = CliRunner().invoke(app, ["check", f"sqlite:///{sick}"]).output.splitlines()
        found[name] = [line.split()[0] for line in lines if " bad " in f"{line} "]
    assert found.pop("schema") == []
    assert {name: name in said for name, said in found.items()} == dict.fromkeys(found, True)
