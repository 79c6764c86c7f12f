"""What fits of one estimator have spent together: on the same rows, and on different ones."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

from capri.privacy.calibration import delivered_epsilon
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.regression.options import warn_of_leak


def earlier_events(before: Any, fresh: Any) -> tuple[ReleaseEvent, ...]:
    """Releases of the fits before the fresh one, and a word about what they add up to.

    Of each fit the most expensive: nobody is in two of its stages. Gaussian releases of the same
    people compose by ``mu^2 = sum mu_i^2``.
    """
    past: tuple[ReleaseEvent, ...] = tuple(getattr(before, "past_events_", ()))
    ledger = getattr(before, "ledger_", None)
    if ledger is not None and before._private:
        past = (*past, *_costliest(ledger))
    if fresh.ledger_ is not None and fresh._private and past:
        delta = fresh.ledger_.budget.delta
        events = (*past, *_costliest(fresh.ledger_))
        spent = delivered_epsilon(sqrt(sum(event.mu**2 for event in events)), delta)
        warn_of_leak(
            f"this is fit {len(events)} of one estimator: people who are in all of them have "
            f"spent epsilon {spent:.3g} together, at delta {delta:g}",
        )
    return past


def _costliest(ledger: Ledger) -> tuple[ReleaseEvent, ...]:
    """What a fit cost those whom it cost most."""
    return tuple(sorted(ledger.events, key=lambda event: -event.mu)[:1])


def one_account(parts: Sequence[Ledger | None]) -> Ledger | None:
    """The releases of fits on different rows under one budget, numbered through.

    Nobody is in two of them, so they are to each other what stages are. None where there is no
    budget.
    """
    whole: Ledger | None = None
    for part in parts:
        if part is None:
            return None
        whole = whole or Ledger(part.budget)
        for event in part.events:
            whole.record(replace(event, epoch=len(whole.events) + 1))
    return whole
