"""An independent account: what dp-accounting says of the noise that a certificate states."""

from functools import lru_cache
from math import log
from typing import Any

from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.version import version_of

NAME = "dp-accounting"
# Privacy losses are rounded up to multiples of claim / _STEPS; the answer may exceed the claim by
# one such step and no more. Measured: by less than a tenth of one, down to delta = 1e-100.
_STEPS = 1_000


def independent_account(mu: float, budget: Budget) -> dict[str, Any]:
    """Epsilon of the dearest user's Gaussian releases together, or a refusal where it is too much.

    ``mu = sensitivity / noise`` of all releases that one user can be in, composed. The accountant
    builds the distribution of the privacy loss of ``N(0, 1/mu^2)`` against ``N(1, 1/mu^2)``: noise
    multiplier ``sigma / (2 B C)``, add-or-remove, which is replace-one at sensitivity ``2 B C``.
    """
    found = _epsilon(mu, budget.epsilon, budget.delta)
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
        "delta": budget.delta,
        "tolerance": step,
    }


@lru_cache(maxsize=64)
def _epsilon(mu: float, claim: float, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    losses = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu,
        value_discretization_interval=claim / _STEPS,
        # Tails that are cut off are counted as lost: they must be small against delta.
        log_mass_truncation_bound=min(-50.0, log(delta) - 20.0),
    )
    return float(losses.get_epsilon_for_delta(delta))
