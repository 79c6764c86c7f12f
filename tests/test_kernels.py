"""Kernel values against scikit-learn and closed forms, limits, and what is refused."""

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import sklearn.gaussian_process.kernels as reference
from hypothesis import given
from hypothesis import strategies as st

from capri.errors import ConfigurationError, ShapeError
from capri.kernels import (
    KERNEL_NAMES,
    RBF,
    Categories,
    Columns,
    Constant,
    ContextAction,
    Kernel,
    Linear,
    Matern,
    RationalQuadratic,
    Sum,
    check_bounded,
    from_dict,
    kernel_by_name,
    schema_kernel,
)
from capri.kernels.evaluate import Near

ORDERS = [0.5, 1.5, 2.5, 3.5, 0.05, 0.7, 1.0, 4.3, 12.0, 19.9, 20.0, 33.3, math.inf]


def rows(seed: int, count: int, dimension: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).random((count, dimension))


def at(kernel: Kernel, *distances: float) -> np.ndarray:
    """Kernel values at the given distances from the origin."""
    values: np.ndarray = kernel(np.zeros((1, 1)), np.array(distances)[:, None])[0]
    return values


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (RBF(0.3), reference.RBF(0.3)),
        (RBF((0.2, 0.5, 2.0)), reference.RBF([0.2, 0.5, 2.0])),
        *((Matern(nu, 0.4), reference.Matern(0.4, nu=nu)) for nu in ORDERS),
        *((Matern(nu, (0.2, 1, 3)), reference.Matern([0.2, 1, 3], nu=nu)) for nu in ORDERS),
        (RationalQuadratic(0.7, 0.4), reference.RationalQuadratic(0.4, 0.7)),
        (RationalQuadratic(1.0, 0.4), reference.RationalQuadratic(0.4, 1.0)),
        (RationalQuadratic(25.0, 2.0), reference.RationalQuadratic(2.0, 25.0)),
        (Linear(bias=0.49), reference.DotProduct(0.7)),
        (Constant(0.7), reference.ConstantKernel(0.7)),
        (Categories(0.25), reference.ConstantKernel(0.25) + reference.WhiteKernel(0.75)),
        (Constant(0.3) * RBF(0.3), reference.ConstantKernel(0.3) * reference.RBF(0.3)),
        (Linear(variance=0.3), reference.ConstantKernel(0.3) * reference.DotProduct(0.0)),
        (RBF(0.3, variance=0.4), reference.ConstantKernel(0.4) * reference.RBF(0.3)),
        (RBF(0.3) + Matern(1.5, 2.0), reference.RBF(0.3) + reference.Matern(2.0, nu=1.5)),
        (RBF(0.3) * Matern(1.5, 2.0), reference.RBF(0.3) * reference.Matern(2.0, nu=1.5)),
        (
            (RBF(0.3) + Linear()) * Matern(0.7),
            (reference.RBF(0.3) + reference.DotProduct(0.0)) * reference.Matern(nu=0.7),
        ),
    ],
    ids=str,
)
def test_agrees_with_scikit_learn(kernel: Kernel, expected: Any) -> None:
    # Distinct rows: at distance 0 scikit-learn's Bessel form gives 0.976 (nu = 0.05) or infinity.
    left, right = rows(1, 60), rows(2, 45)
    np.testing.assert_allclose(kernel(left, right), expected(left, right), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(kernel.diagonal(left), expected.diag(left), rtol=1e-10)


def test_context_action_is_the_product_over_the_columns() -> None:
    context, action = Matern(1.5, (0.2, 0.6)), Linear(bias=0.2)
    kernel = ContextAction(context=context, action=action, context_dimension=2)
    left, right = rows(1, 20, 5), rows(2, 30, 5)
    expected = context(left[:, :2], right[:, :2]) * action(left[:, 2:], right[:, 2:])
    np.testing.assert_array_equal(kernel(left, right), expected)


def test_categories_compare_whole_rows() -> None:
    """Indicators and whole numbers alike; a row that is no level is one of its own."""
    left = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.5, 0.5]])
    expected = np.where(np.eye(4, dtype=bool), 0.8, 0.2)
    np.testing.assert_allclose(Categories(0.25, variance=0.8)(left, left), expected, rtol=1e-15)
    coded = np.array([[3.0], [7.0], [3.0]])
    np.testing.assert_array_equal(Categories()(coded, coded), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    assert Categories(1.0)(coded, coded).tolist() == np.ones((3, 3)).tolist()


def test_columns_are_those_that_were_chosen() -> None:
    left, right = rows(1, 20, 5), rows(2, 30, 5)
    kernel = Columns(Matern(1.5, (0.2, 0.6)), (3, 1))
    np.testing.assert_array_equal(
        kernel(left, right), Matern(1.5, (0.2, 0.6))(left[:, [3, 1]], right[:, [3, 1]])
    )
    with pytest.raises(ShapeError, match=r"more than 3 columns, .* got 3"):
        kernel(left[:, :3], right[:, :3])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant(0.0), "variance must be positive"),
        (lambda: Categories(-0.1), "similarity must lie between 0 and 1, got -0.1"),
        (lambda: Categories(1.1), "similarity must lie between 0 and 1"),
        (lambda: Columns(RBF(), ()), r"at least one column, each once, got \[\]"),
        (lambda: Columns(RBF(), (1, 1)), r"each once, got \[1, 1\]"),
        (lambda: Columns(RBF(), (-1,)), "a column must be a whole number of 0 or more, got -1"),
        (lambda: Columns(RBF(), 1), "whole numbers from 0, got int"),
        (lambda: Columns("rbf", (1,)), "kernel must be a kernel, got str"),
        (lambda: schema_kernel("age"), "schema must be a capri.Schema, got str"),
    ],
)
def test_bad_settings_of_categories_and_columns(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


def exact_matern(order: int, distance: float) -> float:
    """``e^-z p!/(2p)! sum_i (p+i)!/(i! (p-i)!) (2z)^(p-i)`` in sixty digits; nu = order + 1/2."""
    with localcontext() as digits:
        digits.prec = 60
        z = Decimal(distance) * Decimal(2 * order + 1).sqrt()
        terms = (
            Decimal(math.factorial(order + i))
            / (math.factorial(i) * math.factorial(order - i))
            * (2 * z) ** (order - i)
            for i in range(order + 1)
        )
        scale = Decimal(math.factorial(order)) / math.factorial(2 * order)
        return float((-z).exp() * scale * sum(terms))


@pytest.mark.parametrize("order", [1, 2, 5, 15, 19, 20, 30, 50, 200])
def test_matern_is_exact_in_every_form(order: int) -> None:
    distances = np.geomspace(1e-6, 20.0, 60)
    expected = [exact_matern(order, float(r)) for r in distances]
    here = at(Matern(nu=order + 0.5), *distances)
    np.testing.assert_allclose(here, expected, rtol=1e-13, atol=1e-14)
    # The neighbouring order takes another path (Bessel below 20), and must not jump.
    beside = at(Matern(nu=(order + 0.5) * (1.0 + 1e-13)), *distances)
    np.testing.assert_allclose(beside, expected, atol=1e-12)


def test_matern_tends_to_the_rbf() -> None:
    distances = np.linspace(0.0, 6.0, 50)
    limit = at(RBF(), *distances)
    np.testing.assert_array_equal(at(Matern(nu=math.inf), *distances), limit)
    errors = [np.abs(at(Matern(nu=nu), *distances) - limit).max() for nu in (1e2, 1e4, 1e8, 1e300)]
    assert errors[0] < 3e-3
    assert errors[1] < 3e-5
    assert errors[2] < 3e-9
    assert errors[3] < 1e-15


@given(
    nu=st.one_of(st.floats(0.01, 400.0), st.sampled_from([0.5, 1.5, 2.5, 50.0, 1e300])),
    logarithms=st.lists(st.floats(-320.0, 300.0), min_size=2, max_size=10),
)
def test_matern_falls_from_one_to_zero(nu: float, logarithms: list[float]) -> None:
    """At any distance, tiny or huge: no NaN, within [0, 1], and never rising."""
    distances = sorted(10.0**logarithm for logarithm in logarithms)
    values = at(Matern(nu=nu), 0.0, *distances, 1e300)
    assert values[0] == 1.0
    assert values[-1] == 0.0
    assert (values >= 0.0).all()
    assert (values <= 1.0 + 1e-15).all()
    assert (np.diff(values) <= 1e-12).all()


@pytest.mark.parametrize("kernel", [RBF(1e-200), Matern(2.5, 1e-200), RationalQuadratic(2, 1e-200)])
def test_a_tiny_lengthscale_separates_all_rows(kernel: Kernel) -> None:
    points = rows(3, 10)
    np.testing.assert_array_equal(kernel(points, points), np.eye(10))


def test_a_lengthscale_too_small_for_the_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="lengthscale 1e-310 is too small"):
        RBF(1e-310)(rows(1, 2), rows(1, 2))


@given(factor=st.floats(0.01, 100.0), name=st.sampled_from(["rbf", "matern32", "matern52", "rq"]))
def test_rows_and_lengthscale_scale_together(factor: float, name: str) -> None:
    left, right = rows(1, 6), rows(2, 4)
    scaled = kernel_by_name(name, 0.3 * factor)(left * factor, right * factor)
    np.testing.assert_allclose(scaled, kernel_by_name(name, 0.3)(left, right), rtol=1e-10)


def test_lists_and_arrays_become_tuples() -> None:
    expected = RBF(lengthscale=(0.5, 2.0))
    assert RBF(lengthscale=[0.5, 2]) == expected
    assert RBF(lengthscale=np.array([0.5, 2.0])) == expected
    assert RBF(lengthscale=np.float64(0.5)) == RBF(lengthscale=np.array(0.5)) == RBF(0.5)
    assert len({RBF(lengthscale=[0.5, 2]), expected}) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF(lengthscale=-1.0), "lengthscale must be positive and finite, got -1.0"),
        (lambda: RBF(lengthscale=(1.0, 0.0)), "lengthscale must be positive and finite, got 0.0"),
        (lambda: RBF(lengthscale=math.nan), "lengthscale must be positive and finite, got nan"),
        (lambda: RBF(lengthscale=()), "lengthscale must be a number or one per dimension"),
        (lambda: RBF("0.3"), "lengthscale .* got '0.3'"),  # type: ignore[arg-type]
        (lambda: RBF(lengthscale=np.ones((2, 2))), "lengthscale must be positive and finite"),
        (lambda: RBF(variance=math.inf), "variance must be positive and finite, got inf"),
        (lambda: Matern(nu=0.0), "nu must be positive and finite, got 0.0"),
        (lambda: Matern(nu=-math.inf), "nu must be positive and finite, got -inf"),
        (lambda: RationalQuadratic(alpha=-2), "alpha must be positive and finite, got -2"),
        (lambda: Linear(variance=0), "variance must be positive and finite, got 0"),
        (lambda: Linear(bias=-0.5), "bias must be zero or more and finite, got -0.5"),
        (
            lambda: ContextAction(RBF(), RBF(), 0),
            "context_dimension must be .* 1 or more, got 0",
        ),
        (lambda: ContextAction(RBF(), 2.0, 1), "action .* got float"),  # type: ignore[arg-type]
        (lambda: Sum(RBF(), None), "right .* got NoneType"),  # type: ignore[arg-type]
        (
            lambda: kernel_by_name("periodic", 1.0),
            "kernel must be one of rbf, matern12, .* got 'per",
        ),
        (lambda: kernel_by_name("linear", (1.0, 2.0)), "lengthscale must be positive and finite"),
        (lambda: from_dict({"type": "Unheard"}), "type must be one of RBF, .* got 'Unheard'"),
        (lambda: from_dict({"lengthscale": 1.0}), "type must be one of RBF, .* got None"),
        (lambda: from_dict({"type": "Sum", "left": RBF().to_dict()}), "Sum needs right"),
        (lambda: from_dict({"type": "RBF", "variance": "inf"}), "variance must be positive"),
        (lambda: from_dict([1, 2]), "mapping, got list"),  # type: ignore[arg-type]
    ],
)
def test_bad_parameters_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_wrong_dimensions_say_what_is_needed() -> None:
    with pytest.raises(ShapeError, match="must have 2 columns, one per lengthscale, got 3"):
        RBF((1.0, 2.0))(rows(1, 4), rows(2, 4))
    with pytest.raises(ShapeError, match="must have 2 columns, one per lengthscale, got 3"):
        RBF((1.0, 2.0)).diagonal(rows(1, 4))
    with pytest.raises(ShapeError, match=r"more than 3 columns.*got 3"):
        ContextAction(RBF(), RBF(), 3)(rows(1, 4), rows(2, 4))


def test_kernels_add_to_kernels_only() -> None:
    with pytest.raises(TypeError):
        RBF() + 1.0  # type: ignore[operator]
    with pytest.raises(TypeError):
        RBF() * 2.0  # type: ignore[operator]


def test_check_bounded_reports_the_largest_value() -> None:
    points = np.array([[0.5, 0.5], [1.0, 2.0]])
    with pytest.raises(ConfigurationError, match=r"got 5\.0: lower the variance"):
        check_bounded(Linear(), points)
    with pytest.raises(ConfigurationError, match=r"got 1\.5: lower the variance"):
        check_bounded(RBF() + RBF(variance=0.5), points)
    check_bounded(Linear(variance=0.2), points)
    check_bounded(RBF(variance=1.0 + 1e-10), points)


def test_every_short_name_makes_its_kernel() -> None:
    made = {name: kernel_by_name(name, 2.0) for name in KERNEL_NAMES}
    assert made == {
        "rbf": RBF(2.0),
        "matern12": Matern(0.5, 2.0),
        "matern32": Matern(1.5, 2.0),
        "matern52": Matern(2.5, 2.0),
        "rq": RationalQuadratic(1.0, 2.0),
        "linear": Linear(0.25),
    }


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("dimension", [1, 4, 9])
def test_a_kernel_near_points_is_the_kernel_to_the_last_bit(nu: float, dimension: int) -> None:
    """However many rows come at once: a law must not depend on who else asks."""
    generator = np.random.default_rng(dimension)
    kernel: Kernel = Linear(variance=0.3, bias=0.5)
    for lengthscale in (0.4, 1.0, 2.7):
        kernel = kernel + Matern(nu=nu, lengthscale=lengthscale)
    for count in (1, 2, 30):
        points = generator.standard_normal((count, dimension))
        rows, near = generator.standard_normal((40, dimension)), Near(kernel, points)
        expected = kernel(rows, points)
        for size in (1, 3, 40):
            found = [near(rows[start : start + size]) for start in range(0, 40, size)]
            assert (np.concatenate(found) == expected).all()
