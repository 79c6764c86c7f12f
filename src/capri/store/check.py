"""Check a store: what should hold of every one, and settings of its database.

Everything is read at one point in time and nothing is changed: neither the store, which may be of
an older schema, nor its rollback guard, nor the small file beside it. Values of users are opened,
where that is looked at, and never shown.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capri.codec import unpacked
from capri.errors import CapriError, StorageError
from capri.privacy.budget import Budget, PrivacyModel, UserLimit
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.store.codec import Played
from capri.store.rollback import check_newest, first_digest, unknown_store
from capri.store.sql import SqlRepository
from capri.store.sqlite import SqliteDatabase
from capri.store.tables import VERSION, VERSION_TABLE
from capri.store.transaction import Transaction
from capri.store.view import LEARNT, OPEN, RELEASED

# Sealed values that are opened to see whether the key is theirs.
_SAMPLE = 100
# In the header of an SQLite file that keeps a write-ahead log.
_WRITE_AHEAD = b"\2\2"
GOOD, WARNING, BAD = "good", "warning", "bad"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: str
    said: str


class Check:
    """Looks at one store, whose secrets were read (:meth:`SqlRepository.read_secrets`)."""

    def __init__(self, repository: SqlRepository) -> None:
        self._repository, file = repository, repository.beside
        self._beside = None if file is None else file.read(repository.store_id)

    def findings(self) -> list[Finding]:
        """Everything that is looked at, in order."""
        found = [
            self._looked("schema", self._schema),
            self._looked("history", self._history),
            self._looked("epochs", self._epochs),
            self._looked("ledger", self._ledger),
            self._looked("forgetting", self._forgetting),
            self._looked("users", self._users),
            self._looked("values", self._values),
            self._looked("newest", self._newest),
        ]
        return [*found, self._rollback_guard(), *self._settings()]

    def _looked(self, name: str, look: Callable[[Transaction], str]) -> Finding:
        """A look that raises has found something bad; its own words are ours to show."""
        try:
            said = self._repository.database.read(look)
        except CapriError as problem:
            return Finding(name, BAD, str(problem))
        return Finding(name, GOOD, said)

    def _schema(self, transaction: Transaction) -> str:
        found = transaction.row(f"SELECT version FROM {VERSION_TABLE}")
        policies = transaction.rows("SELECT id FROM policy")
        _hold(found is not None, "there is no version")
        assert found is not None
        _hold(found[0] == VERSION, f"version {found[0]} where this release has {VERSION}")
        _hold(len(policies) == 1, f"{len(policies)} policies in one store")
        return f"version {VERSION}, one policy"

    def _history(self, transaction: Transaction) -> str:
        rows = transaction.rows("SELECT generation, digest FROM history ORDER BY generation")
        found = transaction.row("SELECT issued, generation FROM counter")
        _hold(found is not None, "there is no counter")
        assert found is not None
        numbers = [row[0] for row in rows]
        _hold(numbers == list(range(len(numbers))), "generations are missing")
        _hold(bool(numbers) and numbers[-1] == found[1], "the newest generation is missing")
        _hold(rows[0][1] == first_digest(self._repository.store_id), "it begins with another store")
        _hold(len({row[1] for row in rows}) == len(rows), "a digest comes twice")
        return f"{found[1]} publications without a gap, {found[0]} slots handed out"

    def _epochs(self, transaction: Transaction) -> str:
        rows = transaction.rows("SELECT number, first, last, state FROM epochs ORDER BY number")
        _hold([row[0] for row in rows] == list(range(1, len(rows) + 1)), "numbers are missing")
        for at, (number, _, last, state) in enumerate(rows, start=1):
            after = rows[at] if at < len(rows) else None
            _hold((state == OPEN) == (last is None), f"epoch {number} is {state} and has an end")
            if after is not None:
                _hold(last is not None, f"epoch {number} has no end, and others follow")
                _hold(last <= after[1], f"epochs {number} and {number + 1} overlap")
        law = transaction.row(
            "SELECT count(*) FROM segments JOIN epochs ON epochs.number = segments.epoch "
            "WHERE epochs.state IN ('open', 'waiting') "
            "AND law NOT IN (SELECT generation FROM laws)"
        )
        _hold(law == (0,), "a law that is played is missing")
        done = sum(row[3] in (RELEASED, LEARNT) for row in rows)
        return f"{len(rows)}, of which {done} are released"

    def _ledger(self, transaction: Transaction) -> str:
        found = transaction.row("SELECT configuration FROM policy")
        assert found is not None
        ledger = _new_ledger(unpacked(found[0])[0]["problem"])
        count = 0
        rows = transaction.rows(
            "SELECT number, state, release FROM epochs WHERE release IS NOT NULL ORDER BY released"
        )
        for number, state, release in rows:
            _hold(state in (RELEASED, LEARNT), f"epoch {number} is {state}, and has a release")
            values, arrays = unpacked(release)
            made = sum(values["counts"])
            _hold(("vector" in arrays) == (made > 0), f"the release of epoch {number} is damaged")
            events = [
                (values["event"], made),
                (values.get("shadow_event"), values.get("shadow", {}).get("visits", 0)),
            ]
            for event, visits in events:
                wanted = visits > 0 and ledger is not None
                _hold((event is not None) == wanted, f"epoch {number}: releases and ledger differ")
                if event is not None and ledger is not None:
                    entry = ReleaseEvent(**event)
                    same = (entry.epoch, entry.participants) == (number, visits)
                    _hold(same, f"epoch {number}: the ledger says something else")
                    ledger.record(entry)  # refuses what is there twice, or beyond the budget
                    count += 1
        return f"{len(rows)} releases, {count} entries within the budget"

    def _forgetting(self, transaction: Transaction) -> str:
        kept = transaction.row(
            "SELECT count(*) FROM draws WHERE number NOT IN "
            "(SELECT number FROM epochs WHERE state = 'closed')"
        )
        _hold(kept == (0,), "noise is kept for an epoch that is not about to be released")
        for table in ("decisions", "rewards"):
            found = transaction.row(
                f"SELECT count(*) FROM {table} JOIN epochs ON {table}.number >= epochs.first "
                f"AND {table}.number < epochs.last WHERE epochs.state IN ('released', 'learnt')"
            )
            _hold(found == (0,), f"rows of {table} have outlived the release of their epoch")
        stray = transaction.row(
            "SELECT count(*) FROM rewards WHERE number NOT IN (SELECT number FROM decisions)"
        )
        _hold(stray == (0,), "there are rewards without a decision")
        return "no row of a released epoch is left"

    def _users(self, transaction: Transaction) -> str:
        found = transaction.row("SELECT configuration FROM policy")
        assert found is not None
        limit = unpacked(found[0])[0]["problem"]["limit"]
        wrong = transaction.row(
            "SELECT count(*) FROM users LEFT JOIN "
            "(SELECT digest, sum(visits) AS made, max(visits) AS most FROM visits GROUP BY digest) "
            "AS counted ON counted.digest = users.digest "
            "WHERE users.total <> coalesce(made, 0) OR users.total > ? OR coalesce(most, 0) > ?",
            (0, 0) if limit is None else (limit["total"], limit["per_epoch"]),
        )
        _hold(wrong == (0,), "a user counts more often than allowed, or than there were visits")
        return "no ids of users are kept" if limit is None else "nobody is over the limit"

    def _values(self, transaction: Transaction) -> str:
        rows = transaction.rows(f"SELECT number, secret FROM decisions LIMIT {_SAMPLE}")
        numbers, seal = [row[0] for row in rows], self._repository.rows.seal
        Played.read(seal.open_many("decisions", numbers, "secret", [row[1] for row in rows]))
        keys = transaction.rows(f"SELECT digest, secret FROM keys LIMIT {_SAMPLE}")
        names = [row[0] for row in keys]
        Played.read(seal.open_many("keys", names, "secret", [row[1] for row in keys]))
        return f"{len(rows) + len(keys)} were opened, {'sealed' if seal.identifier else 'unsealed'}"

    def _newest(self, transaction: Transaction) -> str:
        """Against the small file beside it, which was read before."""
        now, digests = self._repository.checkpoint(transaction)
        check_newest(repr(self._repository.database), now, digests.get, self._beside)
        return f"generation {now.generation}, and nothing newer was seen beside it"

    def _rollback_guard(self) -> Finding:
        rollback_guard, repository = self._repository.rollback_guard, self._repository
        if rollback_guard is None:
            said = "none was given: a machine that has seen nothing cannot tell an older copy"
            if repository.has_guard():
                said = "this store has one, and it was not given: nobody can tell an older copy"
            return Finding("rollback_guard", WARNING, said)
        try:
            seen = rollback_guard.read(repository.store_id)
            now, digests = repository.database.read(repository.checkpoint)
            check_newest(repr(repository.database), now, digests.get, seen)
            if seen is None and now.generation > 0:
                raise unknown_store(rollback_guard, repr(repository.database))
        except CapriError as problem:
            return Finding("rollback_guard", BAD, str(problem))
        if seen is None:
            return Finding(
                "rollback_guard", WARNING, "it knows nothing of this store, which is new"
            )
        return Finding(
            "rollback_guard", GOOD, f"{rollback_guard.kind}, at generation {seen.generation}"
        )

    def _settings(self) -> list[Finding]:
        database = self._repository.database
        if isinstance(database, SqliteDatabase):
            return self._of_sqlite(database)
        return self._of_postgres()

    def _of_sqlite(self, database: SqliteDatabase) -> list[Finding]:
        def asked(transaction: Transaction) -> dict[str, Any]:
            names = ("synchronous", "secure_delete", "quick_check")
            return {name: (transaction.row(f"PRAGMA {name}") or (None,))[0] for name in names}

        found = database.read(asked)
        mode = stat.S_IMODE(os.stat(database.path).st_mode)
        with database.path.open("rb") as file:
            ahead = file.read(20)[18:] == _WRITE_AHEAD
        return [
            _setting("pages", found["quick_check"] == "ok", "whole", "damaged: restore a copy"),
            _setting(
                "durability",
                ahead and found["synchronous"] == 2,
                "write-ahead log, synchronous = FULL",
                "an answer may be lost with the power",
            ),
            _setting(
                "overwriting", found["secure_delete"] == 1, "secure_delete", "secure_delete is off"
            ),
            _setting(
                "rights",
                mode & 0o077 == 0,
                "for its owner alone",
                f"mode {mode:o}: others may read it",
                WARNING,
            ),
        ]

    def _of_postgres(self) -> list[Finding]:
        from capri.store.postgres_connection import LOGGED

        def asked(transaction: Transaction) -> tuple[Any, ...]:
            settings = transaction.row(
                "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
                "current_setting('synchronous_commit'), "
                "current_setting('synchronous_standby_names')"
            )
            logged = transaction.row(LOGGED)
            replicas = transaction.row("SELECT count(*) FROM pg_stat_replication")
            return settings, logged, replicas

        (fsync, pages, commit, standby), (values, written), (replicas,) = (
            self._repository.database.read(asked)
        )
        sealed = bool(self._repository.rows.seal.identifier)
        return [
            _setting(
                "durability",
                (fsync, pages) == ("on", "on") and commit != "off",
                "fsync, full_page_writes and synchronous_commit are on",
                f"fsync {fsync}, full_page_writes {pages}, synchronous_commit {commit}: an answer "
                "may be lost with the power",
            ),
            _setting(
                "log",
                sealed or not (values and written),
                "no values of users are written to the server's log",
                "values of users are written to the server's log: set log_parameter_max_length "
                "to 0",
            ),
            _setting(
                "replicas",
                replicas == 0 or bool(standby),
                f"{replicas}, synchronous" if replicas else "none",
                "without a synchronous standby a failover may lose a release that was read",
                WARNING,
            ),
        ]


def _new_ledger(problem: dict[str, Any]) -> Ledger | None:
    """An empty account like that of the policy, or it would allow several contributions for one."""
    if problem["budget"] is None:
        return None
    limit = None if problem["limit"] is None else UserLimit(**problem["limit"])
    local = problem["model"] == PrivacyModel.LOCAL
    return Ledger(
        Budget(**problem["budget"]),
        composition=1.0 if limit is None else limit.composition(local=local),
        contributions=1 if limit is None else limit.total,
    )


def _setting(name: str, holds: bool, good: str, bad: str, state: str = BAD) -> Finding:
    return Finding(name, GOOD if holds else state, good if holds else bad)


def _hold(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StorageError(otherwise)
