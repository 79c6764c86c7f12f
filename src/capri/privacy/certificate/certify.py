"""What certificates state: one template, filled with the words of a policy, of devices or of a fit.

The words are data, words.toml. What is certified decides which kinds of words there are, and what
numbers stand in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, Any

from capri.checks import is_number
from capri.errors import BudgetError, ConfigurationError, warn_of_leak
from capri.privacy.budget import Budget, PrivacyModel, UserLimit
from capri.privacy.certificate.beliefs import belief_table, in_words, likely
from capri.privacy.certificate.document import (
    Certificate,
    Declaration,
    assumed,
    filled,
    worded,
    words,
)
from capri.privacy.certificate.total import stated_total
from capri.privacy.layout import MECHANISMS, Norm
from capri.privacy.ledger import LEARNING, Ledger, PriorEvent
from capri.privacy.shuffle import Shuffle
from capri.version import version_of

if TYPE_CHECKING:
    from capri.store.reservation import Reservation

# The libraries that noise and its account rest on.
_NOISE = ("opendp", "dp-accounting", "numpy", "scipy")
_NOTHING = {"epsilon": 0.0, "delta": 0.0}
_ACCOUNTANT = "dp-accounting"
# Privacy losses are rounded up to multiples of claim / _STEPS; the answer may exceed the claim by
# one such step and no more. Measured: by less than a tenth of one, down to delta = 1e-100.
_STEPS = 1_000
# Its masses are floating-point numbers: so much stands for a delta of 0, at which it may find no
# epsilon at all. Laplace noise of epsilon e has epsilon e - 2e-15 there.
_SMALLEST_DELTA = 1e-15


def certify_policy(
    *,
    model: PrivacyModel,
    limit: UserLimit | None,
    composition: float,
    ledger: Ledger | None,
    private: bool,
    norms: Sequence[Norm] = (Norm.L2, Norm.L1),
    declaration: Declaration | None = None,
    audit: Any = None,
    digests: dict[str, Any] | None = None,
    accounted: bool = True,
) -> Certificate:
    """State the guarantee of a policy, or refuse: no budget and no real noise, no certificate.

    ``norms``: in which messages of epochs to come may be compared. ``accounted=False`` leaves the
    independent account out, where only the terms are wanted.
    """
    if ledger is None:
        raise ConfigurationError(
            "no certificate: this policy runs without privacy. Give it a capri.Budget"
        )
    _refuse_simulation(private, "simulation_seed")
    store = (digests or {}).get("store")
    used = _norms(ledger, norms)
    kinds = [
        "policy",
        *(["users"] if limit is not None else []),
        *(["forgetful"] if limit is not None and store is None else []),
        *(["stored"] if store is not None else []),
        *(["guarded"] if store is not None and store.get("guarded") else []),
        str(model),
        *_kinds_of_noise(used, ledger, limit),
        *([] if ledger.events else ["unreleased"]),
    ]
    if accounted and "forgetful" in kinds:
        warn_of_leak(
            "this policy counts users' contributions in memory: a crash forgets those since the "
            "last save, and a user may use them once more. Its certificate names that as an "
            "assumption; a policy with store= forgets none"
        )
    factors = {Norm.L2: composition, Norm.L1: 1.0 if limit is None else float(limit.total)}
    scales = {norm: MECHANISMS[norm].scale(1.0, ledger.budget, 1, factors[norm]) for norm in used}
    return _certificate(
        kinds,
        ledger.budget,
        belief_table(ledger.budget, laplace=Norm.L1 in (*norms, *used)),
        numbers={
            "spent": ledger.spent.epsilon,
            "factor": composition,
            "ready": _readiness(0 if store is None else store.get("missed", 0)),
            **({} if limit is None else {"total": limit.total, "per_epoch": limit.per_epoch}),
        },
        noise_multiplier=min(MECHANISMS[norm].spread * scale for norm, scale in scales.items()),
        independent_account=_dearest_account(ledger, scales, factors) if accounted else None,
        audit=audit_evidence(audit, str(model), ledger.budget),
        releases=_releases_of(ledger, epoch="epoch", participants="decisions"),
        reservation=ledger.reservation,
        spent=asdict(ledger.spent),
        declaration=declaration,
        digests=digests,
        prior=ledger.prior,
    )


def _norms(ledger: Ledger, norms: Sequence[Norm]) -> tuple[Norm, ...]:
    """In which norms messages were compared so far; before the first release, in which they may."""
    possible = set(norms) if ledger.budget.delta else {Norm.L1}
    used = {event.norm for event in ledger.events} or possible
    return tuple(norm for norm in Norm if norm in used)


def _kinds_of_noise(norms: Sequence[Norm], ledger: Ledger, limit: UserLimit | None) -> list[str]:
    """What there is to say beside where the noise is not Gaussian alone."""
    if Norm.L1 not in norms:
        return []
    return [
        *(["laplace"] if norms == (Norm.L1,) else ["both_noises"]),
        *(["laplace_users"] if limit is not None else []),
        *([] if ledger.budget.delta else ["pure"]),
    ]


def _dearest_account(
    ledger: Ledger, scales: dict[Norm, float], factors: dict[Norm, float]
) -> dict[str, Any]:
    """The independent account of each kind of noise, of which the larger epsilon is stated.

    Kinds mix only where a user is in one release, so they never compose with each other.
    """
    found = []
    for norm, scale in scales.items():
        losses = [event.mu for event in ledger.events if event.norm is norm] or [1 / scale]
        found.append(independent_account(max(losses) * factors[norm], ledger.budget, norm))
    return max(found, key=lambda account: float(account["epsilon"]))


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
    reservation: "Reservation | None" = None,
) -> Certificate:
    """State what every user of a :class:`LocalClient` is promised.

    ``reported``: whether any report came in. A report spends when it is made, not when its epoch
    closes. ``shuffle``: how reports are mixed, where the budget is that of a batch.
    """
    # What a report promises by itself.
    alone = Budget(budget.epsilon if shuffle is None else shuffle.most)
    stated = alone if shuffle is None else budget
    kinds = [
        "device",
        *([] if shuffle is None else ["mixed"]),
        *([] if reported else ["unreported"]),
    ]
    mixed: dict[str, Any] = {}
    if shuffle is not None:
        mixed["locally"] = {
            "epsilon": alone.epsilon,
            "delta": alone.delta,
            "protects_from": "everybody, the shuffler and whoever reads single reports included",
        }
    return _certificate(
        kinds,
        stated,
        belief_table(stated, gaussian=shuffle is None),
        numbers={} if shuffle is None else {"honest": 100 * shuffle.honest},
        noise_multiplier=None,
        independent_account=None,
        audit=audit_evidence(audit, "device", alone),
        releases=releases,
        spent=asdict(stated) if reported else _NOTHING,
        declaration=declaration,
        digests=digests,
        prior=prior,
        libraries=("numpy",),
        reservation=reservation,
        **mixed,
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
    _refuse_simulation(private, "random_state")
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
    spent = ledger.spent
    assert spent.mu is not None  # every release of a fit is Gaussian
    mu = spent.mu
    return _certificate(
        ["fit", "refitted"] if earlier_fits else ["fit"],
        ledger.budget,
        belief_table(ledger.budget),
        numbers={
            "spent": spent.epsilon,
            "earlier": earlier_fits,
            "owner": "Each row",
            "its": "its",
        },
        noise_multiplier=1 / mu,
        independent_account=independent_account(mu, ledger.budget),
        audit=audit_evidence(audit, "joint", ledger.budget),
        releases=_releases_of(ledger, epoch="table", participants="rows"),
        reservation=ledger.reservation,
        spent=asdict(spent),
        declaration=declaration,
        digests=digests,
    )


# -- the template ---------------------------------------------------------------------------------


def _certificate(
    kinds: Sequence[str],
    budget: Budget,
    beliefs: tuple[dict[str, Any], ...],
    *,
    numbers: dict[str, Any],
    declaration: Declaration | None,
    digests: dict[str, Any] | None,
    prior: PriorEvent | None = None,
    libraries: tuple[str, ...] = _NOISE,
    reservation: "Reservation | None" = None,
    **figures: Any,
) -> Certificate:
    """Every certificate: words of its kinds, with the numbers in them, and figures beside."""
    if not isinstance(declaration, Declaration | None):
        raise ConfigurationError(
            f"declaration must be a capri.Declaration, got {type(declaration).__name__}"
        )
    if digests is not None and prior is not None:
        digests = {**digests, "prior": prior.digest}
    said = _worded(
        kinds,
        likely=likely(beliefs),
        moved=in_words(beliefs),
        prior="" if prior is None else prior.assumption,
        slack=f"at delta {budget.delta:g}" if budget.delta else "and no delta",
        **asdict(budget),
        **{"owner": "Each user", "its": "their"} | numbers,
    )
    return Certificate(
        **said,
        epsilon=budget.epsilon,
        delta=budget.delta,
        beliefs=beliefs,
        declaration=(declaration or Declaration()).to_dict(),
        digests=digests or {"configuration": None, "plans": []},
        versions={name: version_of(name) for name in ("capri-bandits", *libraries)},
        in_total=stated_total(reservation, said["privacy_unit"], declaration),
        **figures,
    )


def _worded(kinds: Sequence[str], **values: Any) -> dict[str, Any]:
    """The parts of a certificate in words."""
    parts = worded("common", *kinds)
    values |= {name: filled(text, values) for name, text in words()["phrases"].items()}
    uncovered = parts.pop("not_protected").values()
    assumptions, kept_by = assumed(parts, values)
    return {name: filled(text, values) for name, text in parts.items()} | {
        "not_protected": tuple(filter(None, (filled(text, values) for text in uncovered))),
        "assumptions": assumptions,
        "kept_by": kept_by,
    }


def _refuse_simulation(private: bool, seed: str) -> None:
    if not private:
        raise ConfigurationError(
            "no certificate: a simulation draws seeded noise and protects nobody. "
            f"Leave {seed} at None"
        )


def _readiness(late: int) -> str:
    """Whether releases were there at the moment that was fixed for them."""
    if not late:
        return "All releases so far were ready then"
    return f"{late} of the releases so far {'was' if late == 1 else 'were'} late"


def _releases_of(ledger: Ledger, *, epoch: str, participants: str) -> tuple[dict[str, Any], ...]:
    """One row for each event of a ledger, under the names that its reader knows."""
    shadows = any(event.purpose != LEARNING for event in ledger.events)
    stages = any(event.stage for event in ledger.events)
    return tuple(
        {
            epoch: event.epoch,
            **({"stage": event.stage} if stages else {}),
            participants: event.participants,
            "mechanism": event.mechanism,
            "norm": str(event.norm),
            "coordinates": event.rank,
            "sensitivity": event.sensitivity,
            "noise": event.noise_scale,
            "calibration": event.calibration,
            "epsilon": ledger.spent_in(event.epoch).epsilon,
            **({"purpose": event.purpose} if shadows else {}),
        }
        for event in ledger.events
    )


# -- what others say of a claim: an account of the noise, and an attack on the code ----------------


def independent_account(mu: float, budget: Budget, norm: Norm = Norm.L2) -> dict[str, Any]:
    """Epsilon of the dearest user's releases together, or a refusal where it is too much.

    ``mu = sensitivity / noise`` of all releases that one user can be in, composed. The accountant
    builds the distribution of the privacy loss of ``N(0, 1/mu^2)`` against ``N(1, 1/mu^2)``: noise
    multiplier ``sigma / (2 B C)``, add-or-remove, which is replace-one at sensitivity ``2 B C``.

    In L1 the noise is Laplace, whose loss is largest if all of the distance is in one coordinate:
    so that one dominates whatever the messages are.
    """
    delta = budget.delta if norm is Norm.L2 else _SMALLEST_DELTA
    found = _epsilon(mu, budget.epsilon, delta, norm)
    step = budget.epsilon / _STEPS
    if not found <= budget.epsilon + step:
        raise BudgetError(
            f"no certificate: {_ACCOUNTANT} finds epsilon {found:g} for a noise of {1 / mu:g} "
            f"times the sensitivity, the claim is {budget.epsilon:g}. Please report this as a "
            "defect of the calibration"
        )
    return {
        "by": f"{_ACCOUNTANT} {version_of(_ACCOUNTANT)}",
        "noise_multiplier": 1 / mu,
        "epsilon": found,
        "delta": delta,
        "tolerance": step,
    }


@lru_cache(maxsize=64)
def _epsilon(mu: float, claim: float, delta: float, norm: Norm) -> float:
    from dp_accounting.pld import privacy_loss_distribution as losses

    step = claim / _STEPS
    if norm is Norm.L1:
        found = losses.from_laplace_mechanism(1 / mu, value_discretization_interval=step)
    else:
        found = losses.from_gaussian_mechanism(
            1 / mu,
            value_discretization_interval=step,
            # Tails that are cut off are counted as lost: they must be small against delta.
            log_mass_truncation_bound=min(-50.0, log(delta) - 20.0),
        )
    return float(found.get_epsilon_for_delta(delta))


def audit_evidence(audit: Any, model: str, budget: Budget) -> dict[str, Any] | None:
    """The claim and the proof of an audit, given as a result or as what ``capri audit`` writes.

    Refused where the audit attacked another promise, or proved more than is claimed.
    """
    if audit is None:
        return None
    found = _read(audit)
    claimed, delta = found["claimed_epsilon"], found["delta"]
    if (found["model"], claimed, delta) != (model, budget.epsilon, budget.delta):
        raise ConfigurationError(
            f"the audit attacked model {found['model']} at epsilon {claimed:g} and delta "
            f"{delta:g}; this certificate states model {model}, epsilon {budget.epsilon:g} and "
            f"delta {budget.delta:g}: audit the promise that is certified"
        )
    if not found["passed"]:
        raise ConfigurationError(
            f"no certificate: the audit failed, and proves epsilon {found['proven_epsilon']:g} "
            f"against a claim of {claimed:g}. Users are not protected as promised"
        )
    return found


def _read(audit: Any) -> dict[str, Any]:
    """What a certificate quotes of a result, or of the JSON that ``capri audit --json`` writes."""
    try:
        told = audit if isinstance(audit, Mapping) else audit.to_dict()
        numbers = {
            "claimed_epsilon": told["claimed"]["epsilon"],
            "proven_epsilon": told["proven"]["epsilon"],
            "delta": told["delta"],
            "confidence": told["confidence"],
        }
        model, passed = told["model"], told["passed"]
    except (AttributeError, KeyError, TypeError):
        raise _not_an_audit(audit) from None
    sound = isinstance(model, str) and isinstance(passed, bool)
    if not (sound and all(is_number(value) for value in numbers.values())):
        raise _not_an_audit(audit)
    figures = {name: float(value) for name, value in numbers.items()}
    return {"model": model, **figures, "passed": passed}


def _not_an_audit(audit: object) -> ConfigurationError:
    return ConfigurationError(
        "audit must be the result of an audit or the values of its JSON file, got "
        f"{type(audit).__name__}"
    )
