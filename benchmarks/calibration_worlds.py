"""Ten kinds of data on which widths are measured: rows, targets, and the truth at points.

Each world is drawn anew for every seed: another function, other rows, other noise. ``inside`` are
points of the law of the rows, ``outside`` are points where there are few rows or none: the rest of
the box, or around it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import capri

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class World:
    """Rows with targets, points with the truth, and what the estimator is told."""

    X: np.ndarray
    y: np.ndarray
    inside: np.ndarray
    outside: np.ndarray
    truth: Function
    settings: dict[str, Any] = field(default_factory=dict)


def random_function(
    generator: np.random.Generator,
    columns: int,
    *,
    kernel: Any = None,
    lengthscale: float = 0.8,
    spread: float = 0.35,
    centres: int = 30,
) -> Function:
    """A random function of a kernel's space, of mean 0 and this spread over the unit box."""
    kernel = kernel or capri.kernels.RBF(lengthscale=lengthscale)
    points, weights = generator.random((centres, columns)), generator.standard_normal(centres)
    sample = kernel(generator.random((4000, columns)), points) @ weights
    mean, scale = float(sample.mean()), spread / float(sample.std())
    return lambda X: np.asarray(scale * (kernel(X, points) @ weights - mean))


def _noisy(generator: np.random.Generator, values: np.ndarray, noise: float) -> np.ndarray:
    return np.asarray(values + noise * generator.standard_normal(len(values)))


def around(generator: np.random.Generator, columns: int, count: int = 1000) -> np.ndarray:
    """Points outside the unit box, up to half its width away."""
    points = generator.uniform(-0.5, 1.5, (20 * count, columns))
    return points[((points < 0) | (points > 1)).any(axis=1)][:count]


UNIT = {"X_bounds": (0.0, 1.0), "y_bounds": (-2.0, 2.0)}


def smooth(generator: np.random.Generator) -> World:
    """A smooth function of three variables, 100,000 rows that fill the box."""
    f = random_function(generator, 3)
    X = generator.random((100_000, 3))
    y = _noisy(generator, f(X), 0.3)
    return World(X, y, generator.random((1000, 3)), around(generator, 3), f, UNIT)


def quiet(generator: np.random.Generator) -> World:
    """The same with little noise in the targets."""
    f = random_function(generator, 3)
    X = generator.random((100_000, 3))
    y = _noisy(generator, f(X), 0.1)
    return World(X, y, generator.random((1000, 3)), around(generator, 3), f, UNIT)


def rough(generator: np.random.Generator) -> World:
    """A rough function of two variables (Matern 3/2, short lengthscale), 20,000 rows."""
    kernel = capri.kernels.Matern(nu=1.5, lengthscale=0.3)
    f = random_function(generator, 2, kernel=kernel, centres=100)
    X = generator.random((20_000, 2))
    y = _noisy(generator, f(X), 0.3)
    return World(X, y, generator.random((1000, 2)), around(generator, 2), f, UNIT)


def _one_hot(generator: np.random.Generator, count: int) -> np.ndarray:
    level = generator.choice(4, size=count, p=[0.4, 0.3, 0.2, 0.1])
    return np.hstack([generator.random((count, 2)), np.eye(4)[level]])


def one_hot(generator: np.random.Generator) -> World:
    """Two numbers and a category of four levels as indicators, 30,000 rows."""
    shared = random_function(generator, 2)
    own = [random_function(generator, 2, spread=0.2) for _ in range(4)]
    levels = 0.3 * generator.standard_normal(4)

    def f(X: np.ndarray) -> np.ndarray:
        parts = np.stack([each(X[:, :2]) for each in own], axis=1) + levels
        return np.asarray(shared(X[:, :2]) + (X[:, 2:] * parts).sum(axis=1))

    X = _one_hot(generator, 30_000)
    y = _noisy(generator, f(X), 0.3)
    outside = _one_hot(generator, 1000)
    outside[:, :2] = around(generator, 2)
    return World(X, y, _one_hot(generator, 1000), outside, f, UNIT)


def corner(generator: np.random.Generator) -> World:
    """Rows that fill a corner, 0.3 wide, of the box; 30,000 of them."""
    f = random_function(generator, 3)
    X = 0.3 * generator.random((30_000, 3))
    y = _noisy(generator, f(X), 0.2)
    rest = generator.random((3000, 3))
    rest = rest[(rest > 0.3).any(axis=1)][:1000]
    return World(X, y, 0.3 * generator.random((1000, 3)), rest, f, UNIT)


def skewed(generator: np.random.Generator) -> World:
    """Targets with noise of long right tails, 30,000 rows."""
    f = random_function(generator, 2)
    X = generator.random((30_000, 2))
    tails = np.exp(generator.standard_normal(len(X)))
    y = f(X) + 0.2 * (tails - np.exp(0.5))
    settings = {"X_bounds": (0.0, 1.0), "y_bounds": (-2.0, 6.0)}
    return World(X, y, generator.random((1000, 2)), around(generator, 2), f, settings)


def clipped(generator: np.random.Generator) -> World:
    """Bounds that cut a tenth of the targets; the truth is the mean of what is left of them."""
    f = random_function(generator, 2)
    X = generator.random((30_000, 2))
    y = _noisy(generator, f(X), 0.3)
    bounds = -0.8, float(np.quantile(f(generator.random((4000, 2))), 0.9))
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)

    def truth(X: np.ndarray) -> np.ndarray:
        shifted = np.clip(f(X)[:, None] + 0.3 * nodes, *bounds)
        return np.asarray(shifted @ weights / weights.sum())

    settings = {"X_bounds": (0.0, 1.0), "y_bounds": bounds}
    return World(X, y, generator.random((1000, 2)), around(generator, 2), truth, settings)


def truncated(generator: np.random.Generator) -> World:
    """A rank of 12, too small for the function of three variables; 50,000 rows."""
    f = random_function(generator, 3, lengthscale=0.5)
    X = generator.random((50_000, 3))
    y = _noisy(generator, f(X), 0.3)
    settings = {**UNIT, "rank": 12}
    return World(X, y, generator.random((1000, 3)), around(generator, 3), f, settings)


def few(generator: np.random.Generator) -> World:
    """A smooth function of two variables and 500 rows."""
    f = random_function(generator, 2)
    X = generator.random((500, 2))
    y = _noisy(generator, f(X), 0.3)
    return World(X, y, generator.random((1000, 2)), around(generator, 2), f, UNIT)


def many_columns(generator: np.random.Generator) -> World:
    """A sum of functions of eight columns with skewed rows, 20,000 of them."""
    parts = [random_function(generator, 1, spread=0.25) for _ in range(4)]

    def f(X: np.ndarray) -> np.ndarray:
        return np.asarray(sum(part(X[:, [i]]) for i, part in enumerate(parts)))

    X, inside = generator.beta(2, 4, (20_000, 8)), generator.beta(2, 4, (1000, 8))
    y = _noisy(generator, f(X), 0.3)
    return World(X, y, inside, around(generator, 8), f, UNIT)


WORLDS: dict[str, Callable[[np.random.Generator], World]] = {
    "smooth": smooth,
    "little noise": quiet,
    "rough": rough,
    "one-hot": one_hot,
    "corner": corner,
    "skewed targets": skewed,
    "clipped targets": clipped,
    "rank 12": truncated,
    "few rows": few,
    "eight columns": many_columns,
}
