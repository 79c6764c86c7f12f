"""The promise in plain language: how far the belief of an attacker who knows all else can move.

Let somebody believe with probability ``p`` that a statement about one unit's data is true, know
everything else, see everything that is published, and reason perfectly. Let ``P1`` and ``P0`` be
the laws of what is seen if the statement is true, and if not. The proofs:
docs/proofs/calibration.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, exp, floor, inf, log, log10
from typing import Any

from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier

PRIORS = (0.01, 0.1, 0.5, 0.9)
# "In 99 of 100 cases": what a reader takes for usual. The other chance is delta itself.
USUAL = 0.01
# What odds of 1 to 1 become at most, and what protection that is called.
_GRADES = ((1.5, "strong"), (4.0, "moderate"), (19.0, "weak"), (inf, "hardly any"))
_ALMOST = 1.25  # so many times as likely is almost as likely
# Covers the step from continuous to integer noise (1e-7 at a million coordinates) and rounding.
_ROUNDING = 1e-6


def odds_factor(budget: Budget, chance: float) -> float:
    """What odds can be multiplied by, but for outcomes of probability ``chance`` at most.

    Pure privacy, ``delta = 0``: ``e^eps``, whatever is seen (chance 0).

    Gaussian noise with ``delta(eps) = delta`` at ``mu`` allows no test of size ``a`` and power
    above ``Phi(mu + Phi^-1(a))``. The event ``E`` that the odds rise by more than ``r`` has
    ``P0(E) <= P1(E) / r``, so its power ``q = P1(E)`` obeys ``r <= q / Phi(Phi^-1(q) - mu)``,
    which falls in ``q``. Hence, with

        r = chance / Phi(Phi^-1(chance) - mu),

    ``P1(E) <= chance``.

    >>> round(odds_factor(Budget(epsilon=1.0), 0.0), 4)
    2.7183
    """
    from scipy.special import log_ndtr, ndtri

    if budget.delta == 0:
        return exp(min(budget.epsilon, 700.0)) * (1 + _ROUNDING)
    mu = 1 / analytic_multiplier(budget)
    return exp(min(log(chance) - float(log_ndtr(ndtri(chance) - mu)), 700.0)) * (1 + _ROUNDING)


def belief_after(before: float, factor: float) -> float:
    """``p r / (1 - p + p r)``: a belief whose odds were multiplied by ``r``.

    >>> belief_after(0.5, 3.0)
    0.75
    """
    return before * factor / (1 - before + before * factor)


def belief_table(
    budget: Budget, *, gaussian: bool = True, laplace: bool = False
) -> tuple[dict[str, Any], ...]:
    """For each prior: the belief after at most, and the chance that it is exceeded at most.

    ``laplace``: a release may have Laplace noise instead. Its odds rise by ``e^epsilon`` in about
    half of all cases, more than Gaussian odds do in 99 of 100: the larger factor is stated.

    ``gaussian=False``: nothing but ``(epsilon, delta)`` is known, as of mixed reports. The event
    ``E`` that odds rise by more than ``r`` has ``P0(E) <= P1(E) / r``, so ``P1(E) <= e^epsilon
    P1(E) / r + delta``, and ``r = e^epsilon / (1 - delta / c)`` is exceeded with probability at
    most ``c``.
    """
    delta = budget.delta
    if gaussian:
        chances = [0.0]
        if delta > 0:
            chances = [USUAL, delta] if delta < USUAL else [delta]
        least = odds_factor(replace(budget, delta=0.0), 0.0) if laplace else 0.0
        factors = [max(least, odds_factor(budget, chance)) for chance in chances]
    else:
        chances = [chance for chance in (USUAL, 2 * delta) if delta < chance <= USUAL]
        chances = chances or [min(1.0, 2 * delta)]
        factors = [exp(min(budget.epsilon, 700.0)) / (1 - delta / chance) for chance in chances]
    return tuple(
        {
            "before": before,
            "after_at_most": belief_after(before, factor),
            "exceeded_with_chance_at_most": chance,
        }
        for before in PRIORS
        for chance, factor in zip(chances, factors, strict=True)
    )


def likely(table: Sequence[dict[str, Any]]) -> str:
    """How likely what is seen is under other data of one unit, as a table of beliefs has it.

    >>> likely(belief_table(Budget(0.1))), likely(belief_table(Budget(20.0)))
    ('almost as likely', 'at most 490,000,000 times as likely')
    """
    factor, often = _odds(table), _often(table)
    if factor <= _ALMOST:
        return f"almost as likely{often}"
    if factor == inf:
        return f"any number of times as likely{often}"
    unit = 10.0 ** (floor(log10(factor)) - 1)  # two digits, rounded up
    times = f"{ceil(factor / unit) * unit:,.{0 if factor > 9.9 else 1}f}"
    return f"at most {times} times as likely{often}"


def in_words(table: Sequence[dict[str, Any]]) -> str:
    """A table of beliefs in a sentence: how far suspicions move, and what that is called.

    It follows a sentence with :func:`likely`, which says how often both hold.

    >>> in_words(belief_table(Budget(1.0)))
    'A suspicion of 1 % becomes at most 2.7 %, and one of 50 % at most 73.2 %: moderate protection.'
    """
    least, even = (percent(_usual(table, prior)["after_at_most"]) for prior in (PRIORS[0], 0.5))
    grade = next(name for most, name in _GRADES if _odds(table) <= most)
    return (
        f"{'Just as often, a' if _often(table) else 'A'} suspicion of {100 * PRIORS[0]:g} % "
        f"becomes at most {least}, and one of 50 % at most {even}: {grade} protection."
    )


def cases(chance: float) -> str:
    """How often a bound holds that is exceeded with this chance.

    >>> cases(0.01), cases(1e-5)
    ('in 99 of 100 cases', 'but for 1 case in 100,000')
    """
    return "in 99 of 100 cases" if chance == USUAL else f"but for 1 case in {1 / chance:,.0f}"


def _usual(table: Sequence[dict[str, Any]], before: float) -> dict[str, Any]:
    """The first row of a belief: of the larger chance where there are two."""
    return next(row for row in table if row["before"] == before)


def _often(table: Sequence[dict[str, Any]]) -> str:
    chance = _usual(table, 0.5)["exceeded_with_chance_at_most"]
    return f" {cases(chance)}" if chance else ""


def _odds(table: Sequence[dict[str, Any]]) -> float:
    """What odds of 1 to 1 become: the largest ratio of two likelihoods but for a chance."""
    after = float(_usual(table, 0.5)["after_at_most"])
    return after / (1 - after) if after < 1 else inf


def percent(share: float) -> str:
    """A share in percent, rounded up, but not up to certainty if it can be helped.

    >>> percent(0.26894), percent(0.99996), percent(0.5)
    ('26.9 %', '99.996 %', '50.0 %')
    """
    for digits in (1, 2, 3, 4, 6, 9):
        # A thousandth of a unit is forgiven, or 0.5 stored as 0.5000000001 would show as 50.1.
        value = ceil(share * 10 ** (2 + digits) - 1e-3) / 10**digits
        if value < 100:
            return f"{value:.{digits}f} %"
    return "100 %"
