"""What is kept about one person: told, deleted, and listed by table, with ids and without."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capri import Capri, LocalCapri, OrganisationLedger
from capri.cli import app
from operated_stores import command
from stored_policies import SETTINGS

pytestmark = pytest.mark.usefixtures("unforced")
KEY = bytes(range(32))


def opened(url: str, **changes: object) -> Capri:
    return Capri(**SETTINGS | {"store": url} | changes)


def test_a_user_with_an_id_is_told_all_and_then_nothing(url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "ann.json")
    with opened(url, contributions_per_user=3) as policy:
        decision = policy.act([0.4], user="ann", key="visit")
        policy.update(decision, 0.75)
        policy.act([0.8], user="bob")
        assert "2 decisions, 1 epochs" in command("store", "access", url, target, "--user", "ann")
        told = json.loads(Path(target).read_text())
        (found,) = told["decisions"]
        assert found["context"] == [0.4]
        assert (found["id"], found["action_index"]) == (decision.id, decision.action_index)
        assert found["reward"] == pytest.approx(0.75)
        assert told["contributions_by_epoch"] == {"1": 1}
        assert Path(target).stat().st_mode & 0o077 == 0
        command("store", "forget", url, "--user", "ann")
        command("store", "access", url, target, "--user", "ann")
        left = json.loads(Path(target).read_text())
        assert left["decisions"] == left["keyed_decisions"] == []
        assert left["contributions_by_epoch"] == {"1": 1}  # the limit is for life


def test_a_user_without_an_id_is_found_by_what_they_show(url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "somebody.json")
    with opened(url) as policy:
        mine, other = policy.act([0.4], key="mine"), policy.act([0.8])
        policy.update(mine, 0.5)
        asked = ("--decision", mine.id, "--decision", "made up")
        assert "2 decisions" in command("store", "access", url, target, *asked)
        assert json.loads(Path(target).read_text())["decisions"][0]["context"] == [0.4]
        said = command("store", "forget", url, *asked)
        assert "decisions: 1" in said
        assert "keys: 1" in said
        command("store", "access", url, target, *asked)
        shown = json.loads(Path(target).read_text())
        (slot,) = shown["decisions"]  # whose it was is not known, and it holds nothing
        assert (slot["counts"], slot["context"], slot["reward"]) == (False, [0.0], None)
        assert shown["keyed_decisions"] == []
        assert "2 decisions" not in command("store", "access", url, target, "--decision", other.id)
        command("store", "forget", url, "--decision", "made up", code=1)


def test_one_way_to_name_a_person_at_a_time(url: str, tmp_path: Path) -> None:
    opened(url).close()
    for asked in ((), ("--user", "ann", "--decision", "x")):
        assert "one of both" in command("store", "access", url, str(tmp_path / "a"), *asked, code=2)


def test_what_is_kept_follows_from_the_configuration(url: str) -> None:
    with opened(url, contributions_per_user=2, reward_wait=7):
        said = command("store", "retention", url)
    assert "NOT sealed" in said
    assert "7 decisions more" in said
    assert "users, visits" in said


def test_every_table_of_a_store_is_listed(tmp_path: Path) -> None:
    """What is kept and not listed here would be kept in silence."""
    from capri.store.tables import TABLES

    places = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("policy", "fleet", "ledger")}
    with opened(places["policy"], contributions_per_user=2, store_key=KEY):
        pass
    settings = {name: value for name, value in SETTINGS.items() if name != "budget"}
    LocalCapri(**settings, budget=SETTINGS["budget"].__class__(4.0), store=places["fleet"]).close()
    OrganisationLedger(places["ledger"], organisation="Ada").close()
    (tmp_path / "key").write_bytes(KEY)
    key = ("--store-key-file", str(tmp_path / "key"))
    said = command("store", "retention", places["policy"], *key)
    assert "NOT sealed" not in said
    said += command("store", "retention", places["fleet"])
    said += command("store", "retention", places["ledger"])
    about_nobody = {"policy", "streams", "counter", "segments", "catalogues"}
    assert {name for name in TABLES if name not in said} <= about_nobody


def test_a_store_that_nobody_came_to_is_checked(url: str) -> None:
    opened(url).close()
    # How durable a test's database is does not matter here.
    assert "0, of which 0 are released" in CliRunner().invoke(app, ["check", url]).output


def test_a_ledger_is_checked_by_its_own_command(url: str) -> None:
    OrganisationLedger(url, organisation="Ada").close()
    assert "capri ledger check" in command("check", url, code=1)
    assert "0 entries" in command("ledger", "check", url)
