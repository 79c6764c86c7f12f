"""Off-policy estimates against values that are known exactly."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

import capri
from capri.environments import random_rkhs
from capri.errors import ConfigurationError, ShapeError
from capri.kernels import RBF
from capri_lab.datasets import BanditLog, Estimate, RidgeModel, doubly_robust, ips, record, snips

# Forty contexts in the plane, three actions, rewards linear in the context plus noise.
RNG = np.random.default_rng(7)
CONTEXTS = RNG.uniform(-1, 1, size=(40, 2))
SLOPES = np.array([[0.8, -0.2], [-0.5, 0.5], [0.1, 0.9]])
MEANS = np.array([0.6, 0.1, -0.4]) + CONTEXTS @ SLOPES.T
NOISE = 0.3


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


def logging_law(contexts: np.ndarray) -> np.ndarray:
    return softmax(contexts @ np.array([[1.0, -0.5, 0.0], [0.0, 0.5, -0.5]]))


def target_law(contexts: np.ndarray) -> np.ndarray:
    return softmax(2.0 * contexts @ SLOPES.T)


TRUTH = float((target_law(CONTEXTS) * MEANS).sum(axis=1).mean())


def log_of(rounds: int, seed: int) -> BanditLog:
    rng = np.random.default_rng(seed)
    context = rng.integers(len(CONTEXTS), size=rounds)
    law = logging_law(CONTEXTS[context])
    action = (np.cumsum(law, axis=1) <= rng.random(rounds)[:, None]).sum(axis=1)
    rewards = MEANS[context, action] + rng.uniform(-NOISE, NOISE, size=rounds)
    return BanditLog(
        contexts=CONTEXTS[context],
        action_index=action,
        rewards=rewards,
        propensities=law[np.arange(rounds), action],
        actions=3,
    )


REPEATS = 400
METHODS = {"ips": ips, "snips": snips, "doubly robust": doubly_robust}


@cache
def repeated(method: str) -> tuple[Estimate, ...]:
    """The same estimate from many independent logs of 500 rounds."""
    return tuple(METHODS[method](log_of(500, seed), target_law) for seed in range(REPEATS))


def values(method: str) -> np.ndarray:
    return np.array([estimate.value for estimate in repeated(method)])


@pytest.mark.parametrize("method", METHODS)
def test_estimates_centre_on_the_truth(method: str) -> None:
    """Mean of 400 within 5 standard errors: false alarm 6e-7. SNIPS has a bias of order 1/n."""
    found = values(method)
    slack = 0.002 if method == "snips" else 0.0
    assert abs(found.mean() - TRUTH) < 5 * found.std(ddof=1) / math.sqrt(REPEATS) + slack


@pytest.mark.parametrize("method", METHODS)
def test_intervals_cover_as_promised(method: str) -> None:
    """Of 400 intervals at 95 %, 355 to 396 cover: beyond that with probability 3e-6 (binomial).

    The lower end allows for a true coverage of 94.5 %: normal intervals are approximate.
    """
    hits = sum(each.low <= TRUTH <= each.high for each in repeated(method))
    assert 355 <= hits <= 396


@pytest.mark.parametrize("method", METHODS)
def test_standard_errors_are_the_spread(method: str) -> None:
    """A standard deviation from 400 values has relative error 1/sqrt(800): 5 of them are 18 %."""
    stated = np.mean([each.standard_error for each in repeated(method)])
    assert stated == pytest.approx(values(method).std(ddof=1), rel=0.2)


def test_a_good_model_saves_variance() -> None:
    """The model class holds the truth, so DR is left with noise: a fifth of the variance of IPS.

    The ratio of two variances from 400 values each exceeds twice its expectation with probability
    below 1e-10.
    """
    assert values("doubly robust").var() < 0.5 * values("ips").var()
    assert values("snips").var() < values("ips").var()


class Wrong:
    """A model that is far off, in every action alike or not."""

    def predict(
        self,
        train_contexts: Any,
        train_actions: Any,
        train_rewards: Any,
        contexts: Any,
        actions: int,
    ) -> np.ndarray:
        return np.tile(np.arange(actions) * 3.0 - 5.0, (len(contexts), 1))


def test_a_bad_model_does_no_bias() -> None:
    """Exact propensities carry a model that is nonsense: within 5 standard errors, 6e-7."""
    found = [
        doubly_robust(log_of(500, seed), target_law, model=Wrong()).value for seed in range(200)
    ]
    assert abs(np.mean(found) - TRUTH) < 5 * np.std(found) / math.sqrt(200)
    assert np.var(found) > 2 * values("doubly robust").var()


def test_formulas_by_hand() -> None:
    log = BanditLog(
        contexts=np.zeros((4, 1)),
        action_index=[0, 1, 0, 1],
        rewards=[1.0, 0.0, 2.0, 4.0],
        propensities=[0.5, 0.25, 0.8, 0.5],
        actions=2,
    )

    def law(contexts: np.ndarray) -> np.ndarray:
        return np.tile([0.4, 0.6], (len(contexts), 1))

    weights = np.array([0.8, 2.4, 0.5, 1.2])
    terms = weights * [1.0, 0.0, 2.0, 4.0]
    plain = ips(log, law, confidence=0.9)
    assert plain.value == pytest.approx(terms.mean())
    assert plain.standard_error == pytest.approx(terms.std(ddof=1) / 2)
    assert plain.high - plain.value == pytest.approx(1.6448536 * plain.standard_error, rel=1e-6)
    assert plain.effective_rounds == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    normal = snips(log, law)
    assert normal.value == pytest.approx(terms.sum() / weights.sum())
    # Adding a constant to rewards moves SNIPS by that constant, IPS by more or less.
    higher = BanditLog(
        contexts=log.contexts,
        action_index=log.action_index,
        rewards=log.rewards + 10.0,
        propensities=log.propensities,
        actions=2,
    )
    assert snips(higher, law).value == pytest.approx(normal.value + 10.0)
    assert snips(higher, law).standard_error == pytest.approx(normal.standard_error)


def test_the_model_is_the_ridge_regression_of_scikit_learn() -> None:
    from sklearn.linear_model import Ridge

    log = log_of(300, seed=0)
    predicted = RidgeModel(ridge=2.0).predict(
        log.contexts, log.action_index, log.rewards, CONTEXTS, 4
    )
    middle = log.rewards.mean()
    for action in range(3):
        own = log.action_index == action
        rows = np.hstack([np.ones((own.sum(), 1)), log.contexts[own]])
        other = Ridge(alpha=2.0, fit_intercept=False).fit(rows, log.rewards[own] - middle)
        expected = middle + other.predict(np.hstack([np.ones((40, 1)), CONTEXTS]))
        np.testing.assert_allclose(predicted[:, action], expected, atol=1e-9)
    np.testing.assert_allclose(predicted[:, 3], middle)


def test_no_round_judges_itself() -> None:
    """Cross-fitting: a model that memorises would otherwise explain every residual away."""

    class Memory:
        def predict(
            self, train_contexts: Any, train_actions: Any, train_rewards: Any, contexts: Any,
            actions: int,
        ) -> np.ndarray:  # fmt: skip
            seen = {row.tobytes() for row in train_contexts}
            assert not any(row.tobytes() in seen for row in contexts)
            return np.zeros((len(contexts), actions))

    rng = np.random.default_rng(0)
    log = BanditLog(
        contexts=rng.random((50, 2)),
        action_index=np.zeros(50, dtype=int),
        rewards=rng.random(50),
        propensities=np.ones(50),
        actions=1,
    )
    same = doubly_robust(log, lambda rows: np.ones((len(rows), 1)), model=Memory())
    assert same.value == pytest.approx(log.rewards.mean())


def test_logs_of_capri_value_another_law() -> None:
    """CAPRI's own propensities give the value of uniform play, within 5 standard errors (6e-7).

    Floors keep every action possible, which inverse propensities need.
    """
    kernel = RBF(lengthscale=0.3)
    world = random_rkhs(kernel, contexts=8, actions=4, seed=1)
    policy = capri.Capri(
        kernel=kernel,
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(epsilon=2.0, delta=1e-5),
        simulation_seed=2,
        limits=capri.Limits(floor=dict.fromkeys(range(4), 0.05)),
    )
    log = record(policy, world, 6_000, seed=3)
    assert log.propensities.min() < 0.2 < log.propensities.max()
    truth = float(world.means.mean())
    for method in METHODS.values():
        estimate = method(log, lambda rows: np.full((len(rows), 4), 0.25))
        assert abs(estimate.value - truth) < 5 * estimate.standard_error
    # A policy is a target as it stands: its law by now, on the contexts of the log.
    where = [int(np.flatnonzero((world.contexts == row).all(axis=1))[0]) for row in log.contexts]
    present = float((policy.probabilities(world.contexts) * world.means).sum(axis=1)[where].mean())
    estimate = doubly_robust(log, policy)
    assert abs(estimate.value - present) < 5 * estimate.standard_error
    assert present > truth + 0.05


@pytest.mark.parametrize("method", METHODS.values())
def test_docstrings_deny_any_privacy(method: Any) -> None:
    assert "Not private: for simulations and public logs only." in method.__doc__


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda log: ips(log, "uniform"), ConfigurationError, "target must be a policy with"),
        (lambda log: ips(log, lambda rows: np.ones((3, 3))), ShapeError, r"shape \(20, 3\)"),
        (lambda log: ips(log, lambda rows: np.ones((20, 3))), ConfigurationError, "sum to 1"),
        (lambda log: ips(log, target_law, confidence=1.0), ConfigurationError, "confidence must"),
        (lambda log: ips(log[:1], target_law), ConfigurationError, "at least two rounds"),
        (lambda log: doubly_robust(log, target_law, folds=1), ConfigurationError, "folds must be"),
        (lambda log: doubly_robust(log, target_law, folds=21), ConfigurationError, "folds must be"),
        (lambda log: RidgeModel(ridge=0.0), ConfigurationError, "ridge must be positive"),
    ],
)
def test_requests_that_make_no_sense(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(log_of(20, seed=0))


def test_a_target_that_was_never_logged() -> None:
    log = BanditLog(
        contexts=np.zeros((3, 1)),
        action_index=[0, 0, 0],
        rewards=[1.0, 1.0, 1.0],
        propensities=[1.0, 1.0, 1.0],
        actions=2,
    )

    def other(contexts: np.ndarray) -> np.ndarray:
        return np.tile([0.0, 1.0], (len(contexts), 1))

    assert ips(log, other).effective_rounds == 0.0
    with pytest.raises(ConfigurationError, match="plays none of the logged actions"):
        snips(log, other)
