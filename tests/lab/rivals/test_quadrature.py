"""Quadrature Fourier features: the kernel, at the published rate."""

from math import e, sqrt

import numpy as np
import pytest

from capri import ConfigurationError
from capri.kernels import RBF, Matern
from capri_lab.rivals.linear.quadrature import QuadratureFeatures


def published_error(nodes: int, dimension: int, lengthscale: float) -> float:
    """``d 2^(d-1) / sqrt(2) (e / (4 n l^2))^n``: the error over the unit cube (their Theorem 1)."""
    rate = e / (4 * nodes * lengthscale**2)
    return dimension * 2.0 ** (dimension - 1) / sqrt(2) * rate**nodes


def worst(nodes: int, dimension: int, lengthscale: float) -> float:
    """Largest error over many pairs of the unit cube, its corners among them."""
    rng = np.random.default_rng(0)
    rows = np.concatenate(
        [
            rng.random((300, dimension)),
            np.indices((2,) * dimension).reshape(dimension, -1).T.astype(float),
        ]
    )
    kernel = RBF(lengthscale=lengthscale)
    phi = QuadratureFeatures(kernel=kernel, dimension=dimension, nodes=nodes)(rows)
    return float(np.abs(phi @ phi.T - kernel(rows, rows)).max())


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("lengthscale", [0.5, 1.0])
def test_error_falls_at_the_published_rate(dimension: int, lengthscale: float) -> None:
    for nodes in range(2, 15 if dimension < 3 else 9):
        bound = published_error(nodes, dimension, lengthscale)
        assert worst(nodes, dimension, lengthscale) <= bound + 1e-13
    last = 14 if dimension < 3 else 8
    assert published_error(last, dimension, 1.0) < 1e-6
    assert worst(last, dimension, 1.0) < 1e-6


def test_bound_is_not_idle() -> None:
    """In one dimension, at distance 1, the error is within a factor of 3 of the bound."""
    for nodes in (3, 5, 7):
        assert worst(nodes, 1, 1.0) > published_error(nodes, 1, 1.0) / 3


def test_norm_is_the_variance_and_lengthscales_may_differ() -> None:
    kernel = RBF(lengthscale=(0.6, 1.2), variance=0.5)
    features = QuadratureFeatures(kernel=kernel, dimension=2, nodes=9)
    rows = np.random.default_rng(1).random((4, 5, 2))
    phi = features(rows)
    assert phi.shape == (4, 5, features.rank)
    np.testing.assert_allclose(np.sum(phi**2, axis=-1), 0.5, rtol=1e-12)
    flat = rows.reshape(-1, 2)
    np.testing.assert_allclose(
        phi.reshape(20, -1) @ phi.reshape(20, -1).T, kernel(flat, flat), atol=1e-4
    )


def test_only_the_rbf_kernel_has_them() -> None:
    with pytest.raises(ConfigurationError, match="got Matern"):
        QuadratureFeatures(kernel=Matern(nu=2.5), dimension=1, nodes=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at most 4096"):
        QuadratureFeatures(kernel=RBF(), dimension=6, nodes=5)
