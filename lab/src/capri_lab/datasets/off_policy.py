"""What a target policy would earn, estimated from the log of another.

NOT PRIVATE. These estimates are plain sums over the log: whoever sees one may learn about the
people in it. They are meant for simulations and for public logs. Nothing here spends or checks a
privacy budget, whatever policy wrote the log.

A target that was learnt from the same log has seen the rewards that judge it: all three estimates
are then biased, usually upwards. Learn it from other rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol, TypeAlias, final, runtime_checkable

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import between, is_whole, positive
from capri.errors import ConfigurationError, ShapeError
from capri_lab.datasets.logs import BanditLog
from capri_lab.streams import LOG_FOLDS


@runtime_checkable
class HasLaw(Protocol):
    """A policy whose law is known, such as :class:`capri.Capri`."""

    def probabilities(self, contexts: object) -> FloatArray:
        """Probability of every action, ``(n, actions)``."""


Target: TypeAlias = HasLaw | Callable[[FloatArray], FloatArray]


class RewardModel(Protocol):
    """Learns from some rounds and predicts the reward of every action on others."""

    def predict(
        self,
        train_contexts: FloatArray,
        train_actions: IntArray,
        train_rewards: FloatArray,
        contexts: FloatArray,
        actions: int,
    ) -> FloatArray:
        """Predicted rewards, ``(n, actions)``, from training rounds."""


@final
@dataclass(frozen=True, kw_only=True)
class RidgeModel:
    """One linear model per action, shrunk towards the mean reward of all rounds.

    With ``m`` the mean reward and ``Z`` the rows ``(1, c)`` of the rounds with action ``x``,

        y(c, x) = m + (1, c) b_x,     b_x = (Z^T Z + ridge I)^-1 Z^T (y - m).

    An action without rounds is predicted to earn ``m``.
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        positive("ridge", self.ridge)

    def predict(
        self,
        train_contexts: FloatArray,
        train_actions: IntArray,
        train_rewards: FloatArray,
        contexts: FloatArray,
        actions: int,
    ) -> FloatArray:
        """Predicted rewards, ``(n, actions)``."""
        if len(train_rewards) == 0:
            raise ConfigurationError("a reward model needs at least one round to learn from")
        middle = float(train_rewards.mean())
        rows, train_rows = _with_one(contexts), _with_one(train_contexts)
        predicted = np.full((len(contexts), actions), middle)
        penalty = self.ridge * np.eye(rows.shape[1])
        for action in range(actions):
            own = train_actions == action
            z = train_rows[own]
            slope = np.linalg.solve(z.T @ z + penalty, z.T @ (train_rewards[own] - middle))
            predicted[:, action] += rows @ slope
        return predicted


def _with_one(contexts: FloatArray) -> FloatArray:
    return np.hstack([np.ones((len(contexts), 1)), contexts])


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value per round with its standard error and interval. Carries no privacy claim.

    ``effective_rounds`` is ``(sum w)^2 / sum w^2``: the fewer, the less the log says about the
    target, and the less its normal interval can be trusted.
    """

    method: str
    value: float
    standard_error: float
    low: float
    high: float
    confidence: float
    rounds: int
    effective_rounds: float


def ips(log: BanditLog, target: Target, *, confidence: float = 0.95) -> Estimate:
    """Inverse propensity score. Not private: for simulations and public logs only.

        V = mean_t w_t y_t,     w_t = pi(x_t | c_t) / p_t

    Unbiased when the logged propensities are exact and positive wherever the target plays (Horvitz
    and Thompson 1952). The interval is ``V +- z s / sqrt(n)`` with the standard deviation ``s`` of
    the terms; with a log of a policy that learnt as it went the terms are a martingale, and the
    interval needs many rounds.
    """
    weights = _weights(log, _law(log, target))
    return _mean("ips", weights * log.rewards, weights, confidence)


def snips(log: BanditLog, target: Target, *, confidence: float = 0.95) -> Estimate:
    """Self-normalised IPS. Not private: for simulations and public logs only.

        V = sum_t w_t y_t / sum_t w_t

    A little biased, usually much less variable, and it moves with the rewards when a constant is
    added to them (Swaminathan and Joachims 2015). Standard error by the delta method,
    ``sqrt(sum_t w_t^2 (y_t - V)^2) / sum_t w_t``.
    """
    weights = _weights(log, _law(log, target))
    total = float(weights.sum())
    if total == 0.0:
        raise ConfigurationError("the target plays none of the logged actions: nothing to estimate")
    value = float(weights @ log.rewards) / total
    error = float(np.sqrt(np.sum((weights * (log.rewards - value)) ** 2))) / total
    return _estimate("snips", value, error, weights, confidence)


def doubly_robust(
    log: BanditLog,
    target: Target,
    *,
    model: RewardModel | None = None,
    folds: int = 5,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Doubly robust estimate, cross-fitted. Not private: for simulations and public logs only.

        V = mean_t [ sum_x pi(x | c_t) q(c_t, x) + w_t (y_t - q(c_t, x_t)) ]

    with a reward model ``q`` (:class:`RidgeModel` unless given) that for each of ``folds`` random
    parts of the log is learnt from the others, so that no round judges itself (Dudik, Langford and
    Li 2011; Chernozhukov et al. 2018). Unbiased with exact propensities whatever the model, if the
    log is that of a fixed policy: when the logger learnt as it went, the other folds hold later
    rounds, which depend on this one, and the model with them. The better the model, the smaller
    the variance.
    """
    count = len(log)
    if not is_whole(folds) or not 2 <= folds <= count:
        raise ConfigurationError(
            f"folds must be a whole number from 2 to the rounds of the log ({count}), got {folds!r}"
        )
    law = _law(log, target)
    weights = _weights(log, law)
    fitted = RidgeModel() if model is None else model
    part = np.random.default_rng([seed, LOG_FOLDS]).permutation(count) % folds
    predicted = np.empty((count, log.actions))
    for fold in range(folds):
        held, rest = part == fold, part != fold
        predicted[held] = fitted.predict(
            log.contexts[rest],
            log.action_index[rest],
            log.rewards[rest],
            log.contexts[held],
            log.actions,
        )
    played = predicted[np.arange(count), log.action_index]
    terms = (law * predicted).sum(axis=1) + weights * (log.rewards - played)
    return _mean("doubly robust", terms, weights, confidence)


def _law(log: BanditLog, target: Target) -> FloatArray:
    """Probabilities of the target on the log's contexts, checked."""
    function = target.probabilities if isinstance(target, HasLaw) else target
    if not callable(function):
        raise ConfigurationError(
            "target must be a policy with probabilities(contexts) or a function of contexts, "
            f"got {type(target).__name__}"
        )
    law = np.asarray(function(log.contexts), dtype=np.float64)
    if law.shape != (len(log), log.actions):
        raise ShapeError(
            f"the target's probabilities must have shape ({len(log)}, {log.actions}), "
            f"got {law.shape}"
        )
    if not ((law >= 0.0).all() and (np.abs(law.sum(axis=1) - 1.0) < 1e-6).all()):
        raise ConfigurationError(
            "the target's probabilities must be zero or more and sum to 1 in every context"
        )
    return law


def _weights(log: BanditLog, law: FloatArray) -> FloatArray:
    """``w_t = pi(x_t | c_t) / p_t``."""
    return np.asarray(law[np.arange(len(log)), log.action_index] / log.propensities)


def _mean(method: str, terms: FloatArray, weights: FloatArray, confidence: float) -> Estimate:
    """Mean of terms with the standard error of a mean."""
    if len(terms) < 2:
        raise ConfigurationError("an estimate with an interval needs at least two rounds, got 1")
    error = float(terms.std(ddof=1)) / float(np.sqrt(len(terms)))
    return _estimate(method, float(terms.mean()), error, weights, confidence)


def _estimate(
    method: str, value: float, error: float, weights: FloatArray, confidence: float
) -> Estimate:
    between("confidence", confidence, 0.0, 1.0, open_ends=True)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * error
    square = float(weights @ weights)
    return Estimate(
        method=method,
        value=value,
        standard_error=error,
        low=value - reach,
        high=value + reach,
        confidence=confidence,
        rounds=len(weights),
        effective_rounds=float(weights.sum()) ** 2 / square if square > 0 else 0.0,
    )
