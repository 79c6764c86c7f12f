"""The law of the rows: public before the first release, realised after it.

Released second moments say where the rows are. The public sample is tilted until it has them,

    weight of x = exp(beta . z(x)),   z = columns, squares, products, whether at an end,

with ``beta`` near 0 by a Gaussian prior, and ``mass`` is the share of rows that count: those with a
missing cell do not, and a small weight counts little. A few numbers stand for the whole law, so
they are measured well where single entries of a covariance drown in noise. Post-processing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from capri.arrays import FloatArray

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Law:
    """A sample of rows in basis coordinates and its covariance.

    ``rows`` are the columns that coordinates are made of; without them it is as it is.
    """

    sample: FloatArray
    covariance: FloatArray
    rows: FloatArray | None = None
    mass: float = 1.0

    @classmethod
    def of(cls, sample: FloatArray, rows: FloatArray | None = None) -> "Law":
        """The law of a public sample of coordinates."""
        return cls(sample=sample, covariance=sample.T @ sample / len(sample), rows=rows)

    @property
    def centred(self) -> FloatArray:
        """The covariance of coordinates without their means."""
        mean = self.sample.mean(axis=0)
        return np.asarray(self.covariance - np.outer(mean, mean))

    def realised(self, seen: Sequence["Seen"]) -> "Law":
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


def spread_rows(public: FloatArray, realised: FloatArray) -> FloatArray:
    """Half of the public rows, and as many whose columns are drawn like the realised ones.

    Each column by itself: of few rows of a law there are then many different ones, among which the
    tilt finds those that occur together.
    """
    half = len(public) // 2
    generator = np.random.default_rng(1)
    drawn = [generator.permutation(column)[: len(public) - half] for column in realised.T]
    rows = np.concatenate([public[:half], np.stack(drawn, axis=1)])
    return np.asarray(generator.permutation(rows))


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
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


def _tilt(law: Law, tilts: FloatArray, seen: Sequence[Seen]) -> tuple[FloatArray, float]:
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
