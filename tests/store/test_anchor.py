"""Anchors: an older copy is refused wherever it comes to be, and no anchor is begun in silence."""

import json
import os
import shutil
from pathlib import Path

import pytest

from capri import Capri, ConfigurationError, PrivacyLeakWarning, StorageError
from operated_stores import SETTINGS, command, forget_what_was_seen, play

pytestmark = pytest.mark.usefixtures("unforced")


def anchors(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """The address of an anchor that is not there yet."""
    if kind == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(folder / "anchor.json") if kind == "file" else f"sqlite:///{folder}/anchor.db"


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres"])
def test_an_older_copy_is_refused_by_a_machine_that_has_seen_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor = anchors(kind, tmp_path, request)
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    policy = Capri(**SETTINGS, store=f"sqlite:///{file}", anchor=anchor)
    play(policy, 3)
    command("backup", f"sqlite:///{file}", str(copy))
    play(policy, 10, "later")
    policy.close_epoch(early=True)
    assert policy.certificate().digests["store"]["anchored"]
    assert any("an anchor outside of it lets" in each for each in policy.certificate().assumptions)
    policy.close()
    for name in os.listdir(tmp_path):
        if name.startswith("store.db"):
            (tmp_path / name).unlink()
    shutil.copyfile(copy, file)
    forget_what_was_seen(monkeypatch)
    with pytest.raises(StorageError, match="is an older copy"):
        Capri.open(f"sqlite:///{file}", anchor=anchor)
    with pytest.raises(StorageError, match="is an older copy"):
        Capri(**SETTINGS, store=f"sqlite:///{file}", anchor=anchor)
    assert "older copy" in command("check", f"sqlite:///{file}", "--anchor", anchor, code=1)
    # Without the anchor nobody notices: the store warns that it has one, the certificate says so.
    forget_what_was_seen(monkeypatch)
    with pytest.warns(PrivacyLeakWarning, match="has an anchor and was opened without it"):
        unwarned = Capri.open(f"sqlite:///{file}")
    with unwarned:
        certificate = unwarned.certificate()
        assert not certificate.digests["store"]["anchored"]
        assert any("There is no anchor" in each for each in certificate.assumptions)
        assert "without an anchor" in certificate.to_text()


def test_an_anchor_that_is_damaged_or_the_store_itself_is_refused(tmp_path: Path) -> None:
    url, anchor = f"sqlite:///{tmp_path}/store.db", tmp_path / "anchor.json"
    with pytest.raises(ConfigurationError, match="outside of the store"):
        Capri(**SETTINGS, store=url, anchor=url)
    with Capri(**SETTINGS, store=url, anchor=str(anchor)) as policy:
        play(policy, 1)
    assert json.loads(anchor.read_text())
    anchor.write_text("{")
    with pytest.raises(StorageError, match=r"anchor.*damaged"):
        Capri.open(url, anchor=str(anchor))
    with pytest.raises(ConfigurationError, match="with a store only"):
        Capri(**SETTINGS, anchor=str(anchor))


def test_nothing_is_released_while_the_anchor_is_away(tmp_path: Path) -> None:
    url, anchor = f"sqlite:///{tmp_path}/store.db", tmp_path / "anchor.json"
    with Capri(**SETTINGS, store=url, anchor=str(anchor)) as policy:
        play(policy, 3)
        whole = anchor.read_text()
        anchor.write_text("")
        with pytest.raises(StorageError, match="anchor"):
            policy.close_epoch(early=True)
        anchor.write_text(whole)
        assert not policy.ledger.events
        policy.close_epoch(early=True)
        assert len(policy.ledger.events) == 1


def test_two_copies_that_go_on_side_by_side_are_told_by_the_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    anchor = f"{tmp_path}/anchor.json"
    with Capri(**SETTINGS, store=one, anchor=anchor) as policy:
        play(policy, 3)
    command("backup", one, f"{tmp_path}/two.db")
    with Capri.open(one, anchor=anchor) as policy:
        policy.set_mode("shadow")
    forget_what_was_seen(monkeypatch)
    with pytest.warns(PrivacyLeakWarning, match="opened without it"):
        policy = Capri.open(two)
    with policy:
        policy.set_mode("default", action="red")
        policy.set_mode("active")
    forget_what_was_seen(monkeypatch)
    with pytest.raises(StorageError, match="went another way"):
        Capri.open(two, anchor=anchor)


# -- an anchor that knows nothing -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres"])
def test_an_anchor_that_is_gone_is_not_taken_for_a_new_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that is not mounted is an empty folder: an older copy must not pass by it."""
    share = tmp_path / "share"
    share.mkdir()
    anchor = anchors(kind, share, request)
    file, copy = tmp_path / "store.db", tmp_path / "copy.db"
    url = f"sqlite:///{file}"
    with Capri(**SETTINGS, store=url, anchor=anchor) as policy:
        play(policy, 3)
        command("backup", url, str(copy))
        policy.close_epoch(early=True)
        assert len(policy.ledger.events) == 1
    for each in tmp_path.glob("store.db*"):
        each.unlink()
    shutil.copyfile(copy, file)
    _unmount(kind, share, anchor)
    forget_what_was_seen(monkeypatch)
    before = file.read_bytes()
    with pytest.raises(StorageError, match=r"knows nothing of .* which has a past"):
        Capri.open(url, anchor=anchor)
    with pytest.raises(StorageError, match="knows nothing"):
        Capri(**SETTINGS, store=url, anchor=anchor)
    assert "knows nothing" in command("check", url, "--anchor", anchor, code=1)
    assert os.listdir(share) == []  # nobody has begun one
    assert file.read_bytes() == before
    with Capri.open(url, anchor=anchor, new_anchor=True) as policy:  # who says so, answers for it
        assert [each.kind for each in policy.operations] == ["anchor", "anchor"]
    Capri.open(url, anchor=anchor).close()
    monkeypatch.undo()  # synchronous = FULL again
    assert " bad " not in command("check", url, "--anchor", anchor)


def _unmount(kind: str, share: Path, anchor: str) -> None:
    if kind == "postgres":
        import psycopg

        with psycopg.connect(anchor) as server:
            server.execute("DROP TABLE capri_anchor")
    for each in share.iterdir():
        each.unlink()


def test_a_policy_that_runs_does_not_begin_its_anchor_again(tmp_path: Path) -> None:
    url, anchor = f"sqlite:///{tmp_path}/store.db", tmp_path / "anchor.json"
    with Capri(**SETTINGS, store=url, anchor=str(anchor), new_anchor=True) as policy:
        play(policy, 3)
        whole = anchor.read_bytes()
        anchor.unlink()
        with pytest.raises(StorageError, match="knows nothing"):
            policy.close_epoch(early=True)
        assert not anchor.exists()
        anchor.write_bytes(whole)
        assert not policy.ledger.events
        policy.close_epoch(early=True)
        assert len(policy.ledger.events) == 1


def test_a_store_from_before_anchors_were_noted_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a past and no line about an anchor: as releases before this one left it."""
    url, anchor = f"sqlite:///{tmp_path}/store.db", str(tmp_path / "anchor.json")
    with Capri(**SETTINGS, store=url) as policy:
        play(policy, 3)
        seen = policy.certificate().digests["store"]
    Capri.open(url).close()  # without an anchor, as ever
    with pytest.raises(StorageError, match="knows nothing"):
        Capri.open(url, anchor=anchor)  # its first one: that is to be said
    note = {"generation": seen["generation"], "digest": seen["digest"]}
    Path(anchor).write_text(json.dumps({seen["store_id"]: note}))
    with Capri.open(url, anchor=anchor) as policy:  # one that knew it all along
        assert [each.kind for each in policy.operations] == ["anchor"]
    with Capri.open(url, anchor=anchor) as policy:
        assert len(policy.operations) == 1
    with pytest.raises(ConfigurationError, match="give the anchor"):
        Capri.open(url, new_anchor=True)
    with pytest.raises(ConfigurationError, match="with a store only"):
        Capri(**SETTINGS, new_anchor=True)


def test_two_who_begin_at_once_are_not_taken_for_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads the anchor before the other has begun it, and the store after."""
    from capri.store.rollback import FileAnchor

    url, anchor = f"sqlite:///{tmp_path}/store.db", str(tmp_path / "anchor.json")
    read = FileAnchor.read
    opened: list[Capri] = []

    def read_late(self: FileAnchor, line: str) -> object:
        monkeypatch.undo()
        found = read(self, line)
        opened.append(Capri(**SETTINGS, store=url, anchor=anchor))
        play(opened[0], 1)
        return found

    monkeypatch.setattr(FileAnchor, "read", read_late)
    with Capri(**SETTINGS, store=url, anchor=anchor) as policy:
        assert [each.kind for each in policy.operations] == ["anchor"]
        play(policy, 1, "mine")
    opened[0].close()
