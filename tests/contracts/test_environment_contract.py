"""What every environment must do, whatever its function."""

import json
import math

import numpy as np
import pytest

from capri.environments import Environment, TabularEnvironment
from capri.errors import ConfigurationError
from capri.kernels import Matern, from_dict
from capri_lab.surfaces import ENVIRONMENT_NAMES, environment_by_name

every_environment = pytest.mark.parametrize("name", ENVIRONMENT_NAMES)


def make(name: str, seed: int = 3, noise: float = 0.2) -> TabularEnvironment:
    return environment_by_name(
        name,
        kernel=Matern(nu=2.5, lengthscale=0.3),
        contexts=23,
        actions=17,
        noise=noise,
        reward_bound=1.5,
        seed=seed,
    )


def all_pairs(environment: Environment) -> tuple[np.ndarray, np.ndarray]:
    context, action = np.indices((len(environment.contexts), len(environment.actions)))
    return context.ravel(), action.ravel()


@every_environment
def test_shapes_and_law(name: str) -> None:
    environment = make(name)
    assert isinstance(environment, Environment)
    assert environment.name == name
    assert environment.contexts.shape[0] == 23
    assert environment.actions.shape[0] == 17
    for points in (environment.contexts, environment.actions):
        assert points.min() >= 0.0
        assert points.max() <= 1.0
    np.testing.assert_allclose(environment.weights, 1 / 23)
    assert (environment.reward_bound, environment.noise) == (1.5, 0.2)


@every_environment
def test_best_is_the_largest_mean(name: str) -> None:
    environment = make(name)
    means = environment.mean(*all_pairs(environment)).reshape(23, 17)
    np.testing.assert_array_equal(environment.best(np.arange(23)), means.max(axis=1))
    np.testing.assert_array_equal(
        environment.best(np.array([5, 5, 0])), means.max(axis=1)[[5, 5, 0]]
    )


@every_environment
def test_means_leave_room_for_the_noise_and_differ(name: str) -> None:
    environment = make(name)
    means = environment.mean(*all_pairs(environment))
    assert np.abs(means).max() <= environment.reward_bound - environment.noise + 1e-12
    assert np.ptp(means) > 0.1


@every_environment
def test_uniform_regret_is_that_of_uniform_play(name: str) -> None:
    environment = make(name)
    context, action = all_pairs(environment)
    regret = environment.best(context) - environment.mean(context, action)
    assert environment.uniform_regret() == pytest.approx(regret.mean(), rel=1e-12)
    assert environment.uniform_regret() > 0.0


@every_environment
def test_rewards_are_the_mean_plus_uniform_noise(name: str) -> None:
    """Mean and variance of n uniform draws, each within 5 standard errors: false alarm 1e-6."""
    environment = make(name)
    rng = np.random.default_rng(11)
    draws = 200_000
    context, action = rng.integers(0, 23, draws), rng.integers(0, 17, draws)
    noise = environment.rewards(rng, context, action) - environment.mean(context, action)
    assert np.abs(noise).max() <= environment.noise + 1e-12
    assert np.abs(noise).max() > 0.999 * environment.noise
    variance = environment.noise**2 / 3
    assert abs(noise.mean()) < 5 * math.sqrt(variance / draws)
    # A uniform law has kurtosis 9/5, so its squared deviation has variance (9/5 - 1) variance^2.
    assert abs(noise.var() - variance) < 5 * variance * math.sqrt(0.8 / draws)


@every_environment
def test_contexts_follow_the_law(name: str) -> None:
    """Chi-squared with 22 degrees of freedom: beyond 70 with probability 7e-7."""
    environment = make(name)
    index = environment.draw_contexts(np.random.default_rng(5), 100_000)
    assert index.shape == (100_000,)
    assert index.dtype == np.int64
    expected = 100_000 * environment.weights
    counts = np.bincount(index, minlength=23)
    assert np.sum((counts - expected) ** 2 / expected) < 70.0


@every_environment
def test_a_seed_fixes_everything(name: str) -> None:
    first, again, other = make(name), make(name), make(name, seed=4)
    for attribute in ("contexts", "actions", "means"):
        np.testing.assert_array_equal(getattr(first, attribute), getattr(again, attribute))
        assert (getattr(first, attribute) != getattr(other, attribute)).all()


@every_environment
def test_parameters_make_it_again(name: str) -> None:
    environment = make(name)
    stored = json.loads(json.dumps(environment.parameters(), allow_nan=False))
    assert stored["name"] == name
    described = stored.pop("kernel", None)
    arguments = {key: stored[key] for key in stored if key not in ("norm", "centres")}
    again = environment_by_name(**arguments, kernel=described and from_dict(described))
    np.testing.assert_array_equal(again.means, environment.means)


@every_environment
def test_arrays_cannot_be_changed(name: str) -> None:
    environment = make(name)
    for attribute in ("contexts", "actions", "means", "weights"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(environment, attribute)[0] = 0.0


@every_environment
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contexts": 0}, "contexts must be a whole number of 1 or more, got 0"),
        ({"actions": -1}, "actions must be a whole number of 1 or more, got -1"),
        ({"context_dimension": 0}, "context_dimension must be a whole number of 1 or more, got 0"),
        ({"noise": -0.1}, "noise must be zero or more and finite, got -0.1"),
        ({"noise": math.nan}, "noise must be zero or more and finite, got nan"),
        ({"reward_bound": 0.0}, "reward_bound must be positive and finite, got 0.0"),
    ],
)
def test_bad_parameters_are_named(name: str, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        environment_by_name(name, **{"kernel": Matern(), **arguments})  # type: ignore[arg-type]
