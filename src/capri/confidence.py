"""How far an estimate may be from the truth. Widths change regret, never privacy."""

from math import log, sqrt

from capri.privacy.budget import Budget


def paper_beta(*, reward_bound: float, tau: float, horizon: int, failure: float) -> float:
    """Confidence parameter ``beta(delta)`` of the lemma in Appendix A.

    ``90 B sqrt(ln(168 T/d)) + 52 B sqrt(ln(168 T/d) ln(12/d)) / sqrt(tau)
    + 3 B sqrt(2 ln(6/d)) + sqrt(24 tau)``
    """
    covariance = log(168 * horizon / failure)
    return (
        90 * reward_bound * sqrt(covariance)
        + 52 * reward_bound * sqrt(covariance * log(12 / failure)) / sqrt(tau)
        + 3 * reward_bound * sqrt(2 * log(6 / failure))
        + sqrt(24 * tau)
    )


def paper_beta_privacy(
    *, reward_bound: float, budget: Budget, horizon: int, failure: float, reports: int = 1
) -> float:
    """Confidence parameter ``beta_1`` of the lemma in Appendix A, for the privacy noise.

    ``(8 B ln T / eps) ln(3/d) sqrt(ln(1.25 ln T / delta_DP))``, times ``sqrt(reports)`` in the
    local model, where each of the epoch's reports carries noise. (Eqn prunning_sets in the main
    text prints another, smaller ``beta_1``, which under-covers.)
    """
    log_horizon = log(horizon)
    return (
        8 * reward_bound * log_horizon / budget.epsilon
        * log(3 / failure)
        * sqrt(log(1.25 * log_horizon / budget.delta))
        * sqrt(reports)
    )  # fmt: skip


def paper_width(
    *,
    sigma_max: float,
    reward_bound: float,
    tau: float,
    budget: Budget | None,
    horizon: int,
    pairs: int,
    failure_probability: float,
    reports: int = 1,
) -> float:
    """``Delta_r = beta(d') sigma~_max + beta_1(d') sigma~_max^2`` with ``d' = d / (|W| T ln T)``.

    Eqn prunning_sets. Without privacy there is no noise and ``beta_1`` is 0.
    """
    failure = failure_probability / (pairs * horizon * log(horizon))
    width = sigma_max * paper_beta(
        reward_bound=reward_bound, tau=tau, horizon=horizon, failure=failure
    )
    if budget is not None:
        width += sigma_max**2 * paper_beta_privacy(
            reward_bound=reward_bound,
            budget=budget,
            horizon=horizon,
            failure=failure,
            reports=reports,
        )
    return width
