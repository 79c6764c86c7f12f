"""What one source holds in an organisation's ledger: reserved, planned, released, in this order."""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from math import ceil, inf
from typing import Any, NamedTuple

from capri.errors import BudgetError, ConfigurationError, StorageError
from capri.privacy.budget import Budget
from capri.privacy.filters import Charge
from capri.privacy.ledger import LEARNING, ReleaseEvent
from capri.store.book import Book, Entries, Held
from capri.store.organisation import OrganisationLedger

# The variable of the environment that the address of a ledger is taken from.
LEDGER = "CAPRI_LEDGER"
# And the place of its rollback guard, where a ledger is given by its address.
LEDGER_GUARD = "CAPRI_LEDGER_GUARD"


class Reservation:
    """What one source holds of its population, in every period in which people come to it.

    ``source`` is its name for good, such as the id of its store; ``kind`` is "policy", "fleet" or
    "fit". ``composition`` and ``contributions`` of one person: as in
    :class:`~capri.privacy.ledger.Ledger`.
    """

    def __init__(
        self,
        ledger: OrganisationLedger,
        population: str,
        source: str,
        charge: Charge,
        *,
        kind: str,
        composition: float = 1.0,
        contributions: int = 1,
    ) -> None:
        """Nothing is held before :meth:`hold` or :meth:`plan`."""
        self.ledger, self.population, self.source = ledger, population, source
        self.charge, self._kind = charge, kind
        self._composition, self._contributions = composition, contributions
        self._noted = 0  # releases that the ledger knows of
        self._until = -inf  # the end of the last period that is held

    def hold(self) -> None:
        """Hold what the source may cost a person in the period of now, or refuse it.

        Called before the source opens and before anybody's data are taken: no person is in a
        source that does not hold its charge in the period in which they come. The same source
        again holds the same once. Within a period the ledger is not asked again.
        """
        if self.ledger.now() >= self._until:
            self._append(lambda book, now: self._held(book, now, 0))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy or pickle reserves nothing: whoever goes on with it reserves anew."""
        return type(None), ()

    def _append(self, build: Callable[[Book, float], Entries]) -> None:
        """Write entries that hold the charge: once there, they do until the period ends."""
        ends = self._until

        def noted(book: Book, now: float) -> Entries:
            nonlocal ends
            ends = book.population(self.population).period_ends(now)
            return build(book, now)

        self.ledger.append(noted)
        self._until = ends

    def _held(self, book: Book, now: float, coordinates: int) -> list[tuple[str, dict[str, Any]]]:
        """The entry that holds the charge in the period of now, where nothing does yet."""
        population = book.population(self.population)
        known = book.sources.get(self.source)
        if known is not None and known["population"] != population.name:
            raise BudgetError(
                f"this {self._kind} is of population {known['population']!r} in the ledger, not of "
                f"{population.name!r}: nothing was opened"
            )
        period = book.period(population, now)
        if population.account != "gaussian":
            coordinates = 0  # integer noise costs nothing there
        wanted = book.admit(population, period, self.source, Held(self.charge, coordinates))
        if wanted is None:
            return []
        record = {
            "population": population.name,
            "period": period,
            "source": self.source,
            "what": self._kind,
            "charge": asdict(wanted.charge),
            "coordinates": wanted.coordinates,
        }
        return [("source", record)]

    def plan(self, event: ReleaseEvent, released: Iterable[ReleaseEvent] = ()) -> None:
        """Note what a release will cost, before any of its data; and what was released since."""
        self._check(event)
        releases = list(released)
        later = releases[self._noted :]
        coordinates = 0
        if event.pure(1) is None:
            coordinates = event.rank * ceil(self._composition**2)

        def build(book: Book, now: float) -> Entries:
            population = book.population(self.population)
            entries = [*self._held(book, now, coordinates), *self._releases(book, later)]
            if (self.source, event.epoch, event.purpose) not in book.plans:
                period = book.period(population, now)
                entries.append(("plan", self._described(event) | {"period": period}))
            return entries

        self._append(build)
        self._noted = len(releases)

    def release(self, released: Iterable[ReleaseEvent]) -> None:
        """Note what was released since the last plan; nothing is asked where nothing was."""
        releases = list(released)
        if later := releases[self._noted :]:
            self.ledger.append(lambda book, now: self._releases(book, later))
            self._noted = len(releases)

    def _check(self, event: ReleaseEvent) -> None:
        """The charge of mixed reports is that of a batch, and no release by itself costs it."""
        alone = self.charge.mu is not None or self.charge.pure is not None
        if alone and not self.charge.covers(event, self._composition, self._contributions):
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

    def require_newest(self, released: Callable[[], Iterable[int]], where: str) -> None:
        """Refuse a store that lacks a release that the ledger has: it is an older copy.

        A policy commits a release before the ledger is told. ``released`` reads its store after the
        ledger was read, since another process may go on.
        """
        noted = self.ledger.look().released_by(self.source)
        if gone := noted.difference(released()):
            raise StorageError(
                f"{where} is an older copy: {self.ledger!r} has its release of epoch {min(gone)}, "
                "and the same data would be released again. Restore the newest copy, or begin a "
                "new store with new users. Nothing was opened"
            )

    def standing(self) -> dict[str, Any]:
        """What a certificate says of the population."""
        guarded = self.ledger.repository.rollback_guard is not None
        return {**self.ledger.standing(self.population), "guarded": guarded}


class Joined(NamedTuple):
    """The ledger that a source is counted in, and the population that it is about."""

    ledger: OrganisationLedger
    population: str


def joined(
    ledger: object, population: object, budget: Budget | None, private: bool, stored: bool
) -> Joined | None:
    """The ledger and the population that a source is opened with; None where it has none.

    A ledger that is not given is the one at the address in the environment, for services.
    """
    if ledger is None and population is None:
        return None
    ledger = ledger or os.environ.get(LEDGER)
    if ledger is None or not isinstance(population, str):
        raise ConfigurationError(
            f"ledger and population go together: give both, or neither; ${LEDGER} may hold the "
            "address of the ledger"
        )
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
    opened = ledger
    if isinstance(opened, str):
        opened = OrganisationLedger(opened, rollback_guard=os.environ.get(LEDGER_GUARD))
    opened.look().population(population)
    return Joined(opened, population)


def joined_values(joined: Joined | None) -> dict[str, Any]:
    """What a store says of the ledger that its policy is in; nothing where it is in none."""
    if joined is None:
        return {}
    return {"ledger": {"ledger": joined.ledger.id, "population": joined.population}}


def check_ledger(stored: dict[str, Any], ledger: object, where: str) -> None:
    """Refuse to open a stored source without the ledger that it is in."""
    found = stored.get("ledger")
    if found is not None and ledger is None and not os.environ.get(LEDGER):
        raise BudgetError(
            f"{where} is under an organisation's ledger (population {found['population']!r}, "
            f"ledger {found['ledger'][:12]}): give ledger= or ${LEDGER}, else nobody "
            "counts what it releases"
        )
