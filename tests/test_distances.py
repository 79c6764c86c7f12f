"""Distances with and without SciPy are the same to the last bit."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from capri.kernels import stationary as module
from capri.kernels.stationary import distances, squared_distances

SHAPES = [
    (1, 1, 1),
    (1, 3000, 2),
    (3000, 1, 2),
    (7, 5, 1),
    (40, 60, 3),
    (130, 257, 8),
    (3, 9000, 5),
    (20, 20, 40),
    (5, 4, 257),
]


def rows(count: int, columns: int, seed: int) -> np.ndarray:
    """Numbers of very different sizes, so that rounding shows."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, columns)) * 10.0 ** generator.integers(
        -6, 7, size=(count, columns)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_equals_scipy_to_the_bit(shape: tuple[int, int, int], order: str) -> None:
    left, right = rows(shape[0], shape[2], 1), rows(shape[1], shape[2], 2)
    left, right = np.asarray(left, order=order), np.asarray(right, order=order)  # type: ignore[call-overload]
    squares = squared_distances(left, right)
    assert squares.tobytes() == cdist(left, right, "sqeuclidean").tobytes()
    assert np.sqrt(squares).tobytes() == cdist(left, right, "euclidean").tobytes()


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_both_branches_agree(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = rows(50, 4, 3), rows(70, 4, 4)
    with_scipy = distances(left, right, metric)
    monkeypatch.setattr(module.sys, "modules", {})
    without = distances(left, right, metric)
    assert with_scipy.tobytes() == without.tobytes() == cdist(left, right, metric).tobytes()


def test_equal_rows_have_distance_zero() -> None:
    points = rows(30, 3, 5)
    assert (squared_distances(points, points).diagonal() == 0).all()


def test_nothing_against_nothing() -> None:
    assert squared_distances(np.empty((0, 2)), np.ones((3, 2))).shape == (0, 3)
    assert squared_distances(np.ones((3, 2)), np.empty((0, 2))).shape == (3, 0)


def test_large_matrices_work_where_scipy_is_missing() -> None:
    """Above the size at which SciPy would be loaded."""
    code = (
        "import sys; sys.modules['scipy'] = None; sys.modules['scipy.spatial.distance'] = None\n"
        "import numpy as np\n"
        "from capri.kernels.stationary import distances\n"
        "rows = np.arange(1200.0).reshape(600, 2)\n"
        "print(distances(rows, rows, 'euclidean').shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(600, 600)"
