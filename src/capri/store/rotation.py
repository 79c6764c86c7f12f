"""Rotate the keys of a store: the owner's key that seals it, and the key of the ids.

Both are one transaction and one publication, so that no process writes by the old key afterwards:
whoever decides or rewards compares the generation in its own transaction, looks again, and finds
the other key. A store key is held by processes: those with the old one are refused until they are
opened with the new one. The key of ids is in the store: processes go on, and ids that were made by
the key before are understood until it is rotated once more.
"""

import secrets
import time

from capri.errors import ConfigurationError
from capri.store.seal import Seal, checked_key
from capri.store.sql import _SECRET_BYTES, SqlRepository
from capri.store.transaction import Transaction
from capri.store.view import read_counter

# Secret columns by table, with the columns that make up the place of a value.
_SEALED = {"decisions": "number", "rewards": "number", "draws": "number", "keys": "digest"}
_UNRELEASED = (
    "SELECT number FROM epochs WHERE state IN ('open', 'waiting', 'closed') ORDER BY number"
)


def rotate_store_key(repository: SqlRepository, new: bytes) -> int:
    """Seal everything under another key of the owner; how many values there were.

    A store without a key gets one. The values of before are deleted, and are overwritten when the
    database has forgotten them (:meth:`~capri.store.transaction.Database.forget_soon`).
    """
    seal = Seal(checked_key(new), repository.line)
    if seal.identifier == repository.rows.seal.identifier:
        raise ConfigurationError("the new store key is the one that the store has: give another")

    def rotate(transaction: Transaction) -> int:
        generation = _alone(repository, transaction)
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


def rotate_id_key(repository: SqlRepository) -> None:
    """Make ids by a new key; those of the one before are still understood.

    To be followed by forgetting, as :func:`rotate_store_key` is.
    """
    key = secrets.token_bytes(_SECRET_BYTES)

    def rotate(transaction: Transaction) -> None:
        generation = _alone(repository, transaction)
        old = _secret(repository, transaction)
        salt = old[_SECRET_BYTES : 2 * _SECRET_BYTES]
        sealed = repository.rows.seal.seal("policy", 1, "secret", key + salt + old[:_SECRET_BYTES])
        transaction.run("UPDATE policy SET secret = ? WHERE id = 1", (sealed,))
        repository.note_operation(transaction, generation, "id key", {}, time.time())

    repository.database.write(rotate)


def _alone(repository: SqlRepository, transaction: Transaction) -> int:
    """Hold every epoch that anybody may write to; the generation."""
    transaction.hold_policy()
    for (number,) in transaction.rows(_UNRELEASED):
        transaction.hold_epoch(number)
    repository.lock(transaction)
    return read_counter(transaction)[1]


def _secret(repository: SqlRepository, transaction: Transaction) -> bytes:
    found = transaction.row("SELECT secret FROM policy")
    assert found is not None
    return repository.rows.seal.open("policy", 1, "secret", found[0])
