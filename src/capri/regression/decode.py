"""From releases to a function: shrink the covariance, pool the stages, choose the ridge, predict.

All of this is post-processing of what left the gate. A stage tells, for each output,

    g = M beta + noise,     beta = A^-1 (theta - baseline),

with ``M`` the covariance it released and noise of covariance ``R = (sigma^2 + u^2) I + s^2 M``:
privacy noise on the vector, what the noise on ``M`` does to it, and noise in y.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from capri.arrays import FloatArray
from capri.features import Basis, row_by_row
from capri.regression.stage import StageResult, Targets

# Prior variances of a coefficient, relative to the expected one, among which the evidence chooses.
_PRIORS = 4.0 ** np.arange(-5, 13)
# Strength of the hyper-prior that holds the scale near the expected one where data say little.
_CERTAINTY = 0.1
_ROUNDS = 4
# Standard deviations of its own noise that are added to a measured variance.
_CAUTION = 2.0
# What an error is made of.
PARTS = ("bias", "sampling", "privacy")
# Rows predicted at once.
_ROWS = 4096


def shrunk_covariance(
    noisy: FloatArray, expected: FloatArray, deviation: float
) -> tuple[FloatArray, float]:
    """The noisy covariance, moved towards the expected one as far as its noise calls for.

    James and Stein, shell by shell: entries ``(i, j)`` with ``2^k <= max(i, j) < 2^(k+1)`` keep
    the share ``max(0, 1 - noise / distance^2)`` of their distance from the expected value. Where
    the public law is right the distance is all noise and goes; where it is wrong it stays. Also
    returned: the variance of what is still wrong with an entry, on average.
    """
    if deviation == 0:
        return noisy, 0.0
    size = len(noisy)
    index = np.maximum(*np.indices((size, size)))
    shell = np.log2(index + 1).astype(np.int64)
    variance = deviation**2 * (1 + np.eye(size))
    distance = noisy - expected
    kept = np.zeros((size, size))
    for number in range(int(shell.max()) + 1):
        inside = shell == number
        energy = float((distance[inside] ** 2).sum())
        kept[inside] = max(0.0, 1 - float(variance[inside].sum()) / max(energy, 1e-300))
    values, vectors = np.linalg.eigh(expected + kept * distance)
    matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return matrix, float((kept * variance).mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A release made ready for decoding: shrunk covariance and its eigenvectors."""

    result: StageResult
    weight: float
    covariance: FloatArray
    error_variance: float
    values: FloatArray
    vectors: FloatArray
    unwhiten: FloatArray  # A^-1
    baseline: FloatArray  # theta of the baseline, one column per output

    @classmethod
    def of(
        cls, result: StageResult, *, expected: FloatArray, weight: float, baseline: FloatArray
    ) -> "Reading":
        """Shrink towards ``expected``, the covariance of one row under the law."""
        matrix, error = shrunk_covariance(
            result.covariance, result.plan.rows * expected, result.noise[0]
        )
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return cls(
            result=result,
            weight=weight,
            covariance=matrix,
            error_variance=error,
            values=np.maximum(values, 0.0),
            vectors=vectors,
            unwhiten=np.asarray(np.linalg.inv(result.plan.features.whitening), dtype=np.float64),
            baseline=baseline,
        )

    @property
    def rows(self) -> float:
        """``sum w^2``, expected."""
        return max(self.result.plan.rows * self.weight, 1e-300)

    def spread(self, output: int, guess: "Estimate") -> FloatArray:
        """Eigenvalues ``sigma^2 + u^2 + s^2 m`` of ``R``, ``u^2`` from ``E|b|^2`` as guessed."""
        privacy = float(self.result.noise[1][output]) ** 2
        change = self.unwhiten @ (guess.mean - self.baseline[:, output])
        size = change @ change + np.sum((self.unwhiten @ guess.covariance) * self.unwhiten)
        noise = guess.noise_variance * self.values
        return np.asarray(privacy + self.error_variance * float(size) + noise)


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

    @property
    def tau(self) -> float:
        """The ridge of kernel ridge regression that the prior amounts to."""
        return self.noise_variance / self.prior


def decode(readings: list[Reading], output: int, *, prior: float, tau: float | None) -> Estimate:
    """Pool all stages; the prior variance by evidence, or ``s^2 / tau`` where ``tau`` is given.

    The noise in y, and what the noise on the covariance does, are found by fixed point: from the
    residuals of the last stage under the estimate that the last guess led to.
    """
    last = readings[-1]
    rank = len(last.unwhiten)
    doubt = float(last.result.noise[2][output])
    # Squared residuals before fitting bound the noise from above.
    ceiling = min(max(float(last.result.squares[output]), 0.0) + _CAUTION * doubt, last.rows)
    ceiling = ceiling / last.rows + 1e-30
    guess = Estimate(
        mean=np.zeros(rank),
        covariance=prior * np.eye(rank),
        prior=prior,
        noise_variance=ceiling,
        **dict.fromkeys(PARTS, np.zeros((rank, rank))),
    )
    estimate = _given(readings, output, guess, ceiling, prior=prior, tau=tau)
    for _ in range(_ROUNDS):
        found = _residual_variance(last, output, estimate)
        noise_variance = float(np.clip(found, 1e-8 * ceiling, ceiling))
        estimate = _given(readings, output, estimate, noise_variance, prior=prior, tau=tau)
    return estimate


def _given(
    readings: list[Reading],
    output: int,
    guess: Estimate,
    noise_variance: float,
    *,
    prior: float,
    tau: float | None,
) -> Estimate:
    """The posterior of all stages, with noise in y and covariance errors as guessed.

    ``information = sum A^-T M R^-1 M A^-1``; the share of ``R`` that is noise in y is kept apart.
    """
    rank = len(guess.mean)
    guess = replace(guess, noise_variance=noise_variance)
    information, sampling = np.zeros((rank, rank)), np.zeros((rank, rank))
    vector = np.zeros(rank)
    for reading in readings:
        total = reading.spread(output, guess)
        keep = np.divide(reading.values, total, out=np.zeros(rank), where=total > 0)
        frame = reading.vectors.T @ reading.unwhiten
        image = frame.T * (keep * reading.values)
        information += image @ frame
        sampling += (frame.T * (keep**2 * reading.values * noise_variance)) @ frame
        target = reading.vectors.T @ reading.result.vector[:, output]
        vector += frame.T @ (keep * target) + image @ (frame @ reading.baseline[:, output])
    scale = _best_prior(information, vector, prior) if tau is None else noise_variance / tau
    covariance = _posterior(information, scale)
    sampling_part = covariance @ sampling @ covariance
    bias = covariance @ covariance / scale
    return Estimate(
        mean=covariance @ vector,
        covariance=covariance,
        bias=bias,
        sampling=sampling_part,
        privacy=covariance - bias - sampling_part,
        prior=scale,
        noise_variance=noise_variance,
    )


def _posterior(information: FloatArray, prior: float) -> FloatArray:
    """``(information + I / prior)^-1``."""
    lower = np.linalg.cholesky(np.eye(len(information)) + prior * information)
    inverse = solve_triangular(lower, np.eye(len(information)), lower=True)
    return np.asarray(prior * inverse.T @ inverse)


def _best_prior(information: FloatArray, vector: FloatArray, expected: float) -> float:
    """The prior variance of largest evidence.

    ``log evidence = p |(I + p H)^-1/2 b|^2 / 2 - log det(I + p H) / 2`` for information ``H`` and
    vector ``b``, all in the eigenvectors of ``H``.
    """
    values, vectors = np.linalg.eigh(information)
    values, squares = np.maximum(values, 0.0), (vectors.T @ vector) ** 2
    priors = expected * _PRIORS[:, None]
    evidence = 0.5 * (priors * squares / (1 + priors * values) - np.log1p(priors * values)).sum(1)
    evidence -= _CERTAINTY * np.log(_PRIORS) ** 2
    return float(priors[evidence.argmax(), 0])


def _residual_variance(reading: Reading, output: int, estimate: Estimate) -> float:
    """Mean squared residual of a stage, corrected for what the estimate took from its own noise.

    Some standard deviations of the privacy noise in it and half of the correction are added:
    residuals that are thought too small would be clipped.

    ``(T - 2 b.g + b^T M b + 2 tr(S R) - tr(S^T M S R)) / sum w^2`` with ``b = A^-1 (theta -
    baseline)`` and ``S = A^-1 P A^-T M R^-1`` the map from ``g`` to ``b``.
    """
    change = estimate.mean - reading.baseline[:, output]
    b = reading.unwhiten @ change
    vector = reading.result.vector[:, output]
    matrix = reading.covariance
    rss = float(reading.result.squares[output]) - 2 * b @ vector + b @ matrix @ b
    total = reading.spread(output, estimate)
    frame = reading.vectors.T @ reading.unwhiten
    posterior = frame @ estimate.covariance @ frame.T  # in eigenvectors of M
    # S R = P M, and tr(S^T M S R) = tr(M R^-1 P M P M) in these coordinates.
    values = reading.values
    keep = np.divide(values, total, out=np.zeros(len(total)), where=total > 0)
    taken = 2 * float(np.diag(posterior) @ values)
    taken -= float(np.einsum("i,ij,j,ji,i->", keep, posterior, values, posterior, values))
    on_entry, on_vector, on_square = reading.result.noise
    doubt = (
        on_square[output] ** 2
        + 4 * on_vector[output] ** 2 * (b @ b)
        + 2 * (on_entry * (b @ b)) ** 2
    )
    return float(rss + 1.5 * taken + _CAUTION * np.sqrt(doubt)) / reading.rows


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

    basis: Basis
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    estimates: tuple[Estimate, ...]

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
            outside = self.basis.residual(rows, v)
            for output, estimate in enumerate(self.estimates):
                for name, values in parts.items():
                    form = np.einsum("ij,ij->i", v @ getattr(estimate, name), v)
                    extra = estimate.prior * outside if name == "bias" else 0.0
                    values[part, output] = np.sqrt(np.maximum(form, 0.0) + extra)
        return ErrorWidth.of(**{name: part * self.targets.half for name, part in parts.items()})
