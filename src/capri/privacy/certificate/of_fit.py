"""What the certificate of a fitted regression states."""

from dataclasses import asdict
from typing import Any

from capri.errors import ConfigurationError
from capri.privacy.certificate.account import independent_account
from capri.privacy.certificate.beliefs import belief_table, stated
from capri.privacy.certificate.declaration import Declaration
from capri.privacy.certificate.document import Certificate
from capri.privacy.certificate.evidence import audit_evidence
from capri.privacy.certificate.wording import (
    ANALYTIC,
    ENGINEER,
    NOISE,
    OPERATOR,
    OTHER_SYSTEMS,
    TRUE_OF_MANY,
    attached,
    by_whom,
    own_budget,
    releases_of,
    versions_of,
)
from capri.privacy.ledger import Ledger

_STATEMENT = (
    "Whatever anyone can learn from the fitted estimator, its predictions and its widths would be "
    "{likely} if any one row had been different. {moved} Whoever runs the fit sees the data and is "
    "trusted with it."
)


def certify_fit(
    ledger: Ledger | None,
    *,
    private: bool,
    from_data: tuple[str, ...] = (),
    called_by: str | None = None,
    declaration: Declaration | None = None,
    audit: Any = None,
    digests: dict[str, Any] | None = None,
    earlier_fits: int = 0,
) -> Certificate:
    """State the guarantee of a fit, or refuse.

    There was no budget, no real noise, data in the settings, or another estimator, ``called_by``,
    around this one: what that spent of the same rows is not known here.
    """
    if ledger is None:
        raise ConfigurationError(
            "no certificate: this fit spent no budget here. Epsilon is infinite, or the rows came "
            "as reports, which are certified where they are made"
        )
    if not private:
        raise ConfigurationError(
            "no certificate: a simulation draws seeded noise and protects nobody. "
            "Leave random_state at None"
        )
    if from_data:
        raise ConfigurationError(
            "no certificate: settings were taken from the data, or may have been, which is not "
            "private. "
            f"Give {' and '.join(from_data)}, known without looking at the data, and fit again"
        )
    if called_by is not None:
        raise ConfigurationError(
            f"no certificate: {called_by} called this fit, perhaps as one of several on the same "
            "rows, or on rows that it chose by their values. What all of it spent is not known "
            "here. Choose settings on public data, and fit the estimator by itself"
        )
    mu = max(event.mu for event in ledger.events)
    again = (
        (
            f"nobody of this fit was in one of the {earlier_fits} earlier fits of the same "
            "estimator: whoever was has spent more than is stated here",
            OPERATOR,
        ),
    )
    assumptions = (
        ("a person is in one row at most", OPERATOR),
        *(again if earlier_fits else ()),
        (
            "bounds, public rows, the kernel and all settings were chosen without looking at the "
            "data",
            ENGINEER,
        ),
        (
            "the place of a row, and the order of rows, does not depend on the values of rows (no "
            "sorting by value); otherwise use partial_fit, which makes a single stage",
            ENGINEER,
        ),
        (
            "rows are the same, in the same order, whenever they are read: every further reading "
            "of chunks, files and Dask partitions is compared with the first, and refused where it "
            "differs",
            ENGINEER,
        ),
        (
            "the data are fitted once: every further fit on the same rows spends the budget again",
            OPERATOR,
        ),
        (
            "the machine that fits, its memory and its timing are out of an attacker's sight",
            OPERATOR,
        ),
    )
    return Certificate(
        model="joint",
        **stated(_STATEMENT, belief_table(ledger.budget)),
        privacy_unit="one row: all features and targets of it",
        neighbouring_relation="replace one: the same number of rows, one row changed",
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        protects="features and targets of the row",
        protects_from=(
            "everybody but whoever runs the fit: whoever holds the fitted estimator or reads its "
            "predictions, even with every other row in hand and unlimited computers"
        ),
        presence=(
            "Taking part is not covered: that a person is in the table at all, and the number of "
            "rows, are taken to be public. The promise covers what the row contains."
        ),
        not_protected=(
            "anybody from whoever runs the fit, or breaks into the machine that does",
            TRUE_OF_MANY,
            OTHER_SYSTEMS,
        ),
        **by_whom(assumptions),
        mechanism=(
            "second-moment matrix of rows, each clipped in norm and rounded to an integer grid, "
            "plus " + NOISE
        ),
        calibration=ANALYTIC + "; the paper's noise where larger",
        noise_multiplier=1 / mu,
        composition=(
            "parallel: every row is in one stage, by public lots, and later stages are "
            "post-processing of earlier ones, so every stage may spend the full budget"
        ),
        independent_account=independent_account(mu, ledger.budget),
        audit=audit_evidence(audit, "joint", ledger.budget),
        releases=releases_of(ledger, epoch="stage", participants="rows"),
        spent=asdict(ledger.spent),
        spent_means=(
            f"{own_budget(ledger.budget, 'Each row', 'its')} This fit has spent at most epsilon "
            f"{ledger.spent.epsilon:.6g} of it, once for every row; more rows would not have "
            "spent more. A further fit on the same rows spends again, and the two add up."
        ),
        **attached(declaration, digests),
        versions=versions_of("opendp", "dp-accounting", "numpy", "scipy"),
    )
