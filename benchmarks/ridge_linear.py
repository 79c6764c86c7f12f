"""Private rivals of `PrivateKernelRidge` that fit a constant or a line.

All take rows in [0, 1] and targets in [-1, 1], test rows, epsilon and a seed; delta is 1e-5.
"""

from typing import Any

import numpy as np
from common import DELTA, budget

from capri.privacy.calibration import analytic_multiplier


def mu_of(epsilon: float) -> float:
    """Sensitivity over noise of the one Gaussian release that keeps (epsilon, delta)."""
    return 1 / analytic_multiplier(budget(epsilon))


def with_constant(X: np.ndarray) -> np.ndarray:
    """A constant column beside columns centred to [-1, 1]."""
    return np.column_stack([np.ones(len(X)), 2 * X - 1])


def by_strength(strength: float, *choices: tuple[float, Any]) -> Any:
    """The setting for a number of rows times ``mu``, both public: the first whose end is above."""
    return next(value for end, value in choices if strength < end)


def private_mean(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    noise = 2 / mu_of(epsilon) / len(y)
    return np.full(len(test), y.mean() + noise * np.random.default_rng(seed).standard_normal())


def adassp(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """Wang 2018, Algorithm 2: noisy second moments with a ridge that grows where they are weak.

    Replace one, three Gaussian releases of ``mu / sqrt(3)`` each. With ``a = (1, z)`` and
    ``|z|^2 <= r``, where longer rows are scaled down to it, replacing a row moves the smallest
    eigenvalue by at most ``1 + r``, ``A^T y`` by ``2 sqrt(1 + r)`` and the upper triangle of
    ``A^T A``, whose first entry is known, by the root of ``4 r + r^2 + min(d, 2 r^2) / 2``. The
    ridge is ``shrink`` noises times ``sqrt(d)``, and ``r`` is ``short^2 d``.
    """
    generator, strength = np.random.default_rng(seed), len(X) * mu_of(epsilon)
    shrink = by_strength(strength, (500, 3.0), (np.inf, 2.0))
    short = by_strength(strength, (4_000, 0.75), (40_000, 0.9), (np.inf, 1.0))
    A, B = with_constant(X), with_constant(test)
    d, r = X.shape[1], short**2 * X.shape[1]
    A[:, 1:] /= np.maximum(1, np.linalg.norm(A[:, 1:], axis=1) / np.sqrt(r))[:, None]
    longest, scale = 1 + r, np.sqrt(3) / mu_of(epsilon)
    gram, vector = A.T @ A, A.T @ y
    each = np.sqrt(4 * r + r**2 + min(d, 2 * r**2) / 2) * scale
    smallest = np.linalg.eigvalsh(gram)[0] + longest * scale * (generator.standard_normal() - 1.96)
    ridge = max(0.0, shrink * np.sqrt(d + 1) * each - max(0.0, smallest))
    noise = np.triu(each * generator.standard_normal((d + 1, d + 1)))
    noise[0, 0] = 0.0
    gram = gram + noise + np.triu(noise, 1).T + ridge * np.eye(d + 1)
    vector = vector + 2 * np.sqrt(longest) * scale * generator.standard_normal(d + 1)
    return B @ (np.linalg.pinv(gram) @ vector)


def tukey(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """TukeyEM (Amin, Joseph, Ribero & Vassilvitskii 2022), half of epsilon for each of its parts.

    Least squares on ``m`` disjoint parts of the rows; a test that boxes of approximate Tukey depth
    are stable (propose, test, release), then a point of them by the exponential mechanism. Where
    the test fails nothing is released: the middle of the bounds is predicted. Replacing a row
    replaces one of the models.
    """
    generator = np.random.default_rng(seed)
    A, B = with_constant(X), with_constant(test)
    count = min(1000, len(A) // A.shape[1])
    parts = np.array_split(generator.permutation(len(A)), count)
    models = np.array([np.linalg.lstsq(A[part], y[part], rcond=None)[0] for part in parts])
    models = np.sort(models + 1e-10 * generator.random(models.shape), axis=0).T
    half, deepest = epsilon / 2, count // 2
    widths = (models[:, ::-1] - models)[:, :deepest]
    volumes = np.log(np.maximum(widths, 1e-300)).sum(axis=0)  # of depth above i
    t = deepest // 2

    def safe(k: int) -> bool:
        """Some g with V(t - k - 1) / V(t + k + g + 1) e^(-half g / 2) <= delta / (8 e^half)."""
        if t - k - 2 < 0 or t + k + 2 >= deepest:
            return False
        further = volumes[t + k + 1 : deepest - 1]
        terms = volumes[t - k - 2] - further - half / 2 * np.arange(1, len(further) + 1)
        return bool(len(terms) and terms.min() <= np.log(DELTA / (8 * np.exp(half))))

    distance = -1
    while safe(distance + 1):
        distance += 1
    if distance + generator.laplace(scale=1 / half) <= np.log(1 / (2 * DELTA)) / half:
        return np.zeros(len(test))
    inner = models[:, t - 1 : count - t + 1]
    depths = (inner.shape[1] + 1) // 2
    sizes = np.log(np.maximum((inner[:, ::-1] - inner)[:, :depths], 1e-300)).sum(axis=0)
    shells = sizes + np.log1p(-np.exp(np.append(sizes[1:], -np.inf) - sizes))
    depth = int(np.argmax(shells + half * np.arange(depths) + generator.gumbel(size=depths)))
    low, high = inner[:, depth], inner[:, inner.shape[1] - 1 - depth]
    return B @ generator.uniform(low, high)  # the inner boxes are a small part of the shell


def diffprivlib(X: Any, y: Any, test: Any, epsilon: float, seed: int) -> Any:
    """diffprivlib's LinearRegression as it comes, told the bounds."""
    # diffprivlib 0.6.6 imports two names that scikit-learn 1.9 no longer has, for its forests.
    import sklearn.tree._tree as tree

    for name, kind in (("DOUBLE", np.float64), ("DTYPE", np.float32)):
        if not hasattr(tree, name):
            setattr(tree, name, kind)
    from diffprivlib.models import LinearRegression

    low, high = np.zeros(X.shape[1]), np.ones(X.shape[1])
    model = LinearRegression(
        epsilon=epsilon, bounds_X=(low, high), bounds_y=(-1, 1), random_state=seed
    )
    return model.fit(X, y).predict(test)
