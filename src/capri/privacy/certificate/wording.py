"""Words and rows that every certificate shares, whoever is certified."""

from typing import Any

from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.certificate.declaration import Declaration
from capri.privacy.ledger import LEARNING, Ledger
from capri.version import version_of

# Who keeps an assumption. The operator runs the service, the engineer builds and configures it.
OPERATOR, ENGINEER, DEVICE = "operator", "engineer", "user's device"
NOISE = (
    "discrete Gaussian noise from OpenDP's cryptographic generator, seeded by the operating system"
)
ANALYTIC = (
    "exact Gaussian mechanism (Balle and Wang 2018) at the replace-one sensitivity, with the step "
    "from continuous to integer noise paid for"
)
# Settings must not have seen the data they protect.
PUBLIC_SETTINGS = (
    "the context pool or sampler, the kernel and all settings are public and were chosen without "
    "looking at the data protected here",
    ENGINEER,
)
OTHER_SYSTEMS = (
    "the same people's data in other systems or in other runs: every promise there adds to this one"
)
TRUE_OF_MANY = (
    "what is true of people in general: it is learnt without any one person's data, and may be "
    "concluded of somebody who never took part"
)
NO_COMMON_STORE = (
    "It is not a common store that runs out: later releases take nothing more from these users, "
    "and later users bring a budget of their own."
)


def own_budget(budget: Budget, owner: str = "Each user", its: str = "their") -> str:
    """Whose budget it is, and how large."""
    promised = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"
    return f"{owner} has a budget of {its} own: {promised}."


def by_whom(assumptions: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Assumptions, and in the same order who must keep them."""
    texts, keepers = zip(*assumptions, strict=True)
    return {"assumptions": texts, "kept_by": keepers}


def attached(declaration: Declaration | None, digests: dict[str, Any] | None) -> dict[str, Any]:
    """What belongs to one run rather than to the mechanism."""
    if not isinstance(declaration, Declaration | None):
        raise ConfigurationError(
            f"declaration must be a capri.Declaration, got {type(declaration).__name__}"
        )
    return {
        "declaration": (declaration or Declaration()).to_dict(),
        "digests": digests or {"configuration": None, "plans": []},
    }


def releases_of(ledger: Ledger, *, epoch: str, participants: str) -> tuple[dict[str, Any], ...]:
    """One row for each event of a ledger, under the names that its reader knows."""
    shadows = any(event.purpose != LEARNING for event in ledger.events)
    return tuple(
        {
            epoch: event.epoch,
            participants: event.participants,
            "coordinates": event.rank,
            "sensitivity": event.sensitivity,
            "noise": event.noise_scale,
            "calibration": event.calibration,
            "epsilon": ledger.spent_in(event.epoch).epsilon,
            **({"purpose": event.purpose} if shadows else {}),
        }
        for event in ledger.events
    )


def versions_of(*names: str) -> dict[str, str]:
    """Of this package and of the libraries that the guarantee rests on."""
    return {name: version_of(name) for name in ("capri-bandits", *names)}
