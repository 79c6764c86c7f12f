"""Features for linear rivals."""

import numpy as np
import pytest

from capri import ConfigurationError
from capri.kernels import RBF, Linear, Matern
from capri_lab.rivals.features import FEATURE_NAMES, feature_rows, polynomial, random_fourier

PAIRS = np.random.default_rng(0).uniform(-1, 2, size=(60, 3))


@pytest.mark.parametrize("name", FEATURE_NAMES)
def test_rows_have_norm_at_most_one_and_one_reaches_it(name: str) -> None:
    rows = feature_rows(name, PAIRS, kernel=RBF(lengthscale=0.7), count=15)
    assert len(rows) == 60
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1.0)


def test_raw_and_polynomial_features_span_what_they_say() -> None:
    """A function of the class is fitted exactly, one of a higher degree is not."""
    linear = 1 + PAIRS @ [1.0, -2.0, 0.5]
    cubic = linear + PAIRS[:, 0] * PAIRS[:, 1] * PAIRS[:, 2]
    for name, degree, target, exact in (
        ("raw", 1, linear, True),
        ("raw", 1, cubic, False),
        ("polynomial", 2, cubic, False),
        ("polynomial", 3, cubic, True),
    ):
        rows = feature_rows(name, PAIRS, degree=degree)
        fitted = rows @ np.linalg.lstsq(rows, target, rcond=None)[0]
        assert bool(np.abs(fitted - target).max() < 1e-8) == exact
    assert polynomial(PAIRS, 3).shape == (60, 20)


@pytest.mark.parametrize(
    "kernel",
    [RBF(lengthscale=0.8, variance=0.5), Matern(nu=1.5, lengthscale=(0.5, 1.0, 2.0))],
    ids=["rbf", "matern"],
)
def test_random_fourier_features_approximate_the_kernel(kernel: RBF | Matern) -> None:
    """Each product is a mean of 20,000 terms in [-2, 2]: Hoeffding's bound at 0.05 fails with
    probability 2 exp(-2 * 20000 * 0.05^2 / 16) < 4e-3 per pair; with a fixed seed it does not."""
    rows = random_fourier(kernel, PAIRS, 20_000, np.random.default_rng(1))
    assert np.abs(rows @ rows.T - kernel(PAIRS, PAIRS)).max() < 0.05


def test_principal_features_are_the_best_low_rank_ones() -> None:
    kernel = Matern(nu=2.5, lengthscale=1.0)
    rows = feature_rows("kernel", PAIRS, kernel=kernel, count=5)
    values = np.linalg.eigvalsh(kernel(PAIRS, PAIRS))[::-1]
    ours = np.linalg.eigvalsh(rows.T @ rows)[::-1]
    np.testing.assert_allclose(ours / ours[0], values[:5] / values[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("cubic", {}, "one of raw, polynomial, fourier, kernel, got 'cubic'"),
        ("fourier", {}, "fourier features need a kernel"),
        ("fourier", {"kernel": Linear()}, "need an RBF or Matern kernel, got Linear"),
        (
            "kernel",
            {"kernel": RBF(), "count": 0},
            "count must be a whole number of 1",
        ),
        ("polynomial", {"degree": 0}, "degree must be a whole number of 1"),
    ],
)
def test_bad_features(name: str, options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        feature_rows(name, PAIRS, **options)  # type: ignore[arg-type]
