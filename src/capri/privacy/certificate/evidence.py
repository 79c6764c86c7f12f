"""An audit as evidence on a certificate: what an attack on the real code could prove."""

from collections.abc import Mapping
from typing import Any

from capri.checks import is_number
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget

# What a policy's models are called where they are attacked.
_ATTACKED = {"devices": "device"}


def audit_evidence(audit: Any, model: str, budget: Budget) -> dict[str, Any] | None:
    """The claim and the proof of an audit, given as a result or as what ``capri audit`` writes.

    Refused where the audit attacked another promise, or proved more than is claimed.
    """
    if audit is None:
        return None
    found = _from_document(audit) if isinstance(audit, Mapping) else _from_result(audit)
    claimed, delta = found["claimed_epsilon"], found["delta"]
    wanted = _ATTACKED.get(model, model)
    if (found["model"], claimed, delta) != (wanted, budget.epsilon, budget.delta):
        raise ConfigurationError(
            f"the audit attacked model {found['model']} at epsilon {claimed:g} and delta "
            f"{delta:g}; this certificate states model {wanted}, epsilon {budget.epsilon:g} and "
            f"delta {budget.delta:g}: audit the promise that is certified"
        )
    if not found["passed"]:
        raise ConfigurationError(
            f"no certificate: the audit failed, and proves epsilon {found['proven_epsilon']:g} "
            f"against a claim of {claimed:g}. Users are not protected as promised"
        )
    return found


def _from_document(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Of the JSON that ``capri audit --json`` writes."""
    try:
        return _checked(
            model=audit["model"],
            claimed_epsilon=audit["claimed"]["epsilon"],
            proven_epsilon=audit["proven"]["epsilon"],
            delta=audit["delta"],
            confidence=audit["confidence"],
            passed=audit["passed"],
        )
    except (KeyError, TypeError):
        raise _not_an_audit(audit) from None


def _from_result(audit: Any) -> dict[str, Any]:
    """Of what an audit returns; devices have no model of their own, nor a mu."""
    try:
        return _checked(
            model=getattr(audit, "model", "device"),
            claimed_epsilon=getattr(audit, "claimed_epsilon", None) or audit.epsilon,
            proven_epsilon=audit.proven_epsilon,
            delta=audit.delta,
            confidence=audit.confidence,
            passed=audit.passed,
        )
    except AttributeError:
        raise _not_an_audit(audit) from None


def _checked(*, model: Any, passed: Any, **numbers: Any) -> dict[str, Any]:
    if not (isinstance(model, str) and isinstance(passed, bool)):
        raise KeyError
    if not all(is_number(value) for value in numbers.values()):
        raise KeyError
    return {"model": model, **{name: float(value) for name, value in numbers.items()}} | {
        "passed": passed
    }


def _not_an_audit(audit: object) -> ConfigurationError:
    return ConfigurationError(
        "audit must be the result of an audit or the values of its JSON file, got "
        f"{type(audit).__name__}"
    )
