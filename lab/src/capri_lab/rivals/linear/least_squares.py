"""Private least squares: the moments ``(x x^T, x y)``, their noise and their solution.

With features ``|x| <= 1`` and targets ``|y| <= 1`` a user contributes the symmetric matrix
``x x^T`` and the vector ``x y``, written as one flat vector whose Euclidean norm is the Frobenius
norm of the matrix and that of the vector together (:func:`pack`): the diagonal, ``sqrt(2)`` times
the upper triangle, the vector. Gaussian noise of one scale on all coordinates then hides a user
best.
"""

from dataclasses import dataclass
from math import ceil, exp, inf, sqrt
from typing import final

import numpy as np
from scipy.special import gammainc, gammaincc

from capri.arrays import FloatArray, IntArray
from capri.checks import one_of
from capri.errors import ConfigurationError, ShapeError
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier
from capri.spaces import as_rows

# Largest |(x x^T, x y) - (x' x'^T, x' y')| for |x|, |x'|, |y|, |y'| <= 1: squared it is
# 4 - 2 c^2 + 2 c for unit vectors at cosine c and opposite targets, which is 4.5 at c = 1/2.
MOMENTS_SENSITIVITY = sqrt(4.5)
# The same of the two parts alone: 2 - 2 c^2 at c = 0, and y x against -y x.
MATRIX_SENSITIVITY = sqrt(2.0)
VECTOR_SENSITIVITY = 2.0


def packed_size(dimension: int) -> int:
    """Coordinates of a symmetric matrix and a vector of this dimension."""
    return dimension * (dimension + 1) // 2 + dimension


def pack(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """A symmetric matrix and a vector as one flat vector of the same norm (leading axes kept).

    >>> float(np.linalg.norm(pack(np.ones((2, 2)), np.zeros(2))))
    2.0
    """
    rows, columns = np.triu_indices(matrix.shape[-1], 1)
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    return np.concatenate([diagonal, sqrt(2) * matrix[..., rows, columns], vector], axis=-1)


def unpack(packed: FloatArray, dimension: int) -> tuple[FloatArray, FloatArray]:
    """The inverse of :func:`pack`."""
    size = packed_size(dimension)
    rows, columns = np.triu_indices(dimension, 1)
    matrix = np.zeros((*packed.shape[:-1], dimension, dimension))
    matrix[..., rows, columns] = packed[..., dimension : size - dimension] / sqrt(2)
    matrix += np.swapaxes(matrix, -1, -2)
    matrix[..., np.arange(dimension), np.arange(dimension)] = packed[..., :dimension]
    return matrix, np.asarray(packed[..., size - dimension :])


def moments(features: FloatArray, targets: FloatArray) -> FloatArray:
    """``pack(sum x x^T, sum x y)`` over the rows."""
    return pack(features.T @ features, targets @ features)


@final
@dataclass(frozen=True, kw_only=True)
class GaussianMoments:
    """Gaussian noise on packed moments that are each released in ``levels`` nodes.

    ``scale = multiplier(budget) sqrt(4.5) sqrt(levels)``, the exact (analytic) Gaussian mechanism
    under replace-one; 0 without a budget.
    """

    dimension: int
    scale: float

    @classmethod
    def calibrated(cls, dimension: int, budget: Budget | None, levels: int) -> "GaussianMoments":
        """The smallest noise that keeps the budget over all levels together."""
        multiplier = 0.0 if budget is None else analytic_multiplier(budget)
        return cls(dimension=dimension, scale=multiplier * MOMENTS_SENSITIVITY * sqrt(levels))

    def draw(self, generator: np.random.Generator) -> FloatArray:
        """Noise of one node."""
        return generator.normal(scale=self.scale, size=packed_size(self.dimension))

    def matrix_size(self, nodes: int) -> float:
        """Typical spectral norm of the matrix part of the sum of ``nodes`` draws.

        ``sqrt(2 dimension) scale``: off-diagonal entries have variance ``scale^2 / 2``.
        """
        return self.scale * sqrt(2 * self.dimension * nodes)

    def vector_size(self, nodes: int) -> float:
        """Typical norm of the vector part of the sum of ``nodes`` draws."""
        return self.scale * sqrt(self.dimension * nodes)


@final
@dataclass(frozen=True, kw_only=True)
class WishartMoments:
    """Wishart noise on ``z z^T`` with ``z = (x, y)``, centred (Sheffet 2019; Shariff & Sheffet).

    A node gets ``W - freedom 2 I`` with ``W ~ Wishart(2 I, freedom)`` in dimension
    ``p = dimension + 1``; ``|z|^2 <= 2``. The mean is public, so taking it off is free. The corner
    ``y^2`` is released by the mechanism and never used.

    The published ``freedom = p + ceil(224 levels eps^-2 ln(8 levels/delta) ln(2/delta))`` (their
    Theorem on Wishart noise) goes through advanced composition with loose constants. Here it is the
    smallest whose privacy loss, composed over the levels numerically, keeps the budget
    (:func:`wishart_freedom`). Beyond an epsilon of 3 or 4 it stops falling: the support moves with
    the data, and delta has to pay for leaving it.
    """

    dimension: int
    freedom: int

    @classmethod
    def calibrated(cls, dimension: int, budget: Budget, levels: int) -> "WishartMoments":
        """The least freedom that keeps the budget over all levels together."""
        return cls(
            dimension=dimension, freedom=wishart_freedom(dimension + 1, budget, levels=levels)
        )

    def draw(self, generator: np.random.Generator) -> FloatArray:
        """Noise of one node, by the Bartlett decomposition ``W = 2 L L^T``."""
        matrix = self.wishart(generator) - 2.0 * self.freedom * np.eye(self.dimension + 1)
        return pack(matrix[:-1, :-1], matrix[:-1, -1])

    def wishart(self, generator: np.random.Generator) -> FloatArray:
        """``W ~ Wishart(2 I, freedom)`` in dimension ``dimension + 1``."""
        size = self.dimension + 1
        lower = np.tril(generator.standard_normal((size, size)), -1)
        lower += np.diag(np.sqrt(generator.chisquare(self.freedom - np.arange(size))))
        return 2.0 * lower @ lower.T

    @property
    def scale(self) -> float:
        """Standard deviation of an off-diagonal entry, ``2 sqrt(freedom)``, times ``sqrt(2)``."""
        return 2.0 * sqrt(2.0 * self.freedom)

    def matrix_size(self, nodes: int) -> float:
        """Typical spectral norm of the sum of ``nodes`` draws, as of a Gaussian one."""
        return self.scale * sqrt(2 * self.dimension * nodes)

    def vector_size(self, nodes: int) -> float:
        """Typical norm of the vector part of the sum of ``nodes`` draws."""
        return 2.0 * sqrt(self.freedom * self.dimension * nodes)


# -- how much freedom a Wishart needs -------------------------------------------------------------

# Losses are rounded up to a grid this much finer than epsilon, over all levels together.
_LOSS_CELLS = 2000
# Where the least freedom is looked for, as far as the budget's epsilon allows.
_EPSILONS = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


def wishart_delta(
    epsilon: float, *, freedom: int, size: int, levels: int, share: float = 1.0
) -> float:
    """An upper bound on delta at epsilon, replace-one, of a Wishart on ``z z^T`` per level.

    Let ``s = |z|^2 / 2`` (``share``, at most and worst at 1; the scale matrix is ``2 I``) and
    ``h = (freedom - size - 1) / 2``. Then ``z^T W^-1 z = s / X`` with ``X`` chi-squared of
    ``freedom - size + 1`` degrees, and the log-ratio of the densities is a function of ``X`` alone:

        removing z:  -h ln(1 + s/X) + s/2,        adding z:  -h ln(1 - s/X) - s/2  (inf if X <= s).

    Both are composed over the levels as discretised losses rounded up. Replacing is removing and
    then adding, ``delta(eps) <= min_e delta_remove(e) + exp(e) delta_add(eps - e)``: valid for
    every pair of rows. The noise is 1.4 (many levels) to 2 (one) times what a Gaussian limit asks.
    """
    step = epsilon / _LOSS_CELLS
    remove = _composed(step, *_loss_law(step, freedom, size, share, adding=False), levels)
    add = _composed(step, *_loss_law(step, freedom, size, share, adding=True), levels)
    return min(
        _hockey_stick(step, *remove, part * epsilon)
        + exp(part * epsilon) * _hockey_stick(step, *add, (1 - part) * epsilon)
        for part in np.linspace(0.3, 0.7, 21)
    )


def wishart_freedom(size: int, budget: Budget, *, levels: int) -> int:
    """The least freedom, up to 0.1 %, at which :func:`wishart_delta` keeps the budget.

    At a large epsilon the bound is dominated by leaving the support and asks for more freedom than
    at a smaller one; then the stronger promise is kept, with less.
    """
    tried = {min(budget.epsilon, each) for each in _EPSILONS}
    return min(_freedom(size, Budget(epsilon=each, delta=budget.delta), levels) for each in tried)


def _freedom(size: int, budget: Budget, levels: int) -> int:
    def kept(freedom: int) -> bool:
        delta = wishart_delta(budget.epsilon, freedom=freedom, size=size, levels=levels)
        return delta <= budget.delta

    # Near a Gaussian of mu = sqrt(levels / (2 freedom)): start the search there.
    enough = size + 3 + ceil(levels * analytic_multiplier(budget) ** 2)
    while not kept(enough):
        enough *= 2
        if enough > 2**40:
            raise ConfigurationError(f"no Wishart noise keeps {budget}: raise epsilon or delta")
    few = size + 2
    while enough - few > max(1, enough // 1000):
        middle = (few + enough) // 2
        few, enough = (few, middle) if kept(middle) else (middle, enough)
    return enough


def _loss_law(
    step: float, freedom: int, size: int, share: float, *, adding: bool
) -> tuple[FloatArray, int, float]:
    """Masses of the loss of one level on ``step * (first + j)``, rounded up; mass at infinity."""
    half = (freedom - size - 1) / 2
    degrees = freedom - size + 1
    sd = 1 / sqrt(2 * degrees)
    first, last = -ceil(12 * sd / step) - 2, ceil(12 * sd / step) + 2
    edges = step * np.arange(first, last + 1)
    # The loss falls (adding) or rises (removing) with X; X at which it equals an edge:
    ratio = -np.expm1(-(edges + share / 2) / half)
    if not adding:
        ratio = np.expm1((share / 2 - edges) / half)
    x = np.where(ratio > 0, share / np.where(ratio > 0, ratio, 1.0), inf)
    below, above = gammainc(degrees / 2, x / 2), gammaincc(degrees / 2, x / 2)
    if adding:
        below, above = above, below  # P(loss <= edge)
    # Differences of whichever tail is small keep their precision.
    masses = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    masses = np.maximum(masses, 0.0)
    masses[0] += below[0]
    return masses, first + 1, float(above[-1])


def _composed(
    step: float, masses: FloatArray, first: int, infinite: float, levels: int
) -> tuple[FloatArray, int, float]:
    """The law of the sum of ``levels`` independent losses."""
    from scipy.signal import fftconvolve

    total, start = masses, first
    for _ in range(levels - 1):
        total = np.maximum(fftconvolve(total, masses), 0.0)
        start += first
    return total, start, levels * infinite


def _hockey_stick(
    step: float, masses: FloatArray, first: int, infinite: float, epsilon: float
) -> float:
    """``E[(1 - exp(epsilon - loss))_+]``, with the rounding of the convolution added."""
    losses = step * (first + np.arange(len(masses)))
    over = losses > epsilon
    rounding = 1e-15 * int(over.sum())
    return float(masses[over] @ -np.expm1(epsilon - losses[over])) + infinite + rounding


# -- solution -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """``theta = M^-1 u`` and a root of ``M^-1``, for ``M`` the ridged, possibly noisy matrix."""

    theta: FloatArray
    root: FloatArray

    def mean(self, features: FloatArray) -> FloatArray:
        """``x^T theta``."""
        return np.asarray(features @ self.theta)

    def width(self, features: FloatArray) -> FloatArray:
        """``|x|_{M^-1}``."""
        return np.asarray(np.linalg.norm(features @ self.root, axis=-1))


def solve(packed: FloatArray, dimension: int, *, ridge: float, floor: float = 0.0) -> Solution:
    """Solve ``(matrix + ridge I) theta = vector``; eigenvalues below ``floor`` are raised to it.

    Noise may leave the matrix indefinite; raising eigenvalues is post-processing.
    """
    matrix, vector = unpack(packed, dimension)
    values, vectors = np.linalg.eigh(matrix + ridge * np.eye(dimension))
    root = vectors / np.sqrt(np.maximum(values, floor))
    return Solution(theta=root @ (root.T @ vector), root=root)


def noise_for(
    kind: str, dimension: int, budget: Budget | None, levels: int
) -> "GaussianMoments | WishartMoments | None":
    """The noise of a node by name, or None without a budget."""
    one_of("mechanism", kind, ("gaussian", "wishart"))
    if budget is None:
        return None
    if kind == "wishart":
        return WishartMoments.calibrated(dimension, budget, levels)
    return GaussianMoments.calibrated(dimension, budget, levels)


def optimistic(
    features: FloatArray, context: IntArray, solution: Solution, bonus: float
) -> IntArray:
    """``argmax_x theta^T phi(c, x) + bonus |phi(c, x)|_{M^-1}`` for each position of a context.

    ``features`` has shape ``(contexts, actions, dimension)``. Of equal ones the first is taken:
    before the first release all widths may be equal, and rounding should not decide.
    """
    distinct, place = np.unique(context, return_inverse=True)
    rows = features[distinct]
    index = solution.mean(rows)
    if bonus > 0:
        index = index + bonus * solution.width(rows)
    return first_best(index)[place]


def first_best(index: FloatArray) -> IntArray:
    """Position of the largest entry in each row; the first of those equal up to rounding."""
    best = index.max(axis=-1, keepdims=True)
    return np.asarray((index >= best - 1e-9 * (1 + np.abs(best))).argmax(axis=-1))


def feature_table(features: object, contexts: int, actions: int) -> FloatArray:
    """Rows of all pairs as ``(contexts, actions, dimension)``, refused beyond norm 1.

    Sensitivities rest on ``|x| <= 1``: it is checked here, once, as features are public.
    """
    rows = as_rows(features, "features")
    if len(rows) != contexts * actions:
        raise ShapeError(
            f"features need one row per pair, {contexts} contexts times {actions} actions, "
            f"got {len(rows)}"
        )
    longest = float(np.linalg.norm(rows, axis=1).max())
    if longest > 1 + 1e-9:
        raise ShapeError(
            f"features must have norm at most 1, got {longest:.6g}: "
            "scale them with capri_lab.rivals.features.bounded"
        )
    return rows.reshape(contexts, actions, rows.shape[1])
