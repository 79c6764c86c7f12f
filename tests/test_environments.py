"""Published optima of the test functions, the norm of random functions, and the finite table."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from capri.environments import TabularEnvironment, random_rkhs, tabulate
from capri.errors import ConfigurationError, ShapeError
from capri.kernels import RBF, Linear
from capri_lab.surfaces import (
    BRANIN,
    CAMEL,
    HARTMANN4,
    HARTMANN6,
    MICHALEWICZ,
    STYBLINSKI_TANG,
    Surface,
    environment_by_name,
    hartmann6,
)

SURFACES = [
    BRANIN,
    CAMEL,
    HARTMANN4,
    HARTMANN6,
    STYBLINSKI_TANG.surface(3),
    MICHALEWICZ.surface(2),
    MICHALEWICZ.surface(5),
]
every_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)


@pytest.mark.parametrize(
    ("surface", "at", "published"),
    [
        (BRANIN, (-math.pi, 12.275), 0.397887),
        (BRANIN, (math.pi, 2.275), 0.397887),
        (BRANIN, (9.42478, 2.475), 0.397887),
        (CAMEL, (0.0898, -0.7126), -1.0316),
        (CAMEL, (-0.0898, 0.7126), -1.0316),
        (HARTMANN6, (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573), -3.32237),
        # Rescaled form of Picheny et al. -3.135474 is often quoted, but these coefficients reach
        # -3.134494 only (at this point, and as the minimum found by search).
        (HARTMANN4, (0.18739528, 0.19415153, 0.55791778, 0.26477962), -3.134494),
        # -39.16599 d is often quoted; the value at the published point is -39.16617 d.
        (STYBLINSKI_TANG.surface(1), (-2.903534,), -39.16617),
        (STYBLINSKI_TANG.surface(4), (-2.903534,) * 4, -39.166166 * 4),
        (MICHALEWICZ.surface(2), (2.2029, 1.5708), -1.8013),
        (
            MICHALEWICZ.surface(5),
            (2.202906, 1.570796, 1.284992, 1.923058, 1.720470),
            -4.687658,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Surface) else None,
)
def test_published_optimum(surface: Surface, at: tuple[float, ...], published: float) -> None:
    lower, upper = np.transpose(surface.domain)
    digits = len(str(published).split(".")[1])
    unit = (np.array([at]) - lower) / (upper - lower)
    assert surface.value(unit)[0] == pytest.approx(published, abs=1.5 * 10.0 ** -min(digits, 5))


@pytest.mark.parametrize(
    ("surface", "start"),
    [
        (BRANIN, (0.5428, 0.1517)),
        (CAMEL, (0.515, 0.3218)),
        (HARTMANN4, (0.19, 0.19, 0.56, 0.26)),
        (HARTMANN6, (0.2, 0.15, 0.48, 0.28, 0.31, 0.66)),
        (STYBLINSKI_TANG.surface(2), (0.21, 0.21)),
    ],
    ids=lambda value: value.name if isinstance(value, Surface) else None,
)
def test_the_range_begins_at_the_minimum(surface: Surface, start: tuple[float, ...]) -> None:
    found = minimize(lambda unit: surface.value(unit[None])[0], start, tol=1e-10)
    assert found.fun == pytest.approx(surface.smallest, abs=1e-7)
    assert surface.reward(found.x[None], limit=0.9)[0] == pytest.approx(0.9, abs=1e-7)


@every_surface
def test_range_holds_and_is_tight(surface: Surface) -> None:
    """No corner and no random point leaves the range; one comes near its upper end."""
    dimension = len(surface.domain)
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * dimension), axis=-1).reshape(-1, dimension)
    inside = np.random.default_rng(0).random((100_000, dimension))
    values = surface.value(np.vstack([corners, inside]))
    assert values.min() >= surface.smallest
    assert values.max() <= surface.largest * (1.0 + 1e-15)
    assert values.max() >= surface.largest - 0.01 * (surface.largest - surface.smallest)


@every_surface
def test_the_reward_turns_the_function_over(surface: Surface) -> None:
    unit = np.random.default_rng(1).random((500, len(surface.domain)))
    value, reward = surface.value(unit), surface.reward(unit, limit=0.7)
    span = surface.largest - surface.smallest
    np.testing.assert_allclose(np.diff(reward), -1.4 * np.diff(value) / span, atol=1e-12)
    middle = (surface.largest + surface.smallest) / 2
    np.testing.assert_allclose(reward, 1.4 * (middle - value) / span, atol=1e-12)


def test_context_comes_first() -> None:
    environment = hartmann6(contexts=4, actions=5, context_dimension=2, noise=0.25)
    row = np.concatenate([environment.contexts[3], environment.actions[1]])
    assert environment.contexts.shape == (4, 2)
    assert environment.actions.shape == (5, 4)
    assert environment.means[3, 1] == pytest.approx(HARTMANN6.reward(row[None], 0.75)[0])


@pytest.mark.parametrize("norm", [0.5, 1.0, 3.0])
def test_random_function_has_the_norm_asked_for(norm: float) -> None:
    """The interpolant of f on many points has a norm below ``norm``, and approaches it."""
    kernel = RBF(lengthscale=0.5)
    environment = random_rkhs(kernel, contexts=15, actions=15, norm=norm, seed=2)
    context, action = np.indices((15, 15)).reshape(2, -1)
    points = np.hstack([environment.contexts[context], environment.actions[action]])
    gram, values = kernel(points, points), environment.means.ravel()
    solution = np.linalg.lstsq(gram, values, rcond=1e-10)[0]
    assert math.sqrt(values @ solution) == pytest.approx(norm, rel=0.02)
    assert np.abs(values).max() <= norm


def test_random_function_is_linear_for_a_linear_kernel() -> None:
    environment = random_rkhs(Linear(variance=0.2), contexts=6, actions=7, action_dimension=3)
    context, action = np.indices((6, 7)).reshape(2, -1)
    points = np.hstack([environment.contexts[context], environment.actions[action]])
    slope, residual, *_ = np.linalg.lstsq(points, environment.means.ravel())
    assert residual[0] < 1e-24
    assert np.linalg.norm(slope) / math.sqrt(0.2) == pytest.approx(1.0, rel=1e-10)


def test_rewards_are_clipped_at_the_bound() -> None:
    environment = random_rkhs(RBF(0.3), norm=5.0, noise=0.1, reward_bound=0.5, seed=1)
    context, action = np.indices((50, 50)).reshape(2, -1)
    rewards = environment.rewards(np.random.default_rng(0), context, action)
    assert np.abs(environment.means).max() > 0.7
    assert np.abs(rewards).max() == 0.5


def test_a_large_table_is_computed_in_chunks() -> None:
    """A million pairs must not become a million kernel rows at once, and takes about a second."""
    largest = 0

    def function(rows: np.ndarray) -> np.ndarray:
        nonlocal largest
        largest = max(largest, len(rows))
        values: np.ndarray = rows[:, 0] * 1000.0 + rows[:, 1]
        return values

    contexts, actions = np.arange(2000.0)[:, None], np.arange(500.0)[:, None]
    table = tabulate(function, contexts, actions)
    np.testing.assert_array_equal(table, contexts * 1000.0 + actions.T)
    assert largest <= 20_000


def table(**changes: object) -> TabularEnvironment:
    arguments: dict[str, object] = {
        "name": "table",
        "contexts": [[0.0], [1.0]],
        "weights": [0.25, 0.75],
        "actions": [[0.0], [0.5], [1.0]],
        "means": [[0.0, 0.25, 0.5], [0.3, 0.0, 0.0]],
        "reward_bound": 1.0,
        "noise": 0.0,
    }
    return TabularEnvironment(**{**arguments, **changes})  # type: ignore[arg-type]


def test_weights_count_in_uniform_regret_and_draws() -> None:
    assert table().uniform_regret() == pytest.approx(0.25 * 0.25 + 0.75 * 0.2)
    assert (
        table(weights=[0.0, 1.0]).draw_contexts(np.random.default_rng(0), 50).tolist() == [1] * 50
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"means": [[0.0, 1.0]]}, ShapeError, r"means must have shape \(2, 3\).*got \(1, 2\)"),
        ({"weights": [1.0]}, ShapeError, r"weights must have shape \(2,\).*got \(1,\)"),
        ({"weights": [0.5, 0.6]}, ConfigurationError, r"sum to 1, got smallest 0.5, sum 1.1"),
        ({"weights": [1.5, -0.5]}, ConfigurationError, r"zero or more.*got smallest -0.5"),
        ({"weights": [math.nan, 1.0]}, ConfigurationError, "zero or more and sum to 1"),
        ({"actions": []}, ShapeError, "actions must be a matrix with at least one row"),
    ],
)
def test_a_bad_table_is_refused(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        table(**changes)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ackley", {}, "one of rkhs, branin, hartmann4, .*michalewicz, got 'ackley'"),
        ("rkhs", {}, "rkhs needs a kernel"),
        ("branin", {"context_dimension": 1, "action_dimension": 2}, "must be 2, got 1 \\+ 2"),
        ("hartmann6", {"context_dimension": 6}, "at most 5, got 6"),
        ("camel", {"noise": 1.0}, "noise must be less than reward_bound 1.0.*got 1.0"),
        ("michalewicz", {"action_dimension": 0}, "action_dimension must be a whole number"),
    ],
)
def test_bad_requests_are_explained(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        environment_by_name(name, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": 0.0}, "norm must be positive and finite, got 0.0"),
        ({"norm": math.nan}, "norm must be positive and finite, got nan"),
        ({"centres": 0}, "centres must be a whole number of 1 or more, got 0"),
    ],
)
def test_bad_norms_and_centres_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        random_rkhs(RBF(), **arguments)


@pytest.mark.parametrize(
    ("asked", "split"),
    [
        ({}, (3, 3)),
        ({"context_dimension": 2}, (2, 4)),
        ({"action_dimension": 1}, (5, 1)),
        ({"context_dimension": 4, "action_dimension": 2}, (4, 2)),
    ],
)
def test_missing_dimensions_are_chosen(asked: dict[str, int], split: tuple[int, int]) -> None:
    environment = environment_by_name("hartmann6", contexts=3, actions=2, **asked)  # type: ignore[arg-type]
    assert (environment.contexts.shape[1], environment.actions.shape[1]) == split
