"""What many mechanisms over the same people may cost together, each chosen after the ones before.

A **source** is a policy, a fit or a fleet of devices. Its :class:`Charge` bounds what it can cost
one person, whatever it will release. A **filter** adds charges up, and admits a further source
while the sum is within a limit that was fixed before the first one. Three of them are valid where
every source is chosen by what earlier ones released (docs/proofs/composition.md has the proofs):

    basic      epsilons add, and deltas add; pure where all deltas are 0
    gaussian   mu^2 adds (Gaussian noise alone)
    mixed      Renyi divergences of one order add, which is fixed beforehand

Sums and comparisons are made in fractions. Whatever is rounded before is rounded up.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf, log, log1p, nextafter, sqrt
from sys import float_info

from capri.checks import whole
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import ROUNDING, analytic_multiplier, delivered_by_integers
from capri.privacy.ledger import ReleaseEvent, Spending

ACCOUNTS = "basic", "gaussian", "mixed"
# What a sum may exceed its limit by: three tenths are more than .3, in floating-point numbers.
TOLERANCE = Fraction(1, 10**9)
# Coordinates of one person's Gaussian releases together: integer noise costs 1e-13 each.
MOST_COORDINATES = 1 << 20
_ORDERS = range(2, 1025)
Sum = tuple[Fraction, ...]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What a source can cost one person at most, all of their contributions together.

    Parameters
    ----------
    epsilon, delta:
        The promise of the source.
    mu:
        Of its Gaussian releases; None where it has none.
    pure:
        Epsilon of its pure releases; None where it has none. A source that has both kinds has each
        person in one release: whichever is dearer counts.

    A promise with neither, such as that of mixed reports, can be added to others and no more.
    """

    epsilon: float
    delta: float
    mu: float | None = None
    pure: float | None = None

    @classmethod
    def of(cls, budget: Budget, *, gaussian: bool, pure: bool) -> "Charge":
        """The most that a calibration of this budget allows."""
        return cls(
            epsilon=budget.epsilon,
            delta=budget.delta if gaussian or not pure else 0.0,
            mu=1 / analytic_multiplier(budget) if gaussian else None,
            pure=budget.epsilon if pure else None,
        )

    def covers(self, event: ReleaseEvent, composition: float, contributions: int) -> bool:
        """Whether a release, and others like it, cost a person no more."""
        pure = event.pure(contributions)
        if pure is not None:
            return self.pure is not None and pure <= self.pure * (1 + float(TOLERANCE))
        room = 0.0 if self.mu is None else self.mu * (1 + float(TOLERANCE))
        return event.mu * composition <= room


@dataclass(frozen=True)
class Filter:
    """One way to add charges up: ``cost`` of one, ``limit`` of the sum, and what a sum means."""

    limit: Sum
    cost: Callable[[Charge, int], Sum]
    spending: Callable[[Sum], Spending]

    def total(self, charges: Iterable[tuple[Charge, int]]) -> Sum:
        """The sum of charges, each with the coordinates of its Gaussian releases."""
        parts = [self.cost(charge, coordinates) for charge, coordinates in charges]
        return tuple(sum(column, Fraction(0)) for column in zip(*parts, strict=True)) or tuple(
            Fraction(0) for _ in self.limit
        )

    def admits(self, charges: Iterable[tuple[Charge, int]]) -> bool:
        """Whether the sum is within the limit."""
        found = self.total(charges)
        return all(
            part <= most * (1 + TOLERANCE) for part, most in zip(found, self.limit, strict=True)
        )

    def spent(self, charges: Iterable[tuple[Charge, int]]) -> Spending:
        """The odometer: what the sum of charges promises."""
        return self.spending(self.total(charges))


def filter_of(account: str, budget: Budget, order: int | None = None) -> Filter:
    """The filter of an account with this budget; ``order``: of "mixed"."""
    if account not in ACCOUNTS:
        raise ConfigurationError(f"account must be one of {', '.join(ACCOUNTS)}, got {account!r}")
    if order is not None and account != "mixed":
        raise ConfigurationError(f"order is of account 'mixed', and {account!r} has none")
    if account == "basic":
        return _basic(budget)
    if budget.delta == 0:
        raise ConfigurationError(
            f"account {account!r} needs a delta above 0: with 0 epsilons add, account 'basic'"
        )
    return _gaussian(budget) if account == "gaussian" else _mixed(budget, order)


def _basic(budget: Budget) -> Filter:
    """``sum epsilon <= budget.epsilon`` and ``sum delta <= budget.delta``."""

    def spending(total: Sum) -> Spending:
        return Spending(epsilon=_up(total[0]), delta=_up(total[1]), mu=None)

    limit = Fraction(budget.epsilon), Fraction(budget.delta)
    return Filter(
        limit, lambda charge, _: (Fraction(charge.epsilon), Fraction(charge.delta)), spending
    )


def _gaussian(budget: Budget) -> Filter:
    """``sum mu^2 <= M^2``, where ``M`` is the mu that the budget allows one Gaussian release.

    ``M`` is rounded down: the multiplier is rounded up.
    """

    def cost(charge: Charge, coordinates: int) -> Sum:
        if charge.mu is None or charge.pure is not None:
            raise BudgetError(
                "an account 'gaussian' adds up Gaussian noise alone: a population of account "
                "'mixed' or 'basic' takes sources with other noise, too"
            )
        return Fraction(charge.mu) ** 2, Fraction(coordinates)

    def spending(total: Sum) -> Spending:
        mu = sqrt(_up(total[0])) * (1 + ROUNDING)
        epsilon = delivered_by_integers(mu, budget, max(1, int(total[1])))
        return Spending(epsilon=epsilon, delta=budget.delta, mu=mu)

    most = Fraction(1 / analytic_multiplier(budget)) ** 2
    return Filter((most, Fraction(MOST_COORDINATES)), cost, spending)


def _mixed(budget: Budget, order: int | None) -> Filter:
    """``sum D_alpha <= R``: a Gaussian release adds ``alpha mu^2 / 2``, on integers as well."""
    alpha = best_order(budget) if order is None else whole("order", order, least=2)
    room = _room(budget, alpha)
    if room <= 0:
        raise ConfigurationError(
            f"nothing fits into {budget} at order {alpha}: give another order, or None"
        )

    def cost(charge: Charge, _: int) -> Sum:
        if charge.mu is None and charge.pure is None:
            raise BudgetError(
                "a promise of mixed reports is known by its epsilon and delta alone: only a "
                "population of account 'basic' takes it"
            )
        gaussian = 0.0 if charge.mu is None else alpha * charge.mu**2 / 2
        pure = 0.0 if charge.pure is None else pure_divergence(charge.pure, alpha)
        return (Fraction(max(gaussian, pure) * (1 + ROUNDING)),)

    def spending(total: Sum) -> Spending:
        if not total[0]:
            return Spending(epsilon=0.0, delta=budget.delta, mu=None)
        epsilon = _up(total[0]) + _conversion(budget.delta, alpha)
        return Spending(epsilon=max(0.0, epsilon * (1 + ROUNDING)), delta=budget.delta, mu=None)

    return Filter((Fraction(room),), cost, spending)


def pure_divergence(epsilon: float, alpha: int) -> float:
    """The largest Renyi divergence of order alpha that pure epsilon allows.

    ``log((e^{alpha eps} + e^{(1-alpha) eps}) / (1 + e^eps)) / (alpha - 1)``: that of randomized
    response, of which every pure mechanism is post-processing, a pair of inputs at a time.

    >>> round(pure_divergence(1.0, 2), 6), round(pure_divergence(1.0, 1000), 3)
    (0.735326, 1.0)
    """
    top = alpha * epsilon + log1p(exp(epsilon * (1 - 2 * alpha)))
    lost = (
        8 * float_info.epsilon * (1 + top)
    )  # by rounding: for a small epsilon the terms nearly cancel
    exact = top - epsilon - log1p(exp(-epsilon))
    return min(epsilon, (exact + lost) / (alpha - 1) * (1 + ROUNDING))


def _conversion(delta: float, alpha: int) -> float:
    """Epsilon at delta is ``D_alpha`` and this (Canonne, Kamath & Steinke 2020, Prop. 12)."""
    return log1p(-1 / alpha) - log(delta * alpha) / (alpha - 1)


def _room(budget: Budget, alpha: int) -> float:
    return (budget.epsilon - _conversion(budget.delta, alpha)) * (1 - ROUNDING)


def best_order(budget: Budget) -> int:
    """The order at which most Gaussian noise fits: ``R / alpha`` is largest.

    >>> best_order(Budget(3.0, 1e-6))
    9
    """
    return max(_ORDERS, key=lambda alpha: _room(budget, alpha) / alpha)


def _up(exact: Fraction) -> float:
    """A floating-point number that is not below."""
    number = float(exact)
    return number if Fraction(number) >= exact else nextafter(number, inf)
