"""What a release tells, made ready for decoding, and what decoding makes of it: a function.

A residual ``r`` beyond the reach of a stage is told as ``T + U = r``: ``T`` is ``r`` up to the
reach and turns back beyond it, ``U`` is the rest (:meth:`StagePlan.contributions`). ``U`` comes
with more noise from the gate, so that most is learnt from ``T``. Of a function that differs from
the baseline by ``d(x)``, their means are

    E[T] = slope d - h,     E[U] = (1 - slope) d + h,

``slope`` the share of a small change that stays within the reach, and ``h`` what noise in y that is
skewed adds to one and takes from the other. The slope is that of Gaussian residuals with the same
mean square of ``T``, ``E[T r] / E[r^2]`` by Stein; others may have another, which the released
vector of ``U`` tells where it matters. ``h`` is a function with a scale by evidence.

All of this is post-processing of what left the gate. How stages are pooled is in
:mod:`capri.regression.pooling`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from capri.arrays import FloatArray
from capri.features import Basis, row_by_row
from capri.regression.design import RowSupport
from capri.regression.family import RowBasis
from capri.regression.priors import FunctionPrior
from capri.regression.stage import StageResult, Targets, turned

# What an error is made of.
PARTS = ("bias", "sampling", "privacy")
# Rows predicted at once.
_ROWS = 4096
# Deviations of its estimate that are added to how wrong the expected law is.
_LAW_CAUTION = 1.5
# Mean weights of rows below this are guesses: the cap cuts most rows of the law.
_SURE_WEIGHT = 0.3
# Points and draws that tell how far the largest of all errors goes.
_POINTS, _DRAWS = 500, 1000
# A skew is expected to have this share of the mean square of all tails: most are noise.
_SKEW_SHARE = 0.05
# Scales of the prior of a skew, relative to the expected one, among which the evidence chooses.
_SCALES = 4.0 ** np.arange(-6, 4)
# How far the slope of noise that is not Gaussian may be from its own, and the smallest slope.
_SLOPE_DOUBT, _LEAST_SLOPE = 0.07, 0.05
# The smallest share of residuals that is near.
_LEAST_SHARE = 1e-3
# Squared deviations of their noise by which squares must differ from Gaussian ones to count.
_CLEARLY = 4.0
# Reaches in deviations of Gaussian residuals for which moments are tabled.
_REACHES = np.geomspace(0.2, 6.0, 60)


def shrunk_covariance(
    noisy: FloatArray, expected: FloatArray, deviation: float
) -> tuple[FloatArray, FloatArray]:
    """The noisy covariance, moved towards the expected one as far as its noise calls for.

    James and Stein, shell by shell: entries ``(i, j)`` with ``2^k <= max(i, j) < 2^(k+1)`` keep
    the share ``max(0, 1 - noise / distance^2)`` of their distance from the expected value. Where
    the expected law is right the distance is all noise and goes; where it is wrong it stays.
    Large entries can be wrong by more: a law that is off by the share ``kappa`` is off by
    ``kappa sqrt(E_ii E_jj)`` in an entry, and that much of the distance is kept as well, ``kappa``
    by the released matrix and a little more. Also returned: the variance of what is still wrong
    with each entry.
    """
    size = len(noisy)
    if deviation == 0:
        return noisy, np.zeros((size, size))
    index = np.maximum(*np.indices((size, size)))
    shell = np.log2(index + 1).astype(np.int64)
    variance = deviation**2 * (1 + np.eye(size))
    distance = noisy - expected
    kept = np.zeros((size, size))
    for number in range(int(shell.max()) + 1):
        inside = shell == number
        energy = float((distance[inside] ** 2).sum())
        kept[inside] = max(0.0, 1 - float(variance[inside].sum()) / max(energy, 1e-300))
    share = _share_wrong(distance, np.diag(expected), variance)
    kept = np.maximum(kept, share / (share + variance))
    values, vectors = np.linalg.eigh(expected + kept * distance)
    matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return matrix, kept * variance


def _share_wrong(distance: FloatArray, sizes: FloatArray, variance: FloatArray) -> FloatArray:
    """``kappa^2 E_ii E_jj``: by moments, with the deviation of that estimate added."""
    size = np.outer(sizes, sizes)
    total = float((size**2).sum()) + 1e-300
    found = max(0.0, float((size * (distance**2 - variance)).sum()) / total)
    doubt = sqrt(2 * float((size**2 * (variance + found * size) ** 2).sum())) / total
    return np.asarray((found + _LAW_CAUTION * doubt) * size)


@dataclass(frozen=True, kw_only=True, eq=False)
class StageReading:
    """A release made ready for decoding: shrunk covariance and its eigenvectors."""

    result: StageResult
    weight: float
    covariance: FloatArray
    error_variance: FloatArray  # of each entry of the covariance
    values: FloatArray
    vectors: FloatArray
    unwhiten: FloatArray  # A^-1
    baseline: FloatArray  # theta of the baseline, one column per output
    level: FloatArray | None = None  # direction of the constant in psi, of length 1

    @classmethod
    def of(
        cls,
        result: StageResult,
        *,
        expected: FloatArray,
        weight: float,
        baseline: FloatArray,
        constant: FloatArray | None = None,
    ) -> "StageReading":
        """Shrink towards ``expected``, the covariance of one row under the law.

        ``constant`` are the coefficients ``theta`` of 1. With ``b = A^-1 theta`` it is
        ``b^T M b = sum w^2``, which is known up to the cap: no noise there is worth believing.
        """
        matrix, error = shrunk_covariance(
            result.covariance, result.plan.rows * expected, result.noise[0]
        )
        level: FloatArray | None = None
        if constant is not None and result.noise[0] > 0 and weight > _SURE_WEIGHT:
            b = np.linalg.solve(result.plan.features.whitening, constant)
            length = float(np.linalg.norm(b))
            level = np.asarray(b / length, dtype=np.float64)
            known = result.plan.rows * weight / length**2
            matrix = matrix + (known - level @ matrix @ level) * np.outer(level, level)
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        if level is not None:  # what was known along the constant may not fit the rest
            matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
        return cls(
            result=result,
            weight=weight,
            covariance=matrix,
            error_variance=error,
            values=np.maximum(values, 0.0),
            vectors=vectors,
            unwhiten=np.asarray(np.linalg.inv(result.plan.features.whitening), dtype=np.float64),
            baseline=baseline,
            level=level,
        )

    @property
    def rows(self) -> float:
        """``sum w^2``, expected."""
        return max(self.result.plan.rows * self.weight, 1e-300)

    @property
    def exact(self) -> bool:
        """Whether it was released without noise."""
        return self.result.plan.layout.noise_units == 0

    def design(self) -> FloatArray:
        """``M A^-1``: from coefficients to the vector."""
        return self.covariance @ self.unwhiten

    def uncertain(self, mean: FloatArray, covariance: FloatArray) -> FloatArray:
        """Variance of ``(M - M^) b`` in each coordinate for ``theta - baseline`` of this law."""
        change = self.unwhiten @ mean
        squares = change**2 + np.sum((self.unwhiten @ covariance) * self.unwhiten, axis=1)
        variances = np.broadcast_to(self.error_variance, self.covariance.shape)
        return np.asarray(variances @ squares)

    def doubt(self, mean: FloatArray, covariance: FloatArray) -> FloatArray:
        """The same as a covariance: there is none in the direction of the constant."""
        found = np.diag(self.uncertain(mean, covariance))
        if self.level is None:
            return found
        along = found @ self.level
        across = found - np.outer(along, self.level) - np.outer(self.level, along)
        return np.asarray(across + (self.level @ along) * np.outer(self.level, self.level))


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """One output: ``theta ~ N(mean, covariance)``, the covariance split by cause.

    ``bias`` is what the ridge holds back from a function of the prior, ``sampling`` is noise in y,
    ``privacy`` is noise at the gate.
    """

    mean: FloatArray
    covariance: FloatArray
    bias: FloatArray
    sampling: FloatArray
    privacy: FloatArray
    prior: float
    noise_variance: float
    weights: FloatArray | None = None  # log weights of the candidates of the prior
    outside: FloatArray | None = None  # between these and logs of their mean: for what is unseen
    central: FloatArray | None = None  # covariance under the mean log weights, for reaches
    misfit: float = 1.0  # residual chi-square of the releases over its expectation, at least 1

    @property
    def tau(self) -> float:
        """The ridge of kernel ridge regression that the prior amounts to."""
        return self.noise_variance / self.prior


class ErrorWidth(np.ndarray[Any, np.dtype[np.float64]]):
    """Standard deviations of an error, with the three parts whose squares add up to theirs.

    ``bias`` (what the ridge and the rank leave out), ``sampling`` (noise in y) and ``privacy``
    (noise at the gate) have the shape of the array itself.
    """

    bias: FloatArray
    sampling: FloatArray
    privacy: FloatArray

    def __array_finalize__(self, origin: Any) -> None:
        for name in PARTS:
            setattr(self, name, getattr(origin, name, None))

    @classmethod
    def of(cls, *, bias: FloatArray, sampling: FloatArray, privacy: FloatArray) -> "ErrorWidth":
        """From the three parts."""
        width = np.sqrt(bias**2 + sampling**2 + privacy**2).view(cls)
        width.bias, width.sampling, width.privacy = bias, sampling, privacy
        return width


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """The public result of a fit: ``f(x) = middle + half * v(x)^T theta``, one per output."""

    basis: RowBasis
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    estimates: tuple[Estimate, ...]
    prior: FunctionPrior
    support: RowSupport | None = None

    def _inside(self, X: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        for start in range(0, len(X), _ROWS):
            part = slice(start, start + _ROWS)
            yield part, np.clip(X[part], *self.box)

    def predict(self, X: FloatArray) -> FloatArray:
        """One column per output."""
        theta = np.stack([estimate.mean for estimate in self.estimates], axis=1)
        weights = self.basis.transform @ theta
        values = np.empty((len(X), len(self.estimates)))
        for part, rows in self._inside(X):
            values[part] = row_by_row(self.basis.rows(rows), weights)
        return np.asarray(values * self.targets.half + self.targets.middle)

    def width(self, X: FloatArray) -> ErrorWidth:
        """Root of ``v^T cov v`` for each part; what lies outside the basis counts as bias."""
        shape = (len(X), len(self.estimates))
        parts = {name: np.empty(shape) for name in PARTS}
        for part, rows in self._inside(X):
            v = self.basis.coordinates(rows)
            for output, estimate in enumerate(self.estimates):
                outside = self._left_out(rows, v, estimate)
                for name, values in parts.items():
                    form = np.einsum("ij,ij->i", v @ getattr(estimate, name), v)
                    extra = outside if name == "bias" else 0.0
                    values[part, output] = np.sqrt(np.maximum(form, 0.0) + extra)
        return ErrorWidth.of(**{name: part * self.targets.half for name, part in parts.items()})

    @cached_property
    def suprema(self) -> FloatArray:
        """Draws of ``sup |error| / width`` over points of the law, sorted; one column per output.

        Of the posterior, with randomness that is fixed: post-processing, the same at every call.
        What lies outside the basis is taken as independent between points, which is too wide.
        """
        points = self.basis.pivots if self.support is None else self.support.points
        points = np.clip(points[:_POINTS], *self.box)
        generator = np.random.default_rng(0)
        v, width = self.basis.coordinates(points), np.asarray(self.width(points))
        found = np.empty((_DRAWS, len(self.estimates)))
        for output, estimate in enumerate(self.estimates):
            values, vectors = np.linalg.eigh(estimate.covariance)
            root = v @ (vectors * np.sqrt(np.maximum(values, 0.0)))
            inside = root @ generator.standard_normal((len(values), _DRAWS))
            scaled = width[:, output] / self.targets.half[output]
            rest = np.sqrt(np.maximum(scaled**2 - np.einsum("ij,ij->i", root, root), 0.0))
            outside = rest[:, None] * generator.standard_normal((len(points), _DRAWS))
            found[:, output] = (np.abs(inside + outside) / scaled[:, None]).max(axis=0)
        return np.sort(found, axis=0)

    def _left_out(self, rows: FloatArray, v: FloatArray, estimate: Estimate) -> FloatArray:
        """Variance at each row of what lies outside the basis, and of where rows are few."""
        if estimate.weights is None:
            found = np.zeros(len(rows))
            if isinstance(self.basis, Basis):
                found = np.asarray(estimate.prior * self.basis.residual(rows, v))
        else:
            weights = estimate.weights if estimate.outside is None else estimate.outside
            found = self.prior.left_out(self.basis, rows, v, weights)
            # It is in the residuals: their released mean square is the most that it may be.
            found = np.minimum(found, estimate.noise_variance)
        return found if self.support is None else found + self.support.lack(rows)


class _Squares(NamedTuple):
    """Mean squares of ``T``, of ``U``, and the mean of their product."""

    near: float
    far: float
    product: float

    @property
    def total(self) -> float:
        """``E[r^2]``."""
        return self.near + self.far + 2 * self.product

    @property
    def slope(self) -> float:
        """``E[T r] / E[r^2]``."""
        return (self.near + self.product) / self.total

    @property
    def share(self) -> float:
        """``E[T^2] / E[r^2]``. ``T`` and ``U`` have the same sign: a smaller total is noise."""
        if self.near <= 0:
            return 1.0
        return max(self.near / max(self.total, self.near), _LEAST_SHARE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tail:
    """One stage, one output."""

    slope: float
    skew: FloatArray  # mean of h
    doubt: FloatArray  # covariance of h under its prior
    square: float  # E[U^2]
    product: float  # E[T U]
    share: float  # E[T^2] / E[r^2]

    def scatter(self, noise_variance: float) -> FloatArray:
        """Covariance of noise in ``T`` and ``U`` where that of ``r`` is given."""
        near = self.share * noise_variance
        most = 0.99 * float(np.sqrt(near * self.square))
        product = float(np.clip(self.product, -most, most))
        return np.array([[near, product], [product, self.square]])


@lru_cache(maxsize=64)
def _gaussian(farthest: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``E[T^2]``, ``E[U^2]`` and ``E[T U]`` at reach 1 for residuals of deviation ``1 / reach``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    residual = nodes / _REACHES[:, None]
    target, tail = turned(np.abs(residual), 1.0, farthest)
    tail = tail * np.sqrt(farthest**2 - 1)
    share = weights / weights.sum()
    return target**2 @ share, tail**2 @ share, (target * tail) @ share


def _as_gaussian(near: float, reach: float, farthest: float) -> _Squares:
    """The squares of Gaussian residuals with this mean square of ``T``."""
    table = [each[::-1] for each in _gaussian(round(farthest / reach, 3))]
    rising = slice(int(table[0].argmax()) + 1)  # it falls again where nearly all is beyond
    place = near / reach**2
    found = [float(np.interp(place, table[0][rising], each[rising])) * reach**2 for each in table]
    return _Squares(*found)


def _measured(reading: StageReading, output: int) -> tuple[_Squares, float]:
    """Squares as released, for one row, and the deviation of the noise on their total."""
    result = reading.result
    assert result.tail_squares is not None
    assert result.tail_products is not None
    values = (result.squares, result.tail_squares, result.tail_products)
    squares = _Squares(*(float(each[output]) / reading.rows for each in values))
    # The product has variance near far / 2 and counts twice: all in all (near + far)^2.
    near, far = float(result.noise[2][output]), float(result.tail_noise[2][output])
    return squares, (near + far) / reading.rows


def read_tail(
    reading: StageReading, output: int, prior: FloatArray, guess: tuple[FloatArray, FloatArray]
) -> Tail | None:
    """From ``sum w^2 psi u`` and the squares; ``guess`` is what is thought of theta so far."""
    result, plan = reading.result, reading.result.plan
    reach, farthest = float(plan.reach[output]), float(plan.farthest[output])
    if result.tail_vector is None or result.tail_products is None or reach >= 1:
        return None
    measured, noise = _measured(reading, output)
    gaussian = _as_gaussian(measured.near, reach, farthest)
    # Squares of few rows are mostly noise: residuals count as Gaussian unless they are clearly not.
    away = measured.total - gaussian.total
    trust = max(0.0, 1 - _CLEARLY * noise**2 / max(away**2, 1e-300))
    squares = _Squares(
        *(each + trust * (told - each) for told, each in zip(measured, gaussian, strict=True))
    )
    slope = gaussian.slope  # by what is near: tails that are not Gaussian tell of themselves
    square = max(measured.far, 0.0) + float(result.tail_noise[2][output]) / reading.rows
    vector, design = result.tail_vector[:, output], reading.design()
    shape = prior * (_SKEW_SHARE * square / float(np.trace(prior)))
    total = square * reading.covariance + design @ shape @ design.T
    total[np.diag_indices_from(total)] += float(result.tail_noise[1][output]) ** 2
    change = design @ (guess[0] - reading.baseline[:, output])
    slope = _slope_of(slope, vector, change, total)
    skew, doubt = _skew(
        reading, vector - (1 - slope) * change, shape, float(result.tail_noise[1][output]), square
    )
    return Tail(
        slope=slope,
        skew=skew,
        doubt=doubt,
        square=square,
        product=max(squares.product, 0.0),
        share=squares.share,
    )


def _slope_of(expected: float, vector: FloatArray, change: FloatArray, total: FloatArray) -> float:
    """The slope by least squares from ``U = (1 - slope) d``, with what is expected of it."""
    white = np.linalg.solve(total, change)
    information = float(change @ white) + _SLOPE_DOUBT**-2
    share = (float(vector @ white) + (1 - expected) * _SLOPE_DOUBT**-2) / information
    return float(np.clip(1 - share, _LEAST_SLOPE, 1.0))


def _skew(
    reading: StageReading, vector: FloatArray, shape: FloatArray, privacy: float, square: float
) -> tuple[FloatArray, FloatArray]:
    """Mean of ``h``, and its covariance under all scales of its prior by their evidence."""
    design = reading.design()
    total = square * reading.covariance
    total[np.diag_indices_from(total)] += privacy**2
    inverse = np.linalg.inv(np.linalg.cholesky(total))
    white, observed = inverse @ design, inverse @ vector
    lower = np.linalg.cholesky(shape)
    values, vectors = np.linalg.eigh(lower.T @ (white.T @ white) @ lower)
    values = np.maximum(values, 0.0)
    axes = lower @ vectors
    told = axes.T @ (white.T @ observed)
    scales = _SCALES[:, None]
    evidence = 0.5 * (scales * told**2 / (1 + scales * values) - np.log1p(scales * values)).sum(1)
    chances = np.exp(evidence - evidence.max())
    chances /= chances.sum()
    mean = chances @ (scales / (1 + scales * values) * told)
    # Between the mean of scales, which the largest that might be rules, and that of logarithms.
    scale = np.sqrt(float(chances @ _SCALES) * np.exp(float(chances @ np.log(_SCALES))))
    return np.asarray(axes @ mean), np.asarray(scale * shape)
