"""Where rows are, and how a stage is designed for them: shape, leverage cap, stages, rank.

Only public numbers enter: the kernel, a public sample, the number of rows, the budget, and the
releases of earlier stages. In a function with coefficients ``theta ~ N(0, P)`` and a law of rows
with covariance ``S = E[v v^T]``, coordinates ``eta`` with ``P -> I`` and ``S -> diag(l)`` make the
predicted error a sum over coordinates.

Released second moments say where the rows are. The public sample is tilted until it has them,

    weight of x = exp(beta . z(x)),   z = columns, squares, products, whether at an end,

with ``beta`` near 0 by a Gaussian prior, and ``mass`` is the share of rows that count: those with a
missing cell do not, and a small weight counts little. A few numbers stand for the whole law, so
they are measured well where single entries of a covariance drown in noise. Post-processing.

Near the rows the posterior says what is not known. Away from them it trusts the kernel that the
rows preferred, and rows cannot speak of where they are not. So a function is given back there the
freedom of the public prior: between a point and the nearest of the rows, at distance ``r`` beyond
the usual one, it changes with variance

    2 S (1 - exp(-(r / l)^2 / 2)),   l = sqrt(d) / 4 widths of the box,

``S`` the expected mean square of a function.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, sqrt
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from capri.arrays import FloatArray
from capri.regression.family import RowBasis

# Columns up to which products of two are among the directions of the tilt.
_MOST_PRODUCTS = 10
# Rows on which the tilt is found, and coordinates whose moments it must explain.
_ROWS, _COORDINATES = 3000, 32
_STEPS = 40
# Deviation of a coefficient of the tilt under its prior: there are many, and noisy moments of a
# short first stage must not tilt the law onto a few rows.
_STIFFNESS = 1.0
# A realised law has this share of the public rows at least.
_LEAST_SHARE = 0.02
# Rows that stand for the law.
_SAMPLED = 2000
# The usual distance from a row to its nearest neighbour is exceeded by this share of them.
_UNUSUAL = 0.05
_ROWS_AT_ONCE = 1024
# Mean square of f, in units of the half range of y, expected before anything is known.
SIGNAL = 0.1
# Residuals are encoded in full up to this many predicted deviations of what is not known of the
# function, and of noise in y: cutting that costs little and lowers the noise at the gate.
_REACH, _REACH_OF_NOISE = 2.0, 1.7
# The share of a small change of the function that cut residuals still tell, for Gaussian noise.
_SLOPE = erf(_REACH_OF_NOISE / sqrt(2))
# Noise levels (standard deviations, same units) for which stages are planned.
_NOISES = (0.05, 0.15, 0.45)
SCHEDULES = ((1.0,), (0.3, 0.7), (0.1, 0.3, 0.6), (0.05, 0.1, 0.25, 0.6))
# A first stage must speak for this many rows for each unit of noise on the vector, and for each
# coordinate.
_ROWS_PER_NOISE, _ROWS_PER_COORDINATE = 30, 2
_RIDGES = 4.0 ** np.arange(-3, 9)
_CAPS = (0.5, 0.8, 0.95, 1.0)
_TRUNCATION = 0.005
# How much larger than expected, in variance, the function is for which the rank is chosen.
_ROUGH = 16.0
# Rows of the sample on which candidates are compared; expectations take all.
_COMPARED = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class RowDistribution:
    """A sample of rows in basis coordinates and its covariance.

    ``rows`` are the columns that coordinates are made of; without them it is as it is.
    """

    sample: FloatArray
    covariance: FloatArray
    rows: FloatArray | None = None
    mass: float = 1.0

    @classmethod
    def of(cls, sample: FloatArray, rows: FloatArray | None = None) -> "RowDistribution":
        """The law of a public sample of coordinates."""
        return cls(sample=sample, covariance=sample.T @ sample / len(sample), rows=rows)

    @classmethod
    def at(cls, basis: RowBasis, rows: FloatArray) -> "RowDistribution":
        """The law of public rows, in the coordinates of a basis."""
        parts = [basis.coordinates(rows[i : i + 4096]) for i in range(0, len(rows), 4096)]
        return cls.of(np.concatenate(parts), rows)

    @property
    def centred(self) -> FloatArray:
        """The covariance of coordinates without their means."""
        mean = self.sample.mean(axis=0)
        return np.asarray(self.covariance - np.outer(mean, mean))

    def realised(self, seen: Sequence["ReleasedCovariance"]) -> "RowDistribution":
        """The same rows, drawn as often as their weights under the released moments say."""
        if self.rows is None or not seen:
            return self
        tilts = _directions(self.rows)
        beta, mass = _tilt(self, tilts[:_ROWS], seen)
        weights = _spread_weights(tilts, beta)
        # Systematic resampling: as often as weights say, up to rounding, and no randomness.
        edges = np.cumsum(weights) / weights.sum()
        places = np.searchsorted(edges, (np.arange(len(edges)) + 0.5) / len(edges))
        places = np.minimum(places, len(edges) - 1)
        # Many algorithms look at the first rows only: these must be a sample as well.
        places = np.random.default_rng(0).permutation(places)
        chosen = self.sample[places]
        return replace(
            self,
            sample=chosen,
            covariance=chosen.T @ chosen / len(chosen),
            rows=self.rows[places],
            mass=mass,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedCovariance:
    """A released covariance ``sum w^2 psi psi^T`` of ``rows`` rows, and the noise on an entry."""

    covariance: FloatArray
    rows: int
    deviation: float
    whitening: FloatArray
    clip_norm: float


def _directions(rows: FloatArray) -> FloatArray:
    """Columns, squares, products and whether a column is at an end: standardised."""
    spread = rows.std(axis=0)
    z = ((rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0))[:, spread > 0]
    parts = [z, z**2, (z == z.min(axis=0)).astype(float), (z == z.max(axis=0)).astype(float)]
    if 1 < z.shape[1] <= _MOST_PRODUCTS:
        left, right = np.triu_indices(z.shape[1], 1)
        parts.append(z[:, left] * z[:, right])
    found = np.concatenate(parts, axis=1)
    spread = found.std(axis=0)
    return np.asarray((found - found.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _weights(tilts: FloatArray, beta: FloatArray) -> FloatArray:
    """``exp(beta . z)``, mean 1."""
    powers = tilts @ beta
    weights = np.exp(powers - powers.max())
    return np.asarray(weights / weights.mean())


def _spread_weights(tilts: FloatArray, beta: FloatArray) -> FloatArray:
    """The weights of a tilt that is made smaller until they are those of enough rows.

    ``(sum w)^2 / sum w^2`` rows: a law of a handful would plan caps that nearly all rows exceed.
    """
    weights = _weights(tilts, beta)
    while float((weights**2).mean()) * _LEAST_SHARE > 1:
        beta = 0.9 * beta
        weights = _weights(tilts, beta)
    return weights


def _tilt(
    law: RowDistribution, tilts: FloatArray, seen: Sequence[ReleasedCovariance]
) -> tuple[FloatArray, float]:
    """``beta`` and the mass that explain the released moments best.

    Least squares of ``n mass E[weight w^2 psi psi^T] - released`` over entries of the coordinates
    of largest moments, each by its noise.
    """
    stages: list[tuple[FloatArray, FloatArray, FloatArray, float]] = []
    for each in seen:
        psi = law.sample[:_ROWS] @ each.whitening
        leverage = np.maximum(np.einsum("ij,ij->i", psi, psi), 1e-300)
        psi *= np.sqrt(np.minimum(1.0, each.clip_norm**2 / leverage))[:, None]
        chosen = np.argsort(-np.einsum("ij,ij->j", psi, psi), kind="stable")[:_COORDINATES]
        released = each.covariance[np.ix_(chosen, chosen)]
        # What a sample of rows differs from its law counts as noise as well.
        moments = psi[:, chosen]
        chance = np.sqrt(each.rows * ((moments**2).T @ moments**2) / len(moments))
        scatter = np.sqrt(each.deviation**2 * (1 + np.eye(len(chosen))) + chance**2 + 1e-300)
        stages.append((moments, released / scatter, 1 / scatter, float(each.rows)))

    def loss(place: FloatArray) -> tuple[float, FloatArray]:
        beta, mass = place[:-1], float(np.exp(place[-1]))
        weights = mass * _weights(tilts, beta)
        value, slope = 0.5 * float(place @ place) / _STIFFNESS**2, np.zeros(len(weights))
        for moments, released, precision, rows in stages:
            expected = rows * ((moments * weights[:, None]).T @ moments) / len(moments)
            away = expected * precision - released
            value += 0.25 * float((away**2).sum())
            pull = away * precision
            slope += 0.5 * rows / len(moments) * np.einsum("ij,ij->i", moments @ pull, moments)
        total = float(weights @ slope)
        slope = weights * (slope - total / (mass * len(weights)))
        return value, np.append(tilts.T @ slope, total) + place / _STIFFNESS**2

    start: Any = np.zeros(tilts.shape[1] + 1)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return np.asarray(found.x[:-1]), min(float(np.exp(found.x[-1])), 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSupport:
    """Rows of the realised law in widths of the box, and the usual distance between neighbours."""

    rows: FloatArray
    width: FloatArray
    usual: float
    variance: float

    @classmethod
    def of(cls, rows: FloatArray, width: FloatArray, variance: float) -> "RowSupport":
        """From a sample of the law; ``variance`` is that of a function of the public prior."""
        width = np.where(width > 0, width, 1.0)
        scaled = np.unique(rows[:_SAMPLED] / width, axis=0)
        if len(scaled) == 1:
            return cls(rows=scaled, width=width, usual=0.0, variance=variance)
        distances = np.empty(len(scaled))
        for start in range(0, len(scaled), _ROWS_AT_ONCE):
            block = cdist(scaled[start : start + _ROWS_AT_ONCE], scaled)
            block[np.arange(len(block)), start + np.arange(len(block))] = np.inf
            distances[start : start + len(block)] = block.min(axis=1)
        usual = float(np.quantile(distances, 1 - _UNUSUAL))
        return cls(rows=scaled, width=width, usual=usual, variance=variance)

    @property
    def points(self) -> FloatArray:
        """Rows of the law, as they are, in an order that has nothing to do with where they lie."""
        mixed = np.random.default_rng(0).permutation(self.rows)
        return np.asarray(mixed * self.width)

    def lack(self, rows: FloatArray) -> FloatArray:
        """Variance that is added for each row: 0 among the rows of the law."""
        found = np.empty(len(rows))
        scaled = rows / self.width
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            near = cdist(scaled[start : start + _ROWS_AT_ONCE], self.rows).min(axis=1)
            found[start : start + len(near)] = near
        beyond = np.maximum(found - self.usual, 0.0) / (sqrt(self.rows.shape[1]) / 4)
        return np.asarray(2 * self.variance * -np.expm1(-(beyond**2) / 2))


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """How rows are whitened and capped: ``psi = A^T v``, ``|psi| <= clip_norm``.

    Predicted: the mean square ``error`` after the stage, and a ``root`` of the covariance of
    ``theta`` that it leaves.
    """

    whitening: FloatArray
    clip_norm: float
    error: float
    root: FloatArray


def shape_stage(
    law: RowDistribution, root: FloatArray, *, rows: int, noise_variance: float, noise: float
) -> Shape:
    """The whitening and the cap of smallest predicted error.

    ``root root^T = P`` is what is known of ``theta``; ``noise`` is the standard deviation of the
    privacy noise on the vector for features of norm 1. Tried are whitenings
    ``A = (n S / s^2 + rho P^-1)^-1/2`` (the paper's at ``P`` proportional to the identity) and caps
    at quantiles of the leverage. A coordinate with ``m = n E[w^2] l a^2`` then has information
    ``(m / a)^2 / (noise^2 C^2 + s^2 m)`` on ``eta``, and leaves ``l / (1 + information)``.
    """
    spread, vectors = np.linalg.eigh(root.T @ law.covariance @ root)
    spread, vectors = np.maximum(spread[::-1], 0.0), vectors[:, ::-1]  # largest first
    white = root @ vectors  # white^T S white = diag(spread), white^T P^-1 white = I
    gains = 1 / (rows * spread / noise_variance + _RIDGES[:, None])
    leverages = np.maximum((law.sample[:_COMPARED] @ white) ** 2 @ gains.T, 1e-300)
    best: tuple[float, float, FloatArray, FloatArray] | None = None
    for gain, leverage, caps in zip(
        gains, leverages.T, np.quantile(leverages, _CAPS, axis=0).T, strict=True
    ):
        for cap in caps:
            weight = float(np.minimum(1.0, cap / leverage).mean())
            moment = rows * weight * spread * gain
            information = moment**2 / gain / (noise**2 * cap + noise_variance * moment + 1e-300)
            error = float((spread / (1 + information)).sum())
            if best is None or error < best[0] * (1 - 1e-9):
                best = error, float(cap), gain, information
    assert best is not None
    error, cap, gain, information = best
    left = white / np.sqrt(1 + information)
    return Shape(
        whitening=np.ascontiguousarray(white * np.sqrt(gain)),
        clip_norm=sqrt(cap),
        error=error,
        root=left,
    )


def expected_moments(law: RowDistribution, shape: Shape) -> tuple[FloatArray, float]:
    """``E[w^2 psi psi^T]`` and ``E[w^2]`` for one row of the law."""
    psi = law.sample @ shape.whitening
    leverage = np.maximum(np.einsum("ij,ij->i", psi, psi), 1e-300)
    weights = np.minimum(1.0, shape.clip_norm**2 / leverage)
    return law.mass * (psi * weights[:, None]).T @ psi / len(psi), law.mass * float(weights.mean())


def next_reach(error: float, noise_variance: float) -> tuple[float, float]:
    """``B_r``, and what it multiplies the noise by: ``B_r / slope``, for Gaussian noise.

    Both are 1, and targets are encoded as they are, where residuals would bring nothing.
    """
    reach = sqrt(_REACH**2 * error + _REACH_OF_NOISE**2 * noise_variance)
    return (1.0, 1.0) if reach >= _SLOPE else (reach, reach / _SLOPE)


def rehearse(
    law: RowDistribution,
    root: FloatArray,
    *,
    rows: int,
    shares: tuple[float, ...],
    spread: float,
    noise: float,
) -> tuple[float, FloatArray]:
    """Predicted mean square error, and posterior variances, of stages with these shares of mu^2.

    ``spread`` is the standard deviation of the noise in y, ``noise`` that of the privacy noise on
    the vector at features and targets of size 1. A stage speaks for its share of the rows.
    """
    loudness, error = 1.0, 1.0
    for share in shares:
        shape = shape_stage(
            law,
            root,
            rows=max(1, rows),
            noise_variance=spread**2 / share,
            noise=noise * loudness / sqrt(share),
        )
        error, root = shape.error, shape.root
        _, loudness = next_reach(error, spread**2)
    return error, np.einsum("ij,ij->i", root, root)


def choose_stages(
    law: RowDistribution, root: FloatArray, *, rows: int, noise: float
) -> tuple[tuple[float, ...], int]:
    """The share of each stage of ``mu^2``, and the rank worth keeping.

    ``root root^T`` is the expected prior covariance.
    The schedule of smallest predicted error, in the geometric mean over levels of noise in y.
    Coordinates are kept until those left out would lower the predicted mean square error, for a
    function larger than expected, by less than 0.5 %.
    """
    scores = []
    fewest = max(_ROWS_PER_NOISE * noise, _ROWS_PER_COORDINATE * law.sample.shape[1])
    schedules = [shares for shares in SCHEDULES if len(shares) == 1 or shares[0] * rows >= fewest]
    for shares in schedules:
        found = [
            rehearse(law, root, rows=rows, shares=shares, spread=spread, noise=noise)
            for spread in _NOISES
        ]
        scores.append(float(np.log([error for error, _ in found]).sum()))
    best = schedules[int(np.argmin(scores))]
    rough = _ROUGH * np.einsum("ij,ij->i", root, root)
    error, posterior = rehearse(
        law, sqrt(_ROUGH) * root, rows=rows, shares=best, spread=_NOISES[0], noise=noise
    )
    learnt = np.diag(law.covariance) * np.maximum(rough - posterior, 0.0)
    left_out = np.concatenate([np.cumsum(learnt[::-1])[::-1], [0.0]])
    rank = int(np.argmax(left_out <= _TRUNCATION * error))
    return best, max(rank, 1)


def matrix_root(matrix: FloatArray) -> FloatArray:
    """A square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 1e-300)))
