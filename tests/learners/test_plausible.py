"""Plausible weights: a sample of the posterior that a grid knows, and caps that hold."""

import numpy as np
import pytest

from capri.family.evidence import Cap, best_weights, doubt_of, plausible_weights


def evidence(b: np.ndarray, t: float) -> float:
    """``log N(b; 0, (1 + t) I)`` up to a constant."""
    return float(-0.5 * len(b) * np.log1p(t) - 0.5 * b @ b / (1 + t))


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_draws_are_those_of_the_posterior_on_a_grid(size: float) -> None:
    """Mean and deviation of log t: 2,000 draws, within 5 of their standard errors."""
    b = size * np.random.default_rng(0).standard_normal(4)
    expected, doubt = np.array([-1.0]), np.array([[4.0]])
    grid = np.linspace(-12, 10, 4001)
    logs = np.array([evidence(b, np.exp(x)) for x in grid]) - (grid + 1) ** 2 / 8
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    mean = float(chances @ grid)
    deviation = float(np.sqrt(chances @ (grid - mean) ** 2))
    grams = np.eye(4)[None]
    best, _ = best_weights(b, grams, expected, expected, doubt)
    found = np.ravel(plausible_weights(b, grams, best, expected, doubt, 2000))
    # Draws are correlated: as if there were a third of them.
    assert abs(found.mean() - mean) < 5 * deviation / np.sqrt(2000 / 3)
    assert abs(found.std() / deviation - 1) < 5 / np.sqrt(2 * 2000 / 3)


def test_the_same_release_gives_the_same_draws() -> None:
    b, grams = np.ones(3), np.stack([np.eye(3), np.diag([1.0, 0.0, 0.0])])
    expected, doubt = np.zeros(2), doubt_of(2)
    first, second = (plausible_weights(b, grams, expected, expected, doubt, 5) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_cap_holds_weights_down_and_its_slope_is_right() -> None:
    b, grams = 3 * np.ones(3), np.eye(3)[None]
    expected, doubt = np.zeros(1), np.array([[100.0]])
    cap = Cap(sizes=np.ones(1), most=1.0)
    free, _ = best_weights(b, grams, expected, expected, doubt)
    held, _ = best_weights(b, grams, expected, expected, doubt, cap)
    assert free[0] > 1.5
    assert held[0] < 1
    step = 1e-6
    for x in (np.array([-1.0]), np.array([0.7])):
        slope = (cap(x + step)[0] - cap(x - step)[0]) / (2 * step)
        assert slope == pytest.approx(cap(x)[1][0], abs=1e-6)
    others = Cap(sizes=np.array([0.0, 1.0]), most=1.0)
    assert others(np.array([50.0, -1.0]))[0] == 0
