"""Rollback guards: an older copy is refused wherever it comes to be; none is begun in silence."""

import json
import os
import shutil
from pathlib import Path

import pytest

from capri import Capri, ConfigurationError, PrivacyLeakWarning, StorageError
from capri.privacy.certificate.verify import verified
from operated_stores import SETTINGS, command, forget_what_was_seen, play

pytestmark = pytest.mark.usefixtures("unforced")


def rollback_guards(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """The address of a rollback guard that is not there yet."""
    if kind == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(folder / "guard.json") if kind == "file" else f"sqlite:///{folder}/guard.db"


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres"])
def test_an_older_copy_is_refused_by_a_machine_that_has_seen_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollback_guard = rollback_guards(kind, tmp_path, request)
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    policy = Capri(**SETTINGS, store=f"sqlite:///{file}", rollback_guard=rollback_guard)
    play(policy, 3)
    command("backup", f"sqlite:///{file}", str(copy))
    play(policy, 10, "later")
    policy.close_epoch(early=True)
    assert policy.certificate().digests["store"]["guarded"]
    assert verified(policy.certificate().to_json().encode()) == policy.certificate()
    assert any(
        "a rollback guard outside of it lets" in each for each in policy.certificate().assumptions
    )
    policy.close()
    for name in os.listdir(tmp_path):
        if name.startswith("store.db"):
            (tmp_path / name).unlink()
    shutil.copyfile(copy, file)
    forget_what_was_seen(monkeypatch)
    with pytest.raises(StorageError, match="is an older copy"):
        Capri.open(f"sqlite:///{file}", rollback_guard=rollback_guard)
    with pytest.raises(StorageError, match="is an older copy"):
        Capri(**SETTINGS, store=f"sqlite:///{file}", rollback_guard=rollback_guard)
    assert "older copy" in command(
        "check", f"sqlite:///{file}", "--rollback-guard", rollback_guard, code=1
    )
    # Without the guard nobody notices: the store warns that it has one, the certificate says so.
    forget_what_was_seen(monkeypatch)
    with pytest.warns(PrivacyLeakWarning, match="has a rollback guard and was opened without it"):
        unwarned = Capri.open(f"sqlite:///{file}")
    with unwarned:
        certificate = unwarned.certificate()
        assert not certificate.digests["store"]["guarded"]
        assert any("There is no rollback guard" in each for each in certificate.assumptions)
        assert "without a rollback guard" in certificate.to_text()


def test_a_rollback_guard_that_is_damaged_or_the_store_itself_is_refused(tmp_path: Path) -> None:
    url, rollback_guard = f"sqlite:///{tmp_path}/store.db", tmp_path / "guard.json"
    with pytest.raises(ConfigurationError, match="outside of the store"):
        Capri(**SETTINGS, store=url, rollback_guard=url)
    with Capri(**SETTINGS, store=url, rollback_guard=str(rollback_guard)) as policy:
        play(policy, 1)
    assert json.loads(rollback_guard.read_text())
    rollback_guard.write_text("{")
    with pytest.raises(StorageError, match=r"rollback guard.*damaged"):
        Capri.open(url, rollback_guard=str(rollback_guard))
    with pytest.raises(ConfigurationError, match="with a store only"):
        Capri(**SETTINGS, rollback_guard=str(rollback_guard))


def test_nothing_is_released_while_the_rollback_guard_is_away(tmp_path: Path) -> None:
    url, rollback_guard = f"sqlite:///{tmp_path}/store.db", tmp_path / "guard.json"
    with Capri(**SETTINGS, store=url, rollback_guard=str(rollback_guard)) as policy:
        play(policy, 3)
        whole = rollback_guard.read_text()
        rollback_guard.write_text("")
        with pytest.raises(StorageError, match="rollback guard"):
            policy.close_epoch(early=True)
        rollback_guard.write_text(whole)
        assert not policy.ledger.events
        policy.close_epoch(early=True)
        assert len(policy.ledger.events) == 1


def test_two_copies_that_go_on_side_by_side_are_told_by_the_rollback_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    rollback_guard = f"{tmp_path}/guard.json"
    with Capri(**SETTINGS, store=one, rollback_guard=rollback_guard) as policy:
        play(policy, 3)
    command("backup", one, f"{tmp_path}/two.db")
    with Capri.open(one, rollback_guard=rollback_guard) as policy:
        policy.set_mode("shadow")
    forget_what_was_seen(monkeypatch)
    with pytest.warns(PrivacyLeakWarning, match="opened without it"):
        policy = Capri.open(two)
    with policy:
        policy.set_mode("default", action="red")
        policy.set_mode("active")
    forget_what_was_seen(monkeypatch)
    with pytest.raises(StorageError, match="went another way"):
        Capri.open(two, rollback_guard=rollback_guard)


# -- a rollback guard that knows nothing ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres"])
def test_a_rollback_guard_that_is_gone_is_not_taken_for_a_new_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that is not mounted is an empty folder: an older copy must not pass by it."""
    share = tmp_path / "share"
    share.mkdir()
    rollback_guard = rollback_guards(kind, share, request)
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    url = f"sqlite:///{file}"
    with Capri(**SETTINGS, store=url, rollback_guard=rollback_guard) as policy:
        play(policy, 3)
        command("backup", url, str(copy))
        policy.close_epoch(early=True)
        assert len(policy.ledger.events) == 1
    for each in tmp_path.glob("store.db*"):
        each.unlink()
    shutil.copyfile(copy, file)
    _unmount(kind, share, rollback_guard)
    forget_what_was_seen(monkeypatch)
    before = file.read_bytes()
    with pytest.raises(StorageError, match=r"knows nothing of .* which has a past"):
        Capri.open(url, rollback_guard=rollback_guard)
    with pytest.raises(StorageError, match="knows nothing"):
        Capri(**SETTINGS, store=url, rollback_guard=rollback_guard)
    assert "knows nothing" in command("check", url, "--rollback-guard", rollback_guard, code=1)
    assert os.listdir(share) == []  # nobody has begun one
    assert file.read_bytes() == before
    with Capri.open(
        url, rollback_guard=rollback_guard, new_rollback_guard=True
    ) as policy:  # who says so, answers for it
        assert [each.kind for each in policy.operations] == ["rollback_guard", "rollback_guard"]
    Capri.open(url, rollback_guard=rollback_guard).close()
    monkeypatch.undo()  # synchronous = FULL again
    assert " bad " not in command("check", url, "--rollback-guard", rollback_guard)


def _unmount(kind: str, share: Path, rollback_guard: str) -> None:
    if kind == "postgres":
        import psycopg

        with psycopg.connect(rollback_guard) as server:
            server.execute("DROP TABLE capri_rollback_guard")
    for each in share.iterdir():
        each.unlink()


def test_a_policy_that_runs_does_not_begin_its_rollback_guard_again(tmp_path: Path) -> None:
    url, rollback_guard = f"sqlite:///{tmp_path}/store.db", tmp_path / "guard.json"
    with Capri(
        **SETTINGS, store=url, rollback_guard=str(rollback_guard), new_rollback_guard=True
    ) as policy:
        play(policy, 3)
        whole = rollback_guard.read_bytes()
        rollback_guard.unlink()
        with pytest.raises(StorageError, match="knows nothing"):
            policy.close_epoch(early=True)
        assert not rollback_guard.exists()
        rollback_guard.write_bytes(whole)
        assert not policy.ledger.events
        policy.close_epoch(early=True)
        assert len(policy.ledger.events) == 1


def test_a_store_from_before_rollback_guards_were_noted_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a past and no line about a rollback guard: as releases before this one left it."""
    url, rollback_guard = f"sqlite:///{tmp_path}/store.db", str(tmp_path / "guard.json")
    with Capri(**SETTINGS, store=url) as policy:
        play(policy, 3)
        seen = policy.certificate().digests["store"]
    Capri.open(url).close()  # without a rollback guard, as ever
    with pytest.raises(StorageError, match="knows nothing"):
        Capri.open(url, rollback_guard=rollback_guard)  # its first one: that is to be said
    note = {"generation": seen["generation"], "digest": seen["digest"]}
    Path(rollback_guard).write_text(json.dumps({seen["store_id"]: note}))
    with Capri.open(url, rollback_guard=rollback_guard) as policy:  # one that knew it all along
        assert [each.kind for each in policy.operations] == ["rollback_guard"]
    with Capri.open(url, rollback_guard=rollback_guard) as policy:
        assert len(policy.operations) == 1
    with pytest.raises(ConfigurationError, match="give rollback_guard"):
        Capri.open(url, new_rollback_guard=True)
    with pytest.raises(ConfigurationError, match="with a store only"):
        Capri(**SETTINGS, new_rollback_guard=True)


def test_two_who_begin_at_once_are_not_taken_for_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads the rollback guard before the other has begun it, and the store after."""
    from capri.store.rollback import FileGuard

    url, rollback_guard = f"sqlite:///{tmp_path}/store.db", str(tmp_path / "guard.json")
    read = FileGuard.read
    opened: list[Capri] = []

    def read_late(self: FileGuard, line: str) -> object:
        monkeypatch.undo()
        found = read(self, line)
        opened.append(Capri(**SETTINGS, store=url, rollback_guard=rollback_guard))
        play(opened[0], 1)
        return found

    monkeypatch.setattr(FileGuard, "read", read_late)
    with Capri(**SETTINGS, store=url, rollback_guard=rollback_guard) as policy:
        assert [each.kind for each in policy.operations] == ["rollback_guard"]
        play(policy, 1, "mine")
    opened[0].close()
