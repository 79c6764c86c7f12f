"""What every kernel must do, whatever it computes."""

import json
import math

import numpy as np
import pytest

from capri.errors import ConfigurationError, DataError, ShapeError
from capri.kernels import (
    RBF,
    Categories,
    Columns,
    Constant,
    ContextAction,
    Kernel,
    Linear,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
    check_bounded,
    from_dict,
)

KERNELS: list[Kernel] = [
    RBF(lengthscale=0.3),
    RBF(lengthscale=(0.1, 0.7, 3.0), variance=0.2),
    Matern(nu=0.5, lengthscale=0.2),
    Matern(nu=1.5, lengthscale=(0.1, 0.7, 3.0)),
    Matern(nu=2.5, lengthscale=1 / 3, variance=0.1),
    Matern(nu=6.5),
    Matern(nu=0.7, lengthscale=0.3),
    Matern(nu=4.3, lengthscale=0.3, variance=0.9),
    Matern(nu=50.0, lengthscale=0.3),
    Matern(nu=math.inf, lengthscale=0.3),
    RationalQuadratic(lengthscale=0.3),
    RationalQuadratic(alpha=0.37, lengthscale=0.3, variance=0.6),
    Linear(variance=0.25, bias=0.1),
    Sum(RBF(lengthscale=0.3, variance=0.5), Linear(variance=1 / 7)),
    Product(Matern(nu=1.5), RationalQuadratic(alpha=2.0)),
    ContextAction(Matern(nu=2.5, lengthscale=(0.2, 0.4)), Linear(), context_dimension=2),
    ContextAction(RBF(variance=0.75), Matern(nu=0.5), 1) + RBF(variance=0.125),
    Constant(0.3),
    Categories(),
    Categories(similarity=0.3, variance=0.7),
    Columns(RBF(lengthscale=(0.3, 2.0)), (2, 0)),
    Columns(Linear(variance=0.25), (1,)),
    Columns(Matern(nu=1.5), (0, 2)) * Columns(Categories(0.4), (1,)) + Constant(1e-10),
    ContextAction(Matern(nu=2.5, lengthscale=0.4), Categories(0.1), context_dimension=1),
]

every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


@pytest.fixture
def points() -> np.ndarray:
    """Rows with duplicates, as i.i.d. draws from a finite set have them, and near-duplicates."""
    rows = np.random.default_rng(7).random((40, 3))
    return np.vstack([rows, rows[:5], rows[:3] + 1e-9])


@every_kernel
def test_symmetric_to_the_last_bit(kernel: Kernel, points: np.ndarray) -> None:
    matrix = kernel(points, points)
    np.testing.assert_array_equal(matrix, matrix.T)


@every_kernel
def test_positive_semi_definite(kernel: Kernel, points: np.ndarray) -> None:
    assert np.linalg.eigvalsh(kernel(points, points)).min() > -1e-12 * len(points)


@every_kernel
def test_diagonal_agrees_with_the_matrix(kernel: Kernel, points: np.ndarray) -> None:
    diagonal = kernel.diagonal(points)
    np.testing.assert_array_equal(diagonal, np.diag(kernel(points, points)))
    if kernel.constant_diagonal is not None:
        np.testing.assert_allclose(diagonal, kernel.constant_diagonal, rtol=1e-15)
    else:
        assert np.ptp(diagonal) > 0.0


@every_kernel
def test_a_value_does_not_depend_on_its_batch(kernel: Kernel, points: np.ndarray) -> None:
    rows = np.random.default_rng(8).random((601, 3))
    matrix = kernel(rows, points)
    for i in (0, 1, 300, 599, 600):
        np.testing.assert_array_equal(kernel(rows[i : i + 1], points)[0], matrix[i])
    np.testing.assert_array_equal(kernel(rows[200:331], points[3:16]), matrix[200:331, 3:16])
    np.testing.assert_array_equal(kernel(np.asfortranarray(rows), points), matrix)


@every_kernel
def test_round_trip_through_json(kernel: Kernel, points: np.ndarray) -> None:
    text = json.dumps(kernel.to_dict(), allow_nan=False)
    again = from_dict(json.loads(text))
    assert again == kernel
    assert hash(again) == hash(kernel)
    np.testing.assert_array_equal(again(points, points), kernel(points, points))


@every_kernel
def test_a_newer_field_is_refused(kernel: Kernel) -> None:
    with pytest.raises(ConfigurationError, match=r"'period'.*newer version"):
        from_dict({**kernel.to_dict(), "period": 1.0})


@every_kernel
def test_arguments_are_left_alone(kernel: Kernel, points: np.ndarray) -> None:
    points.flags.writeable = False
    before = points.copy()
    kernel(points, points)[:] = 0.0
    kernel.diagonal(points)[:] = 0.0
    np.testing.assert_array_equal(points, before)


@every_kernel
def test_bad_rows_are_refused(kernel: Kernel, points: np.ndarray) -> None:
    with pytest.raises(ShapeError, match=r"got shape \(3,\)"):
        kernel(points[0], points)
    with pytest.raises(ShapeError, match="matrix of numbers"):
        kernel(points, [["a", "b", "c"]])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="got 3 and 2"):
        kernel(points, points[:, :2])
    with pytest.raises(DataError, match="NaN"):
        kernel(points, np.full((1, 3), math.nan))


@every_kernel
def test_no_rows_give_an_empty_matrix(kernel: Kernel, points: np.ndarray) -> None:
    assert kernel(points[:0], points).shape == (0, len(points))
    assert kernel(points, points[:0]).shape == (len(points), 0)


@every_kernel
def test_these_are_bounded_by_one(kernel: Kernel, points: np.ndarray) -> None:
    check_bounded(kernel, points)
    with pytest.raises(ConfigurationError, match=r"k\(w, w\) must be at most 1, got"):
        check_bounded(kernel * Linear(variance=50.0, bias=50.0), points)
