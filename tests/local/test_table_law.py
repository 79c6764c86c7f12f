"""What the table of normal cells costs: the bias of a report, computed from the table's own law.

Averaged over all directions of ``u`` there is none (docs/proofs/sphere.md). At a single ``u``
the law of ``<V, u>`` is not quite the sphere's; it is farthest from it on an axis, where it is that
of one coordinate, ``a / sqrt(a^2 + R)`` with ``a`` from the table and ``R`` the sum of ``m - 1``
squares from it. That law is computed here, by convolution, and compared with the ideal one.
"""

import numpy as np
import pytest
from scipy.special import bdtrc, betainc

from capri.privacy.sphere import Sphere, positive_cells, sphere

CELLS = positive_cells() / np.sqrt(np.mean(positive_cells().astype(np.float64) ** 2))
_POINTS = 1 << 16


def law_of_squares(count: int) -> tuple[float, np.ndarray]:
    """Cumulative probabilities of the sum of so many squares, on a grid, by Fourier transform.

    A square between two points of the grid is divided among them, which keeps its mean.
    """
    width = (count + 14 * np.sqrt(2 * count) + 40) / _POINTS
    place = CELLS**2 / width
    low = np.floor(place).astype(np.int64)
    one = np.bincount(low, 1 - (place - low), _POINTS) + np.bincount(low + 1, place - low, _POINTS)
    density = np.fft.irfft(np.fft.rfft(one / len(CELLS)) ** count, _POINTS)
    return width, np.cumsum(density)


def mean_of_nearest(tail: np.ndarray, weights: np.ndarray, pairs: int, near: int) -> float:
    """``int E[min(k, Bin(h, Q(x)))] / k dx``: the mean of the k largest of h values."""
    counted = sum(bdtrc(j, pairs, tail) for j in range(near)) / near
    return float(np.sum(weights * counted))


def bias_on_an_axis(mechanism: Sphere) -> float:
    """Relative difference of the shrinkage on an axis from the one that reports are divided by."""
    m, pairs = mechanism.dimension, mechanism.candidates // 2
    nodes, weights = np.polynomial.legendre.leggauss(1200)
    end = min(1.0, 16 / np.sqrt(m))
    x, weights = end * (nodes + 1) / 2, weights * end / 2
    width, cumulative = law_of_squares(m - 1)
    # The sum exceeds a point of the grid by half a step on average.
    reach = np.outer(1 / x**2 - 1, CELLS**2) / width - 0.5
    inside = np.interp(reach, np.arange(_POINTS), cumulative, left=0.0, right=1.0)
    found = mean_of_nearest(np.clip(inside.mean(axis=1), 0, 1), weights, pairs, mechanism.near)
    ideal = mean_of_nearest(1 - betainc(0.5, (m - 1) / 2, x**2), weights, pairs, mechanism.near)
    return found / ideal - 1


@pytest.mark.parametrize(
    ("epsilon", "dimension", "limit"),
    [
        (0.5, 50, 2e-5), (1.0, 12, 2e-5), (1.0, 50, 2e-5), (2.0, 50, 2e-5), (4.0, 20, 3e-5),
        (4.0, 50, 3e-5), (4.0, 200, 3e-5), (8.0, 50, 2e-4), (8.0, 200, 2e-4),
    ],
)  # fmt: skip
def test_bias_on_an_axis(epsilon: float, dimension: int, limit: float) -> None:
    bias = bias_on_an_axis(sphere(epsilon, dimension))
    assert abs(bias) < limit


def test_what_the_bias_comes_from() -> None:
    """The table's fourth moment: 8.5e-4 short of the normal law's, for the tails of outer cells."""
    fourth = np.mean(CELLS**4) / 3 - 1
    assert fourth == pytest.approx(-8.46e-4, rel=0.01)
