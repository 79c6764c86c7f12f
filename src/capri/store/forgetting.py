"""Forget one user: what a deletion can do, and what it cannot.

Of epochs that still take decisions or rewards every value of the user goes. A decision keeps its
slot and stays a visit that counts for nothing, like one without a context: nobody else's slot or
decision moves, and the number of visits, which is public, stays. Keyed decisions of the user go, of
whatever epoch. Left are: sums of epochs that are closed or released (noise hides the user in them,
and they cannot be taken back), and how often a digest took part, without which the limit of a
lifetime would begin anew. That somebody asked is noted nowhere.

What was deleted can be read in the log of an SQLite file, and in the pages of a server, until the
database has forgotten it: whoever calls goes on with ``database.forget`` until that says so.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capri.store.records import blank, owner_of
from capri.store.repository import Forgotten
from capri.store.transaction import Transaction
from capri.store.view import OPEN, WAITING

if TYPE_CHECKING:
    from capri.store.sql import SqlRepository

_EPOCHS = "SELECT number, first, last, state FROM epochs WHERE state <> 'learnt' ORDER BY number"
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class _Found:
    """Where a user's values are; values of others that do not say whose they are."""

    decisions: dict[int, list[int]]  # by epoch
    keys: list[str]
    unowned: int


def has_seen(repository: "SqlRepository", digests: Sequence[str]) -> bool:
    """Whether one of some digests ever took part."""
    sql = "SELECT digest FROM users WHERE digest"
    return bool(repository.database.read(lambda transaction: transaction.among(sql, digests)))


def forget_user(repository: "SqlRepository", digests: Collection[str]) -> Forgotten:
    """Delete what is kept of the user with this digest, or with one of several.

    All values are opened to find those of the user, which holds up nobody; the transaction that
    deletes them is a short one.
    """
    found = repository.database.read(lambda transaction: _find(repository, transaction, digests))
    if not found.decisions and not found.keys:
        return Forgotten(unowned=found.unowned)
    return repository.database.write(lambda transaction: _delete(repository, transaction, found))


def _find(
    repository: "SqlRepository", transaction: Transaction, digests: Collection[str]
) -> _Found:
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
            if owner in digests:
                decisions.setdefault(epoch, []).append(number)
    kept = transaction.rows("SELECT digest, secret FROM keys")
    names = [row[0] for row in kept]
    values = repository.rows.seal.open_many("keys", names, "secret", [row[1] for row in kept])
    keys = [name for name, each in zip(names, values, strict=True) if owner_of(each) in digests]
    return _Found(decisions, keys, unowned)


def _delete(repository: "SqlRepository", transaction: Transaction, found: _Found) -> Forgotten:
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
