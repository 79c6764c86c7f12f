"""What operators do to a store: forget a user, rotate its keys, copy it, say what it keeps.

**Forget one user.** Of epochs that still take decisions or rewards every value of the user goes. A
decision keeps its slot and stays a visit that counts for nothing, like one without a context:
nobody else's slot or decision moves, and the number of visits, which is public, stays. Keyed
decisions of the user go, of whatever epoch. Left are: sums of epochs that are closed or released
(noise hides the user in them, and they cannot be taken back), and how often a digest took part,
without which the limit of a lifetime would begin anew. That somebody asked is noted nowhere.

**Rotate keys**: the owner's key that seals the store, and the key of the ids. Each is one
transaction and one publication, so that no process writes by the old key afterwards: whoever
decides or rewards compares the generation in its own transaction, looks again, and finds the other
key. A store key is held by processes: those with the old one are refused until they are opened with
the new one. The key of ids is in the store: processes go on, and ids that were made by the key
before are understood until it is rotated once more.

What was deleted or sealed anew can be read in the log of an SQLite file, and in the pages of a
server, until the database has forgotten it: whoever calls goes on with ``database.forget`` until
that says so.

**Copy**: all tables at one point in time, row by row, into an empty store. The same tables are on
either kind of database, so a copy of a server's is a file, and a file goes back to a server. Rows
that were deleted are in no page of a copy. Secret columns are copied as they are: sealed where
there is a store key, and else as readable as the store. The source is only read.

**Say what is kept**, where and for how long, for a privacy officer; and what of it is about one
person, for the person who asks.
"""

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.epoch.rewards import RewardTerms
from capri.errors import ConfigurationError, StorageError
from capri.store.codec import Played, blank, owner_of
from capri.store.repository import Forgotten
from capri.store.rollback import Checkpoint
from capri.store.seal import SECRET_BYTES, Seal, checked_key
from capri.store.tables import TABLES, Row
from capri.store.transaction import Database, Transaction
from capri.store.view import OPEN, WAITING, read_digest

if TYPE_CHECKING:
    from capri.store.sql import SqlRepository

# Secret columns by table, with the columns that make up the place of a value.
_SEALED = {"decisions": "number", "rewards": "number", "draws": "number", "keys": "digest"}
_UNRELEASED = (
    "SELECT number FROM epochs WHERE state IN ('open', 'waiting', 'closed') ORDER BY number"
)
_EPOCHS = "SELECT number, first, last, state FROM epochs WHERE state <> 'learnt' ORDER BY number"
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class UserValues:
    """Where a user's values are; values of others that do not say whose they are."""

    decisions: dict[int, list[int]]  # by epoch
    keys: list[str]
    unowned: int


def has_seen(repository: "SqlRepository", digests: Sequence[str]) -> bool:
    """Whether one of some digests ever took part."""
    sql = "SELECT digest FROM users WHERE digest"
    return bool(repository.database.read(lambda transaction: transaction.among(sql, digests)))


def forget_user(
    repository: "SqlRepository", digests: Collection[str], numbers: Collection[int] = ()
) -> Forgotten:
    """Delete what is kept of the user with this digest, or with one of several.

    ``numbers``: of decisions whose ids the user has shown, where the store knows no users.

    All values are opened to find those of the user, which holds up nobody; the transaction that
    deletes them is a short one.
    """
    found = repository.database.read(
        lambda transaction: find_user(repository, transaction, digests, numbers)
    )
    if not found.decisions and not found.keys:
        return Forgotten(unowned=found.unowned)
    return repository.database.write(lambda transaction: _delete(repository, transaction, found))


def find_user(
    repository: "SqlRepository",
    transaction: Transaction,
    digests: Collection[str],
    numbers: Collection[int] = (),
) -> UserValues:
    """Where the values of a user are."""
    decisions: dict[int, list[int]] = {}
    unowned = 0
    for epoch, first, last, _ in transaction.rows(_EPOCHS):
        limits = (first, _ENDLESS if last is None else last)
        rows = transaction.rows(
            "SELECT number, secret FROM decisions WHERE number >= ? AND number < ?", limits
        )
        made = [row[0] for row in rows]
        values = repository.rows.seal.open_many(
            "decisions", made, "secret", [row[1] for row in rows]
        )
        for number, value in zip(made, values, strict=True):
            owner = owner_of(value)
            unowned += owner is None and value[0] == 0
            if owner in digests or number in numbers:
                decisions.setdefault(epoch, []).append(number)
    kept = transaction.rows("SELECT digest, secret, number FROM keys")
    names = [row[0] for row in kept]
    values = repository.rows.seal.open_many("keys", names, "secret", [row[1] for row in kept])
    keys = [
        row[0]
        for row, each in zip(kept, values, strict=True)
        if owner_of(each) in digests or row[2] in numbers
    ]
    return UserValues(decisions, keys, unowned)


def _delete(repository: "SqlRepository", transaction: Transaction, found: UserValues) -> Forgotten:
    """Blank decisions whose epochs still take rewards; rows of a closed epoch are added up."""
    transaction.join_epochs(sorted(found.decisions))
    states = {row[0]: row[3] for row in transaction.rows(_EPOCHS)}  # once all are joined
    decisions = rewards = too_late = keys = 0
    for epoch, numbers in found.decisions.items():
        if states.get(epoch) not in (OPEN, WAITING):
            too_late += len(numbers)
            continue
        rows = transaction.among("SELECT number, secret FROM decisions WHERE number", numbers)
        for number, secret in rows:
            value = blank(repository.rows.seal.open("decisions", number, "secret", secret))
            sealed = repository.rows.seal.seal("decisions", number, "secret", value)
            transaction.run("UPDATE decisions SET secret = ? WHERE number = ?", (sealed, number))
            rewards += transaction.run("DELETE FROM rewards WHERE number = ?", (number,))
            decisions += 1
    for name in found.keys:
        keys += transaction.run("DELETE FROM keys WHERE digest = ?", (name,))
    for table in ("decisions", "rewards", "keys"):
        repository.rows.scrub_small(transaction, table)
    return Forgotten(decisions, rewards, keys, too_late, found.unowned)


def rotate_store_key(repository: "SqlRepository", new: bytes) -> int:
    """Seal everything under another key of the owner; how many values there were.

    A store without a key gets one. The values of before are deleted, and are overwritten when the
    database has forgotten them (:meth:`~capri.store.transaction.Database.forget_soon`).
    """
    seal = Seal(checked_key(new), repository.store_id)
    if seal.identifier == repository.rows.seal.identifier:
        raise ConfigurationError("the new store key is the one that the store has: give another")

    def rotate(transaction: Transaction) -> int:
        generation = _alone(transaction)
        count = 0
        for table, key in _SEALED.items():
            rows = transaction.rows(f"SELECT {key}, secret FROM {table}")
            places = [row[0] for row in rows]
            opened = repository.rows.seal.open_many(
                table, places, "secret", [row[1] for row in rows]
            )
            sealed = seal.seal_many(table, places, "secret", opened)
            for place, secret in zip(places, sealed, strict=True):
                transaction.run(f"UPDATE {table} SET secret = ? WHERE {key} = ?", (secret, place))
            transaction.scrub(table)
            count += len(rows)
        secret = seal.seal("policy", 1, "secret", _secret(repository, transaction))
        transaction.run("UPDATE policy SET secret = ? WHERE id = 1", (secret,))
        record = {"identifier": seal.identifier.hex()}
        repository.note_operation(transaction, generation, "store key", record, time.time())
        return count

    return repository.database.write(rotate)


def rotate_id_key(repository: "SqlRepository") -> None:
    """Make ids by a new key; those of the one before are still understood.

    To be followed by forgetting, as :func:`rotate_store_key` is.
    """
    key = secrets.token_bytes(SECRET_BYTES)

    def rotate(transaction: Transaction) -> None:
        generation = _alone(transaction)
        old = _secret(repository, transaction)
        salt = old[SECRET_BYTES : 2 * SECRET_BYTES]
        sealed = repository.rows.seal.seal("policy", 1, "secret", key + salt + old[:SECRET_BYTES])
        transaction.run("UPDATE policy SET secret = ? WHERE id = 1", (sealed,))
        repository.note_operation(transaction, generation, "id key", {}, time.time())

    repository.database.write(rotate)


def _alone(transaction: Transaction) -> int:
    """Hold every epoch that anybody may write to; the generation."""
    transaction.hold_policy()
    for (number,) in transaction.rows(_UNRELEASED):
        transaction.hold_epoch(number)
    return transaction.lock()[1]


def _secret(repository: "SqlRepository", transaction: Transaction) -> bytes:
    found = transaction.row("SELECT secret FROM policy")
    assert found is not None
    return repository.rows.seal.open("policy", 1, "secret", found[0])


def copy_store(source: Database, target: Database) -> Checkpoint:
    """Copy a store into an empty one; how far it has come."""
    store_id, rows, generation, digest = source.read(_everything)

    def fill(transaction: Transaction) -> None:
        transaction.hold_policy()
        if transaction.row("SELECT id FROM policy") is not None:
            raise StorageError(
                f"{target!r} holds a policy already: copy into an empty place. Nothing was changed"
            )
        for table, content in rows.items():
            if content:
                transaction.insert(table, content)

    target.write(fill)
    return Checkpoint(store_id, generation, digest)


def _everything(transaction: Transaction) -> tuple[str, dict[str, list[Row]], int, str]:
    rows = {
        name: transaction.rows(f"SELECT {', '.join(table.columns)} FROM {name}")
        for name, table in TABLES.items()
    }
    if not rows["policy"]:
        raise StorageError("there is no policy in this store: nothing was copied")
    generation = transaction.counter()[1]
    return str(rows["policy"][0][1]), rows, generation, read_digest(transaction, generation) or ""


# -- what is kept, for how long, and what of it is about one person --------------------------------

_FOR_GOOD = "until the store is deleted"
_KEYS = "30 days after the wait for rewards, or key_retention"
Kept = dict[str, float | str | None]


def retention(repository: "SqlRepository") -> list[Kept]:
    """What is kept where, about whom and for how long, from the configuration of a store."""
    found = repository.configuration()
    assert found is not None
    values, sealed = found[0], bool(repository.rows.seal.identifier)
    if values.get("kind") is not None:
        return _of_reports(values)
    problem, secret = values["problem"], "sealed" if sealed else "NOT sealed"
    wait = RewardTerms.from_dict(problem["rewards"]).wait
    waits = f"{wait}" if isinstance(wait, timedelta) else f"{wait} decisions"
    until = f"the release of its epoch: its last decision, {waits} more, and some seconds"
    rows = [
        _row("decisions", "context, action, propensity", secret, until),
        _row("rewards", "the sum, first, last or largest of a decision's rewards", secret, until),
        _row("draws", "what a release is about to publish", secret, "seconds"),
        _row("keys", "digest of a request's key, action, propensity", secret, _KEYS),
    ]
    if problem["limit"] is not None:
        rows.append(
            _row("users, visits", "digest of an id, epochs it came in", "digest", _FOR_GOOD)
        )
    return [*rows, *_of_all()]


def _of_reports(values: dict[str, Any]) -> list[Kept]:
    """An aggregator, or an organisation's ledger: nothing of either needs to be kept secret."""
    if "organisation" in values:
        return [_row("operations", "promises, plans, releases", "about nobody", _FOR_GOOD)]
    return [
        _row("reports", "reports, private when they are made", "private", "its last reading"),
        *_of_all(),
    ]


def _of_all() -> list[Kept]:
    return [
        _row("epochs, laws", "plans, and releases with noise", "private", _FOR_GOOD),
        _row("history, operations", "digests; what operators did", "about nobody", _FOR_GOOD),
        _row("backups", "all of the above, as it was then", "as above", "you delete them"),
        _row("logs", "of the service: no context, action, reward or id", "about nobody", "yours"),
    ]


def _row(where: str, what: str, form: str, until: str) -> Kept:
    return {"where": where, "what": what, "form": form, "until": until}


def held_about(
    repository: "SqlRepository", digests: Collection[str], numbers: Collection[int] = ()
) -> dict[str, Any]:
    """All that a store holds about one person, in plain values; ``numbers``: of their decisions."""

    def look(unit: Transaction) -> dict[str, Any]:
        found = find_user(repository, unit, digests, numbers)
        made = sorted(number for each in found.decisions.values() for number in each)
        visits: dict[int, int] = {}
        for digest in digests:
            for epoch, count in unit.rows(
                "SELECT epoch, visits FROM visits WHERE digest = ? ORDER BY epoch", (digest,)
            ):
                visits[int(epoch)] = visits.get(int(epoch), 0) + int(count)
        return {
            "store": repository.store_id,
            "decisions": _decisions(repository, unit, made),
            "keyed_decisions": _keyed(repository, unit, found.keys),
            "contributions_by_epoch": visits,
            "not_found": (
                "sums of released epochs, in which noise hides everybody, cannot be told apart by "
                "person; copies that were made of this store are not looked at"
            ),
        }

    return repository.database.read(look)


def _decisions(
    repository: "SqlRepository", unit: Transaction, numbers: list[int]
) -> list[dict[str, Any]]:
    if not numbers:
        return []
    rows = unit.among("SELECT number, secret FROM decisions WHERE number", numbers)
    places = [row[0] for row in rows]
    seal, rewards = (
        repository.rows.seal,
        repository.rows.combined(unit, np.array(places, dtype=int)),
    )
    played = Played.read(seal.open_many("decisions", places, "secret", [row[1] for row in rows]))
    return [
        {
            "id": repository.ids.text(number),
            "counts": bool(played.status[at] == 0),  # else a slot, of which nothing is left
            "context": played.numbers[at].tolist(),
            "action_index": int(played.action[at]),
            "propensity": float(played.propensity[at]),
            "reward": rewards[number].total if number in rewards else None,
        }
        for at, number in enumerate(places)
    ]


def _keyed(repository: "SqlRepository", unit: Transaction, keys: list[str]) -> list[dict[str, Any]]:
    if not keys:
        return []
    rows = unit.among("SELECT digest, secret, number, epoch, expires FROM keys WHERE digest", keys)
    names = [row[0] for row in rows]
    opened = repository.rows.seal.open_many("keys", names, "secret", [row[1] for row in rows])
    played = Played.read(opened)
    return [
        {
            "id": repository.ids.text(row[2]),
            "epoch": int(row[3]),
            "action_index": int(played.action[at]),
            "propensity": float(played.propensity[at]),
            "kept_until": float(row[4]),
        }
        for at, row in enumerate(rows)
    ]
