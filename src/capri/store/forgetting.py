"""Forget one user: what a deletion can do, and what it cannot.

Of epochs that still take decisions or rewards every value of the user goes. A decision keeps its
slot and stays a visit that counts for nothing, like one without a context: nobody else's slot or
decision moves, and the number of visits, which is public, stays. Keyed decisions of the user go, of
whatever epoch. Left are: sums of epochs that are closed or released (noise hides the user in them,
and they cannot be taken back), and how often a digest took part, without which the limit of a
lifetime would begin anew. That somebody asked is noted nowhere.
"""

from dataclasses import dataclass

from capri.store.records import blank, owner_of
from capri.store.shelf import Shelf
from capri.store.transaction import Transaction
from capri.store.view import CLOSED, OPEN, WAITING

_EPOCHS = "SELECT number, first, last, state FROM epochs WHERE state <> 'learnt' ORDER BY number"
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Forgotten:
    """What was deleted of a user.

    ``too_late``: decisions of epochs that are closed and about to be released. ``unowned``:
    decisions under way that were stored before stores knew whose they are.
    """

    decisions: int = 0
    rewards: int = 0
    keys: int = 0
    too_late: int = 0
    unowned: int = 0


def forget_user(shelf: Shelf, digest: str) -> Forgotten:
    """Delete what is kept of the user with this digest."""
    found = shelf.database.write(lambda transaction: _forget(shelf, transaction, digest))
    shelf.database.forget()
    return found


def _forget(shelf: Shelf, transaction: Transaction, digest: str) -> Forgotten:
    numbers = [row[0] for row in transaction.rows(_EPOCHS) if row[3] in (OPEN, WAITING)]
    transaction.join_epochs(numbers)
    decisions = rewards = too_late = unowned = 0
    for _, first, last, state in transaction.rows(_EPOCHS):  # as they are once all are joined
        limits = (first, _ENDLESS if last is None else last)
        rows = transaction.rows(
            "SELECT number, secret FROM decisions WHERE number >= ? AND number < ?", limits
        )
        made = [row[0] for row in rows]
        values = shelf.seal.open_many("decisions", made, "secret", [row[1] for row in rows])
        for number, value in zip(made, values, strict=True):
            owner = owner_of(value)
            unowned += owner is None and value[0] == 0
            if owner != digest:
                continue
            if state == CLOSED:
                too_late += 1
                continue
            sealed = shelf.seal.seal("decisions", number, "secret", blank(value))
            transaction.run("UPDATE decisions SET secret = ? WHERE number = ?", (sealed, number))
            rewards += transaction.run("DELETE FROM rewards WHERE number = ?", (number,))
            decisions += 1
    keys = _forget_keys(shelf, transaction, digest)
    for table in ("decisions", "rewards", "keys"):
        transaction.scrub(table)
    return Forgotten(decisions, rewards, keys, too_late, unowned)


def _forget_keys(shelf: Shelf, transaction: Transaction, digest: str) -> int:
    rows = transaction.rows("SELECT digest, secret FROM keys")
    names = [row[0] for row in rows]
    values = shelf.seal.open_many("keys", names, "secret", [row[1] for row in rows])
    mine = [name for name, each in zip(names, values, strict=True) if owner_of(each) == digest]
    for name in mine:
        transaction.run("DELETE FROM keys WHERE digest = ?", (name,))
    return len(mine)
