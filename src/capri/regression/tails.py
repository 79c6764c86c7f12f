"""What residuals beyond the reach of a stage tell.

A residual ``r`` is told as ``T + U = r``: ``T`` is ``r`` up to the reach and turns back beyond it,
``U`` is the rest (:meth:`StagePlan.contributions`). ``U`` comes with more noise from the gate, so
that most is learnt from ``T``. Of a function that differs from the baseline by ``d(x)``, their
means are

    E[T] = slope d - h,     E[U] = (1 - slope) d + h,

``slope`` the share of a small change that stays within the reach, and ``h`` what noise in y that is
skewed adds to one and takes from the other. The slope is that of Gaussian residuals with the same
mean square of ``T``, ``E[T r] / E[r^2]`` by Stein; others may have another, which the released
vector of ``U`` tells where it matters. ``h`` is a function with a scale by evidence.
Post-processing.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from capri.arrays import FloatArray
from capri.regression.decode import Reading
from capri.regression.stage import turned

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


def _measured(reading: Reading, output: int) -> tuple[_Squares, float]:
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
    reading: Reading, output: int, prior: FloatArray, guess: tuple[FloatArray, FloatArray]
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
    reading: Reading, vector: FloatArray, shape: FloatArray, privacy: float, square: float
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
