"""What others say of a claim: an independent account of the noise, and an attack on the code."""

from collections.abc import Mapping
from functools import lru_cache
from math import log
from typing import Any

from capri.checks import is_number
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.mechanism import Norm
from capri.version import version_of

NAME = "dp-accounting"
# Privacy losses are rounded up to multiples of claim / _STEPS; the answer may exceed the claim by
# one such step and no more. Measured: by less than a tenth of one, down to delta = 1e-100.
_STEPS = 1_000
# Its masses are floating-point numbers: so much stands for a delta of 0, at which it may find no
# epsilon at all. Laplace noise of epsilon e has epsilon e - 2e-15 there.
_SMALLEST_DELTA = 1e-15


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
            f"no certificate: {NAME} finds epsilon {found:g} for a noise of {1 / mu:g} times the "
            f"sensitivity, the claim is {budget.epsilon:g}. Please report this as a defect of the "
            "calibration"
        )
    return {
        "by": f"{NAME} {version_of(NAME)}",
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
