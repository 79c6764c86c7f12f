"""One ledger for an organisation: many policies, fits and fleets over the same people.

The ledger is a store like that of a policy, with its history, its rollback guard and its copies.
Its operations are the entries of a :class:`~capri.store.book.Book`. Entries are chained by digests,

    digest(g) = H(digest(g - 1), entry g),

and read again from the first one when the ledger is opened. So an entry that was changed, removed
or put in between is found, and so is one that no filter would have admitted. A process keeps what
it has read and reads on from there. A book that was given out never changes: threads share it, and
a read or a write that a database makes once more begins with the same one.

Whoever opens a source holds the ledger alone while it asks the filter and writes its reservation:
of two who want the last of a budget one gets it. The reservation is on disk before the source
touches a datum. A process that is killed after it has reserved has wasted some budget, and no
process has ever released something that is not reserved.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import datetime
from threading import Lock
from time import time
from typing import Any, NamedTuple, NoReturn

from capri.errors import ConfigurationError, StorageError
from capri.privacy.budget import Budget, UserId
from capri.privacy.filters import Charge, best_order
from capri.privacy.ledger import Spending
from capri.store.book import Book, Entries, Held, Population
from capri.store.rollback import (
    Checkpoint,
    check_newest,
    first_digest,
    next_digest,
    open_guard,
    remember,
)
from capri.store.sql import SqlRepository
from capri.store.transaction import Transaction, open_database

KIND = "organisation"
_ENTRIES = (
    "SELECT history.generation, digest, kind, record FROM history LEFT JOIN operations "
    "ON operations.generation = history.generation WHERE history.generation >= ? "
    "ORDER BY history.generation"
)


class Known(NamedTuple):
    """A book, and the checkpoint that it was read to."""

    book: Book
    at: Checkpoint


class OrganisationLedger:
    """What an organisation promised to its populations, and what it has spent of that.

    Parameters
    ----------
    url:
        "sqlite:///privacy.db" or "postgresql://...": a database of its own, made where there is
        none.
    organisation:
        Whose promises these are. Needed for a new ledger; another name than that of an existing
        one is refused.
    rollback_guard, new_rollback_guard:
        As in :class:`~capri.Capri`: where, outside of the ledger, is noted how far it has come.
    read_only:
        To look at it. Nothing is made or changed.
    clock:
        The public clock, a function that gives a :class:`datetime.datetime`: for periods.

    >>> ledger = OrganisationLedger("sqlite:///:memory:")
    Traceback (most recent call last):
    capri.errors.ConfigurationError: a ledger in memory would forget what was promised: ...
    """

    def __init__(
        self,
        url: str,
        *,
        organisation: str | None = None,
        rollback_guard: str | None = None,
        new_rollback_guard: bool = False,
        read_only: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if isinstance(url, str) and ":memory:" in url:
            raise ConfigurationError(
                "a ledger in memory would forget what was promised: give a file or a server"
            )
        self._clock, self._lock = clock, Lock()
        database = open_database(url, create=organisation is not None, read_only=read_only)
        held = open_guard(rollback_guard, url)
        self.repository = SqlRepository(database, None, held, new_rollback_guard=new_rollback_guard)
        # One that is dropped without close() gives its connections back all the same.
        weakref.finalize(self, _shut, self.repository, os.getpid())
        try:
            self.organisation = self._opened(organisation, read_only=read_only)
            self.id = self.repository.store_id
            self._known = Known(Book(), Checkpoint(self.id, 0, first_digest(self.id)))
            self.look()
        except BaseException:
            self.close()
            raise

    def _opened(self, organisation: str | None, *, read_only: bool) -> str:
        """Make the ledger where there is none; the organisation that it is of."""
        found = self.repository.configuration()
        if found is None and organisation is None:
            raise StorageError(
                f"there is no ledger at {self.repository.database!r}: make it with "
                "OrganisationLedger(url, organisation=...). Nothing was changed"
            )
        if found is None:
            values = {"kind": KIND, "organisation": organisation}
            self.repository.create((values, {}), b"", None)
            found = self.repository.configuration()
            assert found is not None
        if found[0].get("kind") != KIND:
            raise StorageError(
                f"{self.repository.database!r} is the store of a policy, and no ledger: give the "
                "ledger a database of its own. Nothing was changed"
            )
        name = str(found[0]["organisation"])
        if organisation not in (None, name):
            raise StorageError(
                f"{self.repository.database!r} is the ledger of {name!r}, not of {organisation!r}: "
                "nothing was opened"
            )
        self.repository.read_secrets() if read_only else self.repository.open()
        return name

    def __repr__(self) -> str:
        return f"OrganisationLedger({self.organisation!r}, {self.repository.database.name!r})"

    def __deepcopy__(self, memo: object) -> "OrganisationLedger":
        """Copies of an estimator share one ledger."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ledger is not pickled: give its address, and it is opened there")

    def close(self) -> None:
        """Give the connections back."""
        self.repository.close()

    def __enter__(self) -> "OrganisationLedger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- entries ----------------------------------------------------------------------------------

    def look(self) -> Book:
        """The book as it is now; entries since the last look are checked."""
        return self.known().book

    def known(self) -> Known:
        """The book as it is now, and how far it goes."""
        self.repository.database.check_process()
        known = self._known
        return self._know(self.repository.database.read(lambda unit: self._read_on(unit, known)))

    def _know(self, found: Known) -> Known:
        """Keep what was found, unless another thread has found more."""
        with self._lock:
            if found.at.generation > self._known.at.generation:
                self._known = found
        remember(found.at)
        return found

    def _read_on(self, unit: Transaction, known: Known) -> Known:
        """From what was known before the transaction to the last entry; changes neither."""
        before, at = known
        rows = unit.rows(_ENTRIES, (at.generation,))
        where = repr(self.repository.database)
        if not rows or tuple(rows[0][:2]) != (at.generation, at.digest):
            raise StorageError(
                f"{where} is an older or another copy of this ledger: generation {at.generation} "
                "was seen, and is not there or differs. Restore the newest copy"
            )
        book = before.branch() if rows[1:] else before
        for generation, digest, kind, record in rows[1:]:
            at = _chained(at, generation, digest, kind, record)
            told = self.repository.codec.unpack(record)[0]
            if told.get("by", self.organisation) != self.organisation:
                raise StorageError(
                    f"entry {generation} of {where} is a promise by {told['by']!r}, and the ledger "
                    f"says that it is of {self.organisation!r}: that was changed"
                )
            book.read(kind, told)
        if unit.counter()[1] != at.generation:
            raise StorageError(f"{where} was cut: its last entries are missing")
        return Known(book, at)

    def append(self, build: Callable[[Book, float], Entries]) -> None:
        """Write entries that follow from the book, with nobody else at it.

        They are read on before they are committed: no entry is written that nobody could read.
        """

        def write(unit: Transaction) -> Known:
            unit.hold_policy()
            generation = unit.lock()[1]
            before = self._read_on(unit, known)
            now = max(self.now(), before.book.at)
            for number, (kind, record) in enumerate(build(before.book, now), start=generation):
                self.repository.note_operation(unit, number, kind, record | {"at": now}, now)
            return self._read_on(unit, before)

        self.repository.database.check_process()
        known = self._known
        found = self._know(self.repository.database.write(write))
        if self.repository.rollback_guard is not None:
            self.repository.note()
        elif found.book.held != known.book.held and (file := self.repository.beside) is not None:
            file.write(found.at)  # or an older copy would give the reservation away again

    def now(self) -> float:
        """Seconds since 1970, by the public clock."""
        return time() if self._clock is None else self._clock().timestamp()

    # -- populations ------------------------------------------------------------------------------

    def add_population(
        self,
        name: str,
        budget: Budget,
        *,
        account: str = "basic",
        order: int | None = None,
        period: str | None = None,
    ) -> None:
        """Promise a budget to a population, for all of its sources together.

        ``account``: how sources add up, "basic", "gaussian" or "mixed"; ``order``: of "mixed", the
        best for Gaussian noise by default. ``period``: None, "year", "month" or "day". What is
        there already in the same terms is left as it is; other terms are refused.
        """
        if not isinstance(budget, Budget):
            raise ConfigurationError(f"budget must be a capri.Budget, got {type(budget).__name__}")
        if account == "mixed" and order is None and budget.delta > 0:
            order = best_order(budget)  # an entry: other releases of this package keep to it
        new = Population(name=name, **asdict(budget), account=account, order=order, period=period)

        def build(book: Book, now: float) -> Entries:
            known = book.populations.get(name)
            if known not in (None, new):
                raise ConfigurationError(f"population {name!r} was promised other terms: {known}")
            promised = {"by": self.organisation, "population": asdict(new)}
            return [] if known else [("population", promised)]

        self.append(build)

    def spent(self, population: str, period: str | None = None) -> Spending:
        """What anybody of a population can have lost at most in a period, by default in this one.

        All that was reserved counts, also what is not released yet.
        """
        book = self.look()
        found = book.population(population)
        return book.spent(found, self._period(book, found, period))

    def _period(self, book: Book, population: Population, period: str | None) -> str:
        """One in which something is reserved; by default that of now."""
        now = book.period(population, self.now())
        known = sorted(when for name, when in book.held if name == population.name)
        if period not in (None, now, *known):
            raise ConfigurationError(
                f"nothing was reserved for population {population.name!r} in {period!r}; it was in "
                f"{', '.join(map(repr, known)) or 'no period yet'}"
            )
        return now if period is None else period

    def spent_by(
        self, population: str, user: UserId, policies: Iterable[Any], period: str | None = None
    ) -> Spending:
        """What one person can have lost: less than :meth:`spent` where policies know their users.

        ``policies``: those of the population that keep ids, opened. Every other source counts
        whole. For the person's own eyes: it tells whether they took part.
        """
        book = self.look()
        found = book.population(population)
        when = self._period(book, found, period)
        own = {
            policy.ledger.reservation.source: policy.ledger.spent_by(user) for policy in policies
        }
        held = book.held.get((found.name, when), {})
        known = [_narrowed(each, own.get(source)) for source, each in held.items()]
        return found.filter.spent([(each.charge, each.coordinates) for each in known])

    def standing(self, population: str) -> dict[str, Any]:
        """What a certificate says of a population: promised, reserved, by how many, how far."""
        book, at = self.known()
        found = book.population(population)
        period = book.period(found, self.now())
        held = book.held.get((found.name, period), {})
        return {
            "organisation": self.organisation,
            "ledger": self.id,
            "generation": at.generation,
            "digest": at.digest,
            "population": found.name,
            "promised": asdict(found.budget),
            "account": found.account,
            "period": period or None,
            "reserved": asdict(book.spent(found, period)),
            "sources": len(held),
        }

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every entry, oldest first: public values."""
        self.look()
        for number, each in enumerate(self.repository.operations(), start=1):
            yield {"entry": number, "kind": each.kind, **each.record}


def _shut(repository: SqlRepository, process: int) -> None:
    """Not in a forked child: the connections are its parent's."""
    if os.getpid() == process:
        repository.close()


def _chained(at: Checkpoint, generation: int, digest: str, kind: Any, record: Any) -> Checkpoint:
    """The next link, or what is wrong with it."""
    if generation != at.generation + 1 or kind is None:
        raise StorageError(f"the ledger has a gap after entry {at.generation}: entries are missing")
    made = next_digest(at.digest, kind.encode() + b" " + bytes(record))
    if made != digest:
        raise StorageError(f"entry {generation} of the ledger was changed: its digest differs")
    return Checkpoint(at.store_id, generation, digest)


def _narrowed(held: Held, own: Spending | None) -> Held:
    """What a source has cost one person, where it knows; never more than it holds."""
    if own is None or own.epsilon > held.charge.epsilon:
        return held
    if own.epsilon == 0:
        return Held(Charge(epsilon=0.0, delta=0.0, mu=0.0), 0)
    if own.mu is not None:
        return replace(held, charge=Charge(epsilon=own.epsilon, delta=own.delta, mu=own.mu))
    if own.delta == 0:
        return Held(Charge(epsilon=own.epsilon, delta=0.0, pure=own.epsilon), 0)
    return held


def checked_copy(ledger: OrganisationLedger, url: str, rollback_guard: str | None) -> str:
    """What a ledger that was read whole is, or an error where a newer copy was seen elsewhere."""
    repository, held = ledger.repository, open_guard(rollback_guard, url)
    file = repository.beside
    seen = [None if each is None else each.read(ledger.id) for each in (held, file)]
    now, digests = repository.database.read(repository.checkpoint)
    check_newest(repr(repository.database), now, digests.get, *seen)
    guarded = "no rollback guard was given" if held is None else "the rollback guard agrees"
    return f"{now.generation} entries, chained and within every budget; {guarded}"
