"""One ledger for an organisation: many policies, fits and fleets over the same people.

The ledger is a store like that of a policy, with its history, its anchor and its copies. Its
operations are the entries of a :class:`~capri.store.book.Book`. Every entry is chained by digests,

    digest(g) = H(digest(g - 1), entry g),

and read again from the first one when the ledger is opened. So an entry that was changed, removed
or put in between is found, and so is one that no filter would have admitted. A process keeps what
it has read and reads on from there.

Whoever opens a source holds the ledger alone while it asks the filter and writes its reservation:
of two who want the last of a budget one gets it. The reservation is on disk before the source
touches a datum. A process that is killed after it has reserved has wasted some budget, and no
process has ever released something that is not reserved.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import datetime
from math import ceil
from threading import RLock
from time import time
from typing import Any, NoReturn

from capri.errors import BudgetError, ConfigurationError, StorageError
from capri.privacy.budget import Budget
from capri.privacy.filters import Charge
from capri.privacy.ledger import LEARNING, ReleaseEvent, Spending
from capri.privacy.users import UserId
from capri.store.book import Book, Held, Population
from capri.store.rollback import Checkpoint, first_digest, next_digest, open_anchor, remember
from capri.store.sql import SqlRepository
from capri.store.transaction import Transaction, open_database

KIND = "organisation"
Entries = Iterable[tuple[str, dict[str, Any]]]
_ENTRIES = (
    "SELECT history.generation, digest, kind, record FROM history LEFT JOIN operations "
    "ON operations.generation = history.generation WHERE history.generation >= ? "
    "ORDER BY history.generation"
)


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
    anchor, new_anchor:
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
        anchor: str | None = None,
        new_anchor: bool = False,
        read_only: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if isinstance(url, str) and ":memory:" in url:
            raise ConfigurationError(
                "a ledger in memory would forget what was promised: give a file or a server"
            )
        self._clock, self._lock = clock, RLock()
        database = open_database(url, create=organisation is not None, read_only=read_only)
        held = open_anchor(anchor, url)
        self.repository = SqlRepository(database, None, held, new_anchor=new_anchor)
        try:
            self.organisation = self._opened(organisation, read_only=read_only)
            self.id = self.repository.store_id
            self._book, self._at = Book(), Checkpoint(self.id, 0, first_digest(self.id))
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
        self.repository.database.check_process()
        with self._lock:
            self._at = self.repository.database.read(lambda unit: self._read_on(unit, self._book))
            remember(self._at)
            return self._book

    def _read_on(self, unit: Transaction, book: Book) -> Checkpoint:
        """From what this process knows to the last entry, into a book."""
        at = self._at
        rows = unit.rows(_ENTRIES, (at.generation,))
        where = repr(self.repository.database)
        if not rows or tuple(rows[0][:2]) != (at.generation, at.digest):
            raise StorageError(
                f"{where} is an older or another copy of this ledger: generation {at.generation} "
                "was seen, and is not there or differs. Restore the newest copy"
            )
        for generation, digest, kind, record in rows[1:]:
            at = _chained(at, generation, digest, kind, record)
            book.read(kind, self.repository.codec.unpack(record)[0])
        if unit.counter()[1] != at.generation:
            raise StorageError(f"{where} was cut: its last entries are missing")
        return at

    def _append(self, build: Callable[[Book, float], Entries]) -> None:
        """Write entries that follow from the book, with nobody else at it."""

        def write(unit: Transaction) -> None:
            unit.hold_policy()
            unit.lock()
            book = self._book
            if unit.counter()[1] != self._at.generation:  # others were here, or are at it now
                book = book.branch()
            generation = self._read_on(unit, book).generation
            now = max(self._now(), book.at)
            for kind, record in build(book, now):
                self.repository.note_operation(unit, generation, kind, record | {"at": now}, now)
                generation += 1

        self.repository.database.check_process()
        self.repository.database.write(write)
        self.look()
        if self.repository.anchor is not None:
            self.repository.note()

    def _now(self) -> float:
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
        new = Population(name=name, **asdict(budget), account=account, order=order, period=period)

        def build(book: Book, now: float) -> Entries:
            known = book.populations.get(name)
            if known not in (None, new):
                raise ConfigurationError(f"population {name!r} was promised other terms: {known}")
            return [] if known else [("population", {"population": asdict(new)})]

        self._append(build)

    def spent(self, population: str, period: str | None = None) -> Spending:
        """What anybody of a population can have lost at most in a period, by default in this one.

        All that was reserved counts, also what is not released yet.
        """
        book = self.look()
        found = book.population(population)
        when = book.period(found, self._now()) if period is None else period
        return book.spent(found, when)

    def spent_by(
        self, population: str, user: UserId, policies: Iterable[Any], period: str | None = None
    ) -> Spending:
        """What one person can have lost: less than :meth:`spent` where policies know their users.

        ``policies``: those of the population that keep ids, opened. Every other source counts
        whole. For the person's own eyes: it tells whether they took part.
        """
        book = self.look()
        found = book.population(population)
        when = book.period(found, self._now()) if period is None else period
        own = {
            policy.ledger.reservation.source: policy.ledger.spent_by(user) for policy in policies
        }
        held = book.held.get((found.name, when), {})
        known = [_narrowed(each, own.get(source)) for source, each in held.items()]
        return found.filter.spent([(each.charge, each.coordinates) for each in known])

    def standing(self, population: str) -> dict[str, Any]:
        """What a certificate says of a population: promised, reserved, by how many, how far."""
        book = self.look()
        found = book.population(population)
        period = book.period(found, self._now())
        held = book.held.get((found.name, period), {})
        return {
            "organisation": self.organisation,
            "ledger": self.id,
            "generation": self._at.generation,
            "digest": self._at.digest,
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

    # -- sources ----------------------------------------------------------------------------------

    def reserve(
        self,
        population: str,
        source: str,
        charge: Charge,
        *,
        kind: str,
        label: str = "",
        composition: float = 1.0,
        contributions: int = 1,
    ) -> "Reservation":
        """Hold what a source may cost a person, or refuse it: before anything of it is opened.

        The same source again holds the same once, in every period that it plans in.
        """
        place = Reservation(self, population, source, charge, kind, label)
        place.composition, place.contributions = composition, contributions
        self._append(lambda book, now: place.held(book, now, 0))
        return place


class Reservation:
    """What one source holds of its population."""

    composition, contributions = 1.0, 1

    def __init__(
        self,
        ledger: OrganisationLedger,
        population: str,
        source: str,
        charge: Charge,
        kind: str,
        label: str,
    ) -> None:
        self.ledger, self.population, self.source = ledger, population, source
        self.charge, self._kind, self._label = charge, kind, label
        self._noted = 0  # releases that the ledger knows of

    def __deepcopy__(self, memo: object) -> "Reservation":
        return self

    def held(self, book: Book, now: float, coordinates: int) -> list[tuple[str, dict[str, Any]]]:
        """The entry that holds the charge in the period of now, where nothing does yet."""
        population = book.population(self.population)
        known = book.sources.get(self.source)
        if known is not None and known["population"] != population.name:
            raise BudgetError(
                f"this {self._kind} is of population {known['population']!r} in the ledger, not of "
                f"{population.name!r}: nothing was opened"
            )
        period = book.period(population, now)
        wanted = book.admit(population, period, self.source, Held(self.charge, coordinates))
        if wanted is None:
            return []
        record = {
            "population": population.name,
            "period": period,
            "source": self.source,
            "what": self._kind,
            "label": self._label,
            "charge": asdict(wanted.charge),
            "coordinates": wanted.coordinates,
        }
        return [("source", record)]

    def plan(self, event: ReleaseEvent, released: Iterable[ReleaseEvent] = ()) -> None:
        """Note what a release will cost, before any of its data; and what was released since."""
        self._check(event)
        releases = list(released)
        coordinates = 0
        if event.pure(1) is None:
            coordinates = event.rank * ceil(self.composition**2)

        def build(book: Book, now: float) -> Entries:
            population = book.population(self.population)
            entries = [*self.held(book, now, coordinates), *self._releases(book, releases)]
            if (self.source, event.epoch, event.purpose) not in book.plans:
                period = book.period(population, now)
                entries.append(("plan", self._described(event) | {"period": period}))
            return entries

        self.ledger._append(build)
        self._noted = len(releases)

    def release(self, released: Iterable[ReleaseEvent]) -> None:
        """Note what was released since the last plan; nothing is asked where nothing was."""
        releases = list(released)
        if len(releases) > self._noted:
            self.ledger._append(lambda book, now: self._releases(book, releases))
            self._noted = len(releases)

    def _check(self, event: ReleaseEvent) -> None:
        """The charge of mixed reports is that of a batch, and no release by itself costs it."""
        alone = self.charge.mu is not None or self.charge.pure is not None
        if alone and not self.charge.covers(event, self.composition, self.contributions):
            raise BudgetError(
                f"a release by {event.mechanism} of mu {event.mu:g} costs more than this "
                f"{self._kind} has reserved in the ledger: nothing was opened"
            )

    def _releases(self, book: Book, released: list[ReleaseEvent]) -> list[tuple[str, Any]]:
        return [
            ("release", self._described(event))
            for event in released
            if (self.source, event.epoch, event.purpose) not in book.released
        ]

    def _described(self, event: ReleaseEvent) -> dict[str, Any]:
        mu = None if event.epsilon is not None else event.mu
        return {
            "source": self.source,
            "epoch": event.epoch,
            "purpose": event.purpose,
            "mechanism": event.mechanism,
            "participants": event.participants,
            "coordinates": event.rank,
            "mu": mu,
            "epsilon": event.pure(1),
        }

    def require(self, epochs: Iterable[int]) -> None:
        """Refuse a ledger that does not know what this source has planned: it is an older copy."""
        plans = self.ledger.look().plans
        missing = [number for number in epochs if (self.source, number, LEARNING) not in plans]
        if missing:
            raise StorageError(
                f"{self.ledger!r} knows nothing of epoch {missing[0]} of this {self._kind}, which "
                "was planned: it is an older copy, or was cut. Restore the newest one. Nothing was "
                "opened"
            )

    def standing(self) -> dict[str, Any]:
        """What a certificate says of the population."""
        return self.ledger.standing(self.population)


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


def joined(
    ledger: object, population: object, *, budget: Budget | None, private: bool, stored: bool = True
) -> tuple[OrganisationLedger, str] | None:
    """The ledger and the population that a source is opened with; None where it has none."""
    if ledger is None and population is None:
        return None
    if ledger is None or not isinstance(population, str):
        raise ConfigurationError("ledger and population go together: give both, or neither")
    if not isinstance(ledger, OrganisationLedger | str):
        raise ConfigurationError(
            f"ledger must be a capri.OrganisationLedger or its address, got {type(ledger).__name__}"
        )
    if budget is None or not private:
        raise ConfigurationError(
            "a run without a budget and a simulation promise nothing: leave the ledger out"
        )
    if not stored:
        raise ConfigurationError(
            "a policy under an organisation's ledger needs a store: what it has spent must outlive "
            "the process. Give store="
        )
    opened = OrganisationLedger(ledger) if isinstance(ledger, str) else ledger
    opened.look().population(population)
    return opened, population


def population_of(stored: dict[str, Any], ledger: object, where: str) -> str | None:
    """The population of a stored source; refused without its ledger."""
    found = stored.get("ledger")
    if found is None or ledger is not None:
        return None if found is None else str(found["population"])
    raise BudgetError(
        f"{where} is under an organisation's ledger (population {found['population']!r}, ledger "
        f"{found['ledger'][:12]}): give ledger=, or what it releases would not be counted"
    )
