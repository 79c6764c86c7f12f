"""What the certificate of a policy states."""

from dataclasses import asdict
from typing import Any

from capri.errors import ConfigurationError
from capri.privacy.calibration import noise_multiplier
from capri.privacy.certificate.account import independent_account
from capri.privacy.certificate.beliefs import belief_table, stated
from capri.privacy.certificate.declaration import Declaration
from capri.privacy.certificate.document import Certificate
from capri.privacy.certificate.evidence import audit_evidence
from capri.privacy.certificate.wording import (
    ANALYTIC,
    NO_COMMON_STORE,
    NOISE,
    OPERATOR,
    OTHER_SYSTEMS,
    PUBLIC_SETTINGS,
    TRUE_OF_MANY,
    attached,
    by_whom,
    own_budget,
    releases_of,
    versions_of,
)
from capri.privacy.ledger import Ledger
from capri.privacy.promise import PrivacyModel
from capri.privacy.users import UserLimit

_STATEMENTS = {
    PrivacyModel.JOINT: (
        "Whatever anyone can learn from the actions given to other people, and from everything the "
        "curator publishes, would be {likely} if the data of any one privacy unit had been "
        "different. {moved} The curator sees the data and is trusted with it."
    ),
    PrivacyModel.LOCAL: (
        "Each report is made private before it is summed: what anyone reads in it would be "
        "{likely} if the person's data had been different. {moved} Whoever receives reports "
        "need not be trusted; the program that makes them sees the data."
    ),
}
_PROTECTED_FROM = {
    PrivacyModel.JOINT: (
        "everybody outside the curator: the public, the other users together, and whoever reads "
        "what is published, even with every other person's data in hand and unlimited computers"
    ),
    PrivacyModel.LOCAL: (
        "everybody who sees reports, the server that sums them included, even with every other "
        "person's data in hand and unlimited computers"
    ),
}
_MECHANISMS = {
    PrivacyModel.JOINT: (
        "sum of contributions, each clipped in norm and rounded to an integer grid, plus " + NOISE
    ),
    PrivacyModel.LOCAL: (
        "each contribution, clipped in norm and rounded to an integer grid, plus " + NOISE
    ),
}


def certify_policy(
    *,
    model: PrivacyModel,
    limit: UserLimit | None,
    composition: float,
    ledger: Ledger | None,
    private: bool,
    declaration: Declaration | None = None,
    audit: Any = None,
    digests: dict[str, Any] | None = None,
    accounted: bool = True,
) -> Certificate:
    """State the guarantee of a policy, or refuse: no budget and no real noise, no certificate.

    ``accounted=False`` leaves the independent account out, where only the terms are wanted.
    """
    if ledger is None:
        raise ConfigurationError(
            "no certificate: this policy runs without privacy. Give it a capri.Budget"
        )
    if not private:
        raise ConfigurationError(
            "no certificate: a simulation draws seeded noise and protects nobody. "
            "Leave simulation_seed at None"
        )
    unit = "one round of one user: context, action and reward"
    composed = (
        "parallel: a user is in one epoch, later releases are post-processing of it, so every "
        "epoch may spend the full budget"
    )
    once = "every user takes part in one round at most"
    presence = (
        "Taking part is not covered: that somebody visits, when, and how many visits there were "
        "are taken to be public. Where coming or staying away itself depends on private data, "
        "this is outside of the promise; users are anonymous here, and no visit is counted in "
        "secret."
    )
    if limit is not None:
        unit = f"one user: all of up to {limit.total} contributions, at most "
        unit += f"{limit.per_epoch} per epoch"
        composed = (
            f"group privacy within an epoch and adaptive Gaussian composition across epochs, "
            f"a factor of {composition:g} on the noise"
        )
        once = "user ids tell users apart; the limit per user is enforced"
        presence = (
            "Taking part is not covered: that a user visits, comes back or stays away, and when, "
            f"are taken to be public. The promise covers what up to {limit.total} visits of a "
            "user contain, not that they took place; where coming back depends on private data, "
            "this is outside of the promise."
        )
    joint = model is PrivacyModel.JOINT
    multiplier = noise_multiplier(ledger.budget, 1, composition) / 2
    mu = max((event.mu for event in ledger.events), default=1 / multiplier)
    assumptions = (
        (
            "what people do may follow everything that is published; in no other way does "
            "anybody's context or reward depend on another user's context, action or reward",
            OPERATOR,
        ),
        (once, OPERATOR),
        PUBLIC_SETTINGS,
        (_newest(digests), OPERATOR),
        (
            _out_of_sight(digests)
            if joint
            else "the process that makes the reports is trusted, or runs on the user's device",
            OPERATOR,
        ),
        *(() if ledger.prior is None else ((ledger.prior.assumption, OPERATOR),)),
    )
    if digests is not None and ledger.prior is not None:
        digests = {**digests, "prior": ledger.prior.digest}
    return Certificate(
        model=str(model),
        **stated(_STATEMENTS[model], belief_table(ledger.budget)),
        privacy_unit=unit,
        neighbouring_relation="replace one: the same number of rounds, one unit's data changed",
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        protects="contexts, actions and rewards of the unit",
        protects_from=_PROTECTED_FROM[model],
        presence=presence,
        not_protected=(
            "a user from whoever sees that very user's own decision: it is given to the user, and "
            "to whoever sends the key that it was asked for with"
            if joint
            else "a user from the program that makes the reports, if it runs elsewhere than on "
            "the user's device",
            *(
                ("anybody from the curator, and from whoever breaks into the curator's machine",)
                if joint
                else ()
            ),
            TRUE_OF_MANY,
            OTHER_SYSTEMS,
        ),
        **by_whom(assumptions),
        mechanism=_MECHANISMS[model],
        calibration=ANALYTIC + "; the paper's noise where larger",
        noise_multiplier=multiplier,
        composition=composed,
        independent_account=(
            independent_account(mu * composition, ledger.budget) if accounted else None
        ),
        audit=audit_evidence(audit, str(model), ledger.budget),
        releases=releases_of(ledger, epoch="epoch", participants="decisions"),
        spent=asdict(ledger.spent),
        spent_means=_policy_spent(ledger, limit),
        **attached(declaration, digests),
        versions=versions_of("opendp", "dp-accounting", "numpy", "scipy"),
    )


def _newest(digests: dict[str, Any] | None) -> str:
    """What keeps released data from being released again from an older copy."""
    store = (digests or {}).get("store")
    if store is None:
        return "the policy runs in one process at a time and is always loaded from its newest file"
    if store.get("anchored"):
        return (
            "the store is never put back to an older copy; an anchor outside of it lets every "
            "process refuse one that is, as long as the anchor is not put back, too"
        )
    return (
        "the store is never put back to an older copy. There is no anchor outside of it: a "
        "machine that has never seen the newer one would not notice, and release data again"
    )


def _out_of_sight(digests: dict[str, Any] | None) -> str:
    """What of the curator an attacker must not see; what may be seen of a store's timing."""
    store = (digests or {}).get("store")
    if store is None:
        return "the curator's memory, timing and machine are out of an attacker's sight"
    late = store.get("missed", 0)
    found = f"{late} of the releases so far {'was' if late == 1 else 'were'} late"
    return (
        "the curator's memory and machine are out of an attacker's sight. A release becomes public "
        "at a moment that is fixed before its data are read. "
        f"{found if late else 'All releases so far were ready then'}; lateness is assumed to come "
        "from the load of the machine, not from any one person's data"
    )


def _policy_spent(ledger: Ledger, limit: UserLimit | None) -> str:
    """Whose budget was spent, and by what. No figure here grows with the number of users."""
    own = own_budget(ledger.budget)
    if not ledger.events:
        return f"Nothing was released, so nobody has spent anything. {own}"
    most = f"at most epsilon {ledger.spent.epsilon:.6g}"
    if limit is None:
        return (
            f"{own} Whoever took part in a released epoch has spent {most} of it, once and for "
            f"all; whoever did not has spent nothing. {NO_COMMON_STORE}"
        )
    return (
        f"{own} Whoever used up all {limit.total} contributions in released epochs has spent "
        f"{most} of it, whoever made fewer has spent less, and whoever made none nothing. It is "
        "not a common store that runs out: users bring a budget of their own."
    )
