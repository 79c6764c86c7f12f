"""The book of an organisation's ledger: what its entries say when they are read from the first on.

Entries are never changed. Each is checked as it is read, against all before it: a book that has
been read whole has no source over the budget of its population.

    population   a name, its budget, how sources add up, the period of the budget
    source       before anything is opened: what a policy, fit or fleet may cost a person
    plan         before the data of an epoch: what its release will cost
    release      after it
"""

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Context, Decimal
from functools import cached_property
from math import inf
from typing import Any

from capri.errors import BudgetError, ConfigurationError, StorageError
from capri.privacy.budget import Budget
from capri.privacy.filters import Charge, Filter, filter_of
from capri.privacy.ledger import Spending

# How a period is named from the public time; None: one budget for ever.
PERIODS: dict[str | None, str] = {None: "", "year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d"}
Key = tuple[str, str]  # a population, and a period of it
Plan = tuple[str, int, str]  # source, epoch, purpose
Entries = Iterable[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Population:
    """People who may be behind any of its sources, and what they are promised in all.

    ``period``: None, "year", "month" or "day", by the calendar of UTC: the budget is that of each.
    """

    name: str
    epsilon: float
    delta: float
    account: str = "basic"
    order: int | None = None
    period: str | None = None

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and self.name.isprintable() and self.name.strip()
        if not named or len(self.name) > 100 or self.name != named:
            raise ConfigurationError(
                "a population needs a name of 1 to 100 printable characters without blanks around "
                f"it, got {self.name!r}"
            )
        if self.period not in tuple(PERIODS):
            raise ConfigurationError(
                f"period must be 'year', 'month', 'day' or None, got {self.period!r}"
            )
        self.filter  # noqa: B018  (refuses what cannot be)

    @property
    def budget(self) -> Budget:
        """What its people are promised in each period."""
        return Budget(self.epsilon, self.delta)

    @cached_property
    def filter(self) -> Filter:
        """How its sources add up."""
        return filter_of(self.account, self.budget, self.order)

    def period_at(self, seconds: float) -> str:
        """The period of a public time; empty where there is one for ever."""
        return datetime.fromtimestamp(seconds, UTC).strftime(PERIODS[self.period])

    def period_ends(self, seconds: float) -> float:
        """The public time at which the period of ``seconds`` is over."""
        if self.period is None:
            return inf
        day = datetime.fromtimestamp(seconds, UTC)
        day = day.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period == "day":
            return (day + timedelta(days=1)).timestamp()
        if self.period == "month":
            return (day.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
        return day.replace(year=day.year + 1, month=1, day=1).timestamp()


@dataclass(frozen=True)
class Held:
    """What one source holds of a period."""

    charge: Charge
    coordinates: int = 0

    def and_more(self, other: "Held") -> "Held":
        """The larger of every part: what is held is never given back."""
        both = zip(astuple(self.charge), astuple(other.charge), strict=True)
        most = [max((part for part in each if part is not None), default=None) for each in both]
        charge = Charge(**dict(zip(asdict(self.charge), most, strict=True)))  # type: ignore[arg-type]
        return Held(charge, max(self.coordinates, other.coordinates))


@dataclass(frozen=True)
class Noted:
    """A set that only grows: :meth:`plus` is another one, and costs little however many are in it.

    Its parts are of falling sizes, and a part that is no larger than the new one becomes one with
    it: an entry is copied log2 n times in all.
    """

    parts: tuple[frozenset[Plan], ...] = ()

    def __contains__(self, plan: object) -> bool:
        return any(plan in part for part in self.parts)

    def plus(self, plan: Plan) -> "Noted":
        """This one and one more."""
        kept, new = list(self.parts), frozenset([plan])
        while kept and len(kept[-1]) <= len(new):
            new |= kept.pop()
        return Noted((*kept, new))


@dataclass
class Book:
    """All entries so far. One that was given out is read and no longer changed."""

    populations: dict[str, Population] = field(default_factory=dict)
    held: dict[Key, dict[str, Held]] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    plans: Noted = Noted()
    released: Noted = Noted()
    at: float = 0.0

    def branch(self) -> "Book":
        """A copy that goes its own way."""
        own = dict(self.populations), dict(self.held), dict(self.sources)
        return Book(*own, self.plans, self.released, self.at)

    def population(self, name: object) -> Population:
        """By its name; refused with what there is."""
        found = self.populations.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(sorted(self.populations)) or "none yet"
            raise ConfigurationError(
                f"this ledger has no population {name!r} (it has: {known}): add_population first"
            )
        return found

    def period(self, population: Population, now: float) -> str:
        """The period of now. A clock that was set back does not open an old one again."""
        return population.period_at(max(now, self.at))

    def released_by(self, source: str) -> set[int]:
        """Epochs of a source whose release was noted."""
        return {epoch for part in self.released.parts for who, epoch, _ in part if who == source}

    # -- filters ----------------------------------------------------------------------------------

    def charges(self, population: Population, period: str) -> list[tuple[Charge, int]]:
        """What the sources of a period may cost a person."""
        held = self.held.get((population.name, period), {})
        return [(each.charge, each.coordinates) for each in held.values()]

    def spent(self, population: Population, period: str) -> Spending:
        """The odometer of a period."""
        return population.filter.spent(self.charges(population, period))

    def admit(self, population: Population, period: str, source: str, wanted: Held) -> Held | None:
        """What to hold for a source in a period; None where that is held already.

        Refused where the filter does not admit it beside all others.
        """
        others = dict(self.held.get((population.name, period), {}))
        before = others.pop(source, None)
        if before is not None:
            asked, wanted = wanted.charge, before.and_more(wanted)
            if (asked.epsilon, asked.delta) != (wanted.charge.epsilon, wanted.charge.delta):
                raise BudgetError(
                    f"source {source} holds epsilon {before.charge.epsilon:g} and delta "
                    f"{before.charge.delta:g}, which may be spent: it cannot hold epsilon "
                    f"{asked.epsilon:g} and delta {asked.delta:g} instead. Nothing was opened"
                )
            if wanted == before:
                return None
        charges = [(each.charge, each.coordinates) for each in (*others.values(), wanted)]
        if not population.filter.admits(charges):
            spent = population.filter.spent(charges[:-1])
            budget, when = population.budget, f" in {period}" if period else ""
            held = at_most(spent.epsilon)
            raise BudgetError(
                f"population {population.name!r} is promised epsilon {budget.epsilon:g} and delta "
                f"{budget.delta:g}{when}, and {len(others)} sources hold epsilon "
                f"{held} of it: a further one of epsilon {wanted.charge.epsilon:g} "
                f"and delta {wanted.charge.delta:g} does not fit. Nothing was opened"
            )
        return wanted

    # -- reading entries --------------------------------------------------------------------------

    def read(self, kind: str, record: dict[str, Any]) -> None:
        """One more entry, in the order they were written; refused where it cannot be."""
        try:
            match kind:
                case "population":
                    self._population(record)
                case "source":
                    self._source(record)
                case "plan":
                    self._plan(record)
                case "release":
                    self._release(record)
                case "rollback_guard":  # noted by the store itself
                    pass
                case _:
                    raise StorageError(f"there is an entry of an unknown kind, {kind!r}")
            self.at = max(self.at, float(record.get("at", 0.0)))
        except (KeyError, TypeError, ValueError) as problem:
            if isinstance(problem, StorageError):
                raise
            raise StorageError(f"an entry of kind {kind!r} is damaged") from problem
        except BudgetError as problem:
            raise StorageError(f"an entry is beyond the budget: {problem}") from None

    def _population(self, record: dict[str, Any]) -> None:
        found = Population(**record["population"])
        if found.name in self.populations:
            raise StorageError(f"population {found.name!r} is there twice")
        self.populations[found.name] = found

    def _source(self, record: dict[str, Any]) -> None:
        """A source stays in its population, with the charge that it came with."""
        population = self.populations[record["population"]]
        source, held = record["source"], Held(Charge(**record["charge"]), record["coordinates"])
        known = {"population": population.name, "what": record["what"]}
        if self.sources.setdefault(source, known)["population"] != population.name:
            raise StorageError(f"source {source} is in two populations")
        if self.admit(population, record["period"], source, held) != held:
            raise StorageError(f"source {source} gives back what it holds, or holds it twice")
        key = population.name, record["period"]
        self.held[key] = {**self.held.get(key, {}), source: held}

    def _plan(self, record: dict[str, Any]) -> None:
        key = self.sources[record["source"]]["population"], record["period"]
        if record["source"] not in self.held.get(key, {}):
            raise StorageError(f"a plan of source {record['source']} without a reservation")
        self.plans = self.plans.plus(plan_of(record))

    def _release(self, record: dict[str, Any]) -> None:
        """Of what was planned, once; shadow estimates are planned with their epoch."""
        planned = (record["source"], record["epoch"], "learning")
        if planned not in self.plans or plan_of(record) in self.released:
            raise StorageError(f"a release of source {record['source']} without a plan, or twice")
        self.released = self.released.plus(plan_of(record))


def at_most(number: float) -> str:
    """In four digits, rounded up; a part in 10^9 is forgiven, as a sum is.

    >>> at_most(0.70001), at_most(0.1 + 0.2), at_most(3.0), at_most(1.00004e-6)
    ('0.7001', '0.3', '3', '1.001e-06')
    """
    exact = Decimal(number) * (1 - Decimal(1) / 10**9)
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).plus(exact)):.4g}"


def plan_of(record: dict[str, Any]) -> Plan:
    """What an entry is about."""
    return str(record["source"]), int(record["epoch"]), str(record["purpose"])
