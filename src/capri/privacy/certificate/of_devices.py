"""What the certificate of an aggregator states: what every device promises to its user."""

from dataclasses import replace
from typing import Any

from capri.privacy.budget import Budget
from capri.privacy.certificate.beliefs import belief_table, stated
from capri.privacy.certificate.declaration import Declaration
from capri.privacy.certificate.document import Certificate
from capri.privacy.certificate.evidence import audit_evidence
from capri.privacy.certificate.mixed import behind_shuffler, mixing_assumptions
from capri.privacy.certificate.wording import (
    DEVICE,
    NO_COMMON_STORE,
    OPERATOR,
    OTHER_SYSTEMS,
    PUBLIC_SETTINGS,
    TRUE_OF_MANY,
    attached,
    by_whom,
    own_budget,
    versions_of,
)
from capri.privacy.mixing import Shuffle
from capri.privacy.prior_event import PriorEvent

_ON_DEVICES = (
    "Each person's report is made private on their own device: what anyone reads in it, the "
    "aggregator included, would be {likely} if the person's data had been different. {moved} "
    "Nobody has to be trusted with the data."
)
_RANDOMIZER = (
    "a seed drawn by the operating system names public random directions; the report is the "
    "seed and the number of one of them, chosen with exact integer probabilities whose ratio "
    "between any two data is at most e^epsilon"
)


def certify_devices(
    budget: Budget,
    releases: tuple[dict[str, Any], ...],
    *,
    reported: bool,
    declaration: Declaration | None = None,
    audit: Any = None,
    digests: dict[str, Any] | None = None,
    prior: PriorEvent | None = None,
    shuffle: Shuffle | None = None,
) -> Certificate:
    """State what every user of a :class:`LocalClient` is promised.

    ``reported``: whether any report came in. A report spends when it is made, not when its epoch
    closes. ``shuffle``: how reports are mixed, where the budget is that of a batch.
    """
    # What a report promises by itself.
    kept = Budget(budget.epsilon if shuffle is None else shuffle.most)
    assumptions = (
        (
            "the device runs capri.LocalClient unchanged and gives it the person's own budget",
            DEVICE,
        ),
        (
            "a person reports from one device, once; the client enforces it while it runs, and "
            "across restarts where it keeps a receipt",
            DEVICE,
        ),
        ("the operating system's random numbers are unpredictable", DEVICE),
        (
            "that somebody takes part, and when, is not hidden by the report itself; how long the "
            "device computed is out of an attacker's sight",
            OPERATOR,
        ),
        PUBLIC_SETTINGS,
        *(() if shuffle is None else mixing_assumptions(shuffle)),
        *(() if prior is None else ((prior.assumption, OPERATOR),)),
    )
    if digests is not None and prior is not None:
        digests = {**digests, "prior": prior.digest}
    single = Certificate(
        model="local",
        **stated(_ON_DEVICES, belief_table(kept)),
        privacy_unit="one report of one user: context, action and reward",
        neighbouring_relation="replace one: any two data of the user",
        epsilon=kept.epsilon,
        delta=kept.delta,
        protects="contexts, actions and rewards of the unit, and whether there was a reward",
        protects_from=(
            "everybody, the aggregator and its operator included, even with every other person's "
            "data in hand and unlimited computers"
        ),
        presence=(
            "Taking part is not covered: that a device sends a report, when, and from which "
            "address are visible to whoever receives it. That a reward was missing is covered: "
            "such a report looks like any other."
        ),
        not_protected=(
            "a person from whoever controls their device or watches what it does",
            TRUE_OF_MANY,
            OTHER_SYSTEMS,
        ),
        **by_whom(assumptions),
        mechanism=_RANDOMIZER,
        calibration="pure epsilon, delta = 0, checked by every device in exact fractions",
        noise_multiplier=None,
        composition="none needed: a user reports once, and all else is post-processing of reports",
        independent_account=None,
        audit=audit_evidence(audit, "devices", kept),
        releases=releases,
        spent={"epsilon": kept.epsilon, "delta": kept.delta}
        if reported
        else {"epsilon": 0.0, "delta": 0.0},
        spent_means=(
            f"{own_budget(kept)} Whoever made a report has spent it, once; whoever "
            f"made none has spent nothing. {NO_COMMON_STORE}"
            if reported
            else f"No report came in, so nobody has spent anything. {own_budget(kept)}"
        ),
        **attached(declaration, digests),
        versions=versions_of("numpy"),
    )
    if shuffle is None:
        return single
    return replace(single, **behind_shuffler(budget, shuffle, reported=reported))
