"""What a certificate says of the total: what a population is promised over all of its sources.

The figures are the ledger's. The words follow them as those of a certificate's own promise do, by
what is known of the sum: of Gaussian noise that composes to ``mu`` more than of epsilons and deltas
that add up.
"""

from typing import TYPE_CHECKING, Any

from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.certificate.beliefs import belief_table, in_words, likely
from capri.privacy.certificate.document import Declaration, assumed, filled, worded

if TYPE_CHECKING:
    from capri.store.reservation import Reservation

_PERIODS = ("year", "month", "day")  # 2026, 2026-11, 2026-11-19


def stated_total(
    reservation: "Reservation | None", unit: str, declaration: Declaration | None
) -> dict[str, Any] | None:
    """What the population is promised, in figures and words; None without a ledger.

    ``unit``: of the source that is certified. Refused where the ledger is of another organisation
    than the one that is declared.
    """
    if reservation is None:
        return None
    found = reservation.standing()
    _check_organisation(found["organisation"], declaration)
    period, promised = found["period"], Budget(**found["promised"])
    beliefs = belief_table(promised, gaussian=found["account"] == "gaussian" or not promised.delta)
    parts = worded(
        "total",
        "total_period" if period else "total_ever",
        *(["total_shuffled"] if found["account"] == "basic" else []),
        *(["total_guarded"] if found["guarded"] else []),
    )
    values = {
        **found,
        "own_unit": unit,
        "when": f" in {period}" if period else "",
        "kind": _PERIODS[period.count("-")] if period else "",
        "likely": likely(beliefs),
        "moved": in_words(beliefs),
    }
    texts, keepers = assumed(parts, values)
    said = {name: filled(text, values) for name, text in parts.items()}
    return {**found, **said, "assumptions": list(texts), "kept_by": list(keepers)}


def _check_organisation(name: str, declaration: Declaration | None) -> None:
    declared = None if declaration is None else declaration.organisation
    if declared not in (None, " ".join(name.split())):
        raise ConfigurationError(
            f"no certificate: the declaration is of {declared!r}, and the ledger is of {name!r}. "
            "Declare the organisation of the ledger, or leave it out"
        )
