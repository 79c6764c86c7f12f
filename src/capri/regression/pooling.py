"""All stages together: noise in y, tails, the prior by evidence, and the posterior.

A stage tells, for each output,

    g = M b + noise,     b = A^-1 (theta - baseline),

with ``M`` the covariance it released and noise of covariance

    R = sigma^2 I + diag(V E[b^2]) + s^2 M:

privacy noise on the vector, what the noise ``V`` on ``M`` does to it, and noise in y. A stage that
tells tails has two such vectors, of ``slope b - h`` and of ``(1 - slope) b + h``, with noise in y
that is correlated and a skew ``h`` that is not known (:mod:`capri.regression.decode`).

Stages over the same rows share their noise in y. With gate noise of variances ``sigma_i^2`` on the
same features, ``g_i = M b + e + n_i`` are best averaged by ``w_i = sigma_i^-2``, whatever ``e`` is,
and the average has the variance ``s^2 M + 1 / sum w_i``. So has that of independent releases with
``s^2 M sum(w) / w_i`` in place of ``s^2 M``: each stage speaks for its share of the rows.
Post-processing of what left the gate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, solve_triangular

from capri.arrays import FloatArray
from capri.regression.decode import Estimate, StageReading, Tail, read_tail
from capri.regression.priors import FunctionPrior

_ROUNDS = 4
# Targets are thought to vary by this much at least.
_LEAST_SPREAD = 1e-3
# Standard deviations of its own noise that are added to a measured variance.
_CAUTION = 2.0
# Information, in prior variances, from which on a coordinate of a release tests the fit.
_INFORMATIVE = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Told:
    """One stage for one output, whitened: ``y = H theta + N(0, I)``."""

    design: FloatArray
    observed: FloatArray
    lower: FloatArray  # root of the covariance of the release, by whose inverse it was whitened
    sampling: FloatArray  # the part of that covariance that is noise in y

    def sampled(self) -> FloatArray:
        """``H^T S H``, ``S`` the covariance of ``y`` that is noise in y."""
        turned = solve_triangular(self.lower, self.design, lower=True, trans=1)
        return np.asarray(turned.T @ self.sampling @ turned)

    @classmethod
    def of(
        cls,
        reading: StageReading,
        output: int,
        tail: Tail | None,
        noise_variance: float,
        guess: tuple[FloatArray, FloatArray],
    ) -> "_Told":
        """``guess`` is what is thought of theta so far."""
        vector, baseline = reading.result.vector[:, output], reading.baseline[:, output]
        if reading.exact:  # no noise to hide: M is inverted in its eigenvectors
            root = np.sqrt(reading.values / noise_variance)
            frame = reading.vectors.T @ reading.unwhiten
            keep = np.divide(1, reading.values, out=np.zeros_like(root), where=reading.values > 0)
            whole = root[:, None] * frame
            observed = root * keep * (reading.vectors.T @ vector) + whole @ baseline
            everything = np.eye(len(root))
            return cls(design=whole, observed=observed, lower=everything, sampling=everything)
        design, matrix = reading.design(), reading.covariance
        change, spread = guess[0] - baseline, guess[1]
        privacy = float(reading.result.noise[1][output]) ** 2
        if tail is None:
            sampling = noise_variance * matrix
            total = sampling + reading.doubt(change, spread)
            total[np.diag_indices_from(total)] += privacy
        else:
            # T and U one below the other, their noise in y correlated.
            slopes = tail.slope, 1 - tail.slope
            sampling = np.asarray(np.kron(tail.scatter(noise_variance), matrix), np.float64)
            near = reading.doubt(slopes[0] * change - tail.skew, slopes[0] ** 2 * spread)
            far = reading.doubt(slopes[1] * change + tail.skew, slopes[1] ** 2 * spread)
            total = sampling + block_diag(near, far)
            skew = np.vstack([-design, design])
            total += skew @ tail.doubt @ skew.T
            far_privacy = float(reading.result.tail_noise[1][output]) ** 2
            total[np.diag_indices_from(total)] += np.repeat([privacy, far_privacy], len(matrix))
            assert reading.result.tail_vector is not None
            vector = np.concatenate([vector, reading.result.tail_vector[:, output]])
            design = np.vstack([slope * design for slope in slopes])
        lower = np.asarray(np.linalg.cholesky(total), dtype=np.float64)
        white = solve_triangular(lower, np.column_stack([design, vector]), lower=True)
        whole = np.ascontiguousarray(white[:, :-1])
        observed = white[:, -1] + whole @ baseline
        return cls(design=whole, observed=observed, lower=lower, sampling=sampling)


@dataclass(frozen=True, eq=False)
class _Pooled:
    """All stages for one output: ``J = sum H^T H`` and ``sum H^T y``."""

    told: tuple[_Told, ...]
    noise_variance: float

    @cached_property
    def information(self) -> FloatArray:
        return np.asarray(sum(each.design.T @ each.design for each in self.told))

    @cached_property
    def vector(self) -> FloatArray:
        return np.asarray(sum(each.design.T @ each.observed for each in self.told))

    @cached_property
    def sampled(self) -> FloatArray:
        return np.asarray(sum(each.sampled() for each in self.told))

    def mean(self, prior: FloatArray) -> FloatArray:
        """The mean of the posterior alone: ``L (I + L^T J L)^-1 L^T sum H^T y``."""
        lower = np.linalg.cholesky(prior)
        inner = lower.T @ self.information @ lower
        inner[np.diag_indices_from(inner)] += 1 + 1e-13 * float(np.trace(inner))
        return np.asarray(lower @ cho_solve(cho_factor(inner), lower.T @ self.vector))

    def posterior(self, prior: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean, ``P = L (I + L^T J L)^-1 L^T``, and ``P K^-1 P``, which the prior holds back."""
        lower = np.linalg.cholesky(prior)
        values, vectors = np.linalg.eigh(lower.T @ self.information @ lower)
        shrink = 1 / (1 + np.maximum(values, 0.0))
        axes = lower @ vectors
        covariance = (axes * shrink) @ axes.T
        return covariance @ self.vector, covariance, (axes * shrink**2) @ axes.T

    def estimate(self, prior: FloatArray) -> Estimate:
        """The posterior split by cause."""
        mean, covariance, bias = self.posterior(prior)
        sampling = covariance @ self.sampled @ covariance
        return Estimate(
            mean=mean,
            covariance=covariance,
            bias=bias,
            sampling=sampling,
            privacy=covariance - bias - sampling,
            prior=float(np.trace(prior)) / len(prior),
            noise_variance=self.noise_variance,
        )


def decode(
    readings: Sequence[StageReading], output: int, *, prior: FunctionPrior, tau: float | None
) -> Estimate:
    """Pool all stages; weights of the prior by evidence, or ``s^2 / tau`` where tau is given.

    The noise in y, and what the noise on the covariance does, are found by fixed point: from the
    residuals of the last stage under the estimate that the last guess led to.
    """
    last = readings[-1]
    doubt = float(last.result.noise[2][output])
    # Squared residuals before fitting bound the noise from above.
    ceiling = min(max(float(last.result.squares[output]), 0.0) + _CAUTION * doubt, last.rows)
    ceiling = ceiling / last.rows + 1e-30
    start = prior.covariance(prior.expected)
    guess = np.zeros(prior.rank), start
    weights, noise_variance = prior.expected, ceiling
    most = _spread_of_targets(readings[0], output)
    shares = _shares_of_rows(readings, output)
    tails: list[Tail | None] = []
    for number in range(_ROUNDS + 1):
        if number:
            found = _residual_variance(last, output, guess, noise_variance, tails[-1])
            near = 1.0 if tails[-1] is None else tails[-1].share
            noise_variance = min(float(np.clip(found, 1e-8 * ceiling, ceiling)) / near, 1.0)
        settled = number not in (0, 1, _ROUNDS)  # what takes longest, and then hardly changes
        if not settled:
            tails = [read_tail(reading, output, start, guess) for reading in readings]
        pooled = _Pooled(
            tuple(
                _Told.of(reading, output, tail, noise_variance / share, guess)
                for reading, tail, share in zip(readings, tails, shares, strict=True)
            ),
            noise_variance,
        )
        if tau is None and not settled:
            weights = prior.preferred(pooled.information, pooled.vector, most)
        covariance = (
            prior.covariance(weights) if tau is None else noise_variance / tau * np.eye(prior.rank)
        )
        if number < _ROUNDS:
            guess = pooled.posterior(covariance)[:2]
    if tau is not None:
        return pooled.estimate(covariance)
    chances = prior.plausible(pooled.information, pooled.vector, weights, most)
    return _with_misfit(_mixed(pooled, prior, chances), pooled.told, start)


def _shares_of_rows(readings: Sequence[StageReading], output: int) -> FloatArray:
    """For how much of its rows each stage speaks: ``w_i / sum w`` of the stages over them."""
    plans = [reading.result.plan for reading in readings]
    weights = np.array([plan.share / float(plan.reach[output]) ** 2 for plan in plans])
    tables = np.array([plan.table for plan in plans])
    return np.asarray(weights / [weights[tables == each].sum() for each in tables])


def _spread_of_targets(reading: StageReading, output: int) -> float | None:
    """The most that the targets of the first stage vary: their mean square less that of the mean.

    Each with a deviation of its noise on the safe side. None where the mean is not told.
    """
    if reading.level is None or reading.baseline.any():
        return None
    squares, noise = float(reading.result.squares[output]), reading.result.noise
    # g . level = mean * |b| * sum w^2 / |b|^2, and level^T M level = sum w^2 / |b|^2.
    size = reading.rows / max(float(reading.level @ reading.covariance @ reading.level), 1e-300)
    mean = float(reading.level @ reading.result.vector[:, output]) * sqrt(size) / reading.rows
    doubt = float(noise[1][output]) * sqrt(size) / reading.rows
    total = (squares + float(noise[2][output])) / reading.rows
    return max(total - max(abs(mean) - doubt, 0.0) ** 2, _LEAST_SPREAD)


def _mixed(
    pooled: _Pooled, prior: FunctionPrior, chances: Sequence[tuple[FloatArray, float]]
) -> Estimate:
    """The mean over all plausible weights; their spread, and what it is off by, count as bias.

    Widths are those under the same shares of a function that is not smaller than expected.
    """
    found = [(pooled.mean(prior.covariance(each)), chance) for each, chance in chances]
    mean = sum((chance * each for each, chance in found), np.zeros(prior.rank))
    away = np.stack([sqrt(chance) * (each - mean) for each, chance in found])
    # Means of logarithms: those of weights are what the largest of them is.
    logs = np.asarray(sum(chance * each for each, chance in chances))
    middle = prior.covariance(logs)
    # What is unseen may be as large as the larger of them say: half way to the logs of their mean.
    outside = (logs + np.logaddexp.reduce([each + log(c) for each, c in chances], axis=0)) / 2
    wide = pooled.estimate(prior.covariance(prior.not_smaller(outside)))
    off = mean - wide.mean
    spread = away.T @ away + np.outer(off, off)
    return replace(
        wide,
        mean=mean,
        covariance=wide.covariance + spread,
        bias=wide.bias + spread,
        prior=float(np.trace(middle)) / len(middle),
        weights=logs,
        outside=outside,
        central=pooled.posterior(middle)[1],
    )


def _with_misfit(estimate: Estimate, told: Sequence[_Told], prior: FloatArray) -> Estimate:
    """Widths that are larger by as much as releases disagree with the fit and with each other.

    ``|U^T (y - H theta)|^2`` over its expectation, ``U`` the directions of each release that tell
    of the function more than noise.
    """
    lower = np.linalg.cholesky(prior)
    statistic, expected = 0.0, 0.0
    for each in told:
        left, values, _ = np.linalg.svd(each.design @ lower, full_matrices=False)
        left = left[:, values**2 > _INFORMATIVE]
        seen = left.T @ each.design
        residual = left.T @ each.observed - seen @ estimate.mean
        statistic += float(residual @ residual)
        expected += left.shape[1] - float(np.sum((seen @ estimate.covariance) * seen))
    misfit = max(1.0, statistic / expected) if expected > 1 else 1.0
    return replace(
        estimate,
        covariance=misfit * estimate.covariance,
        bias=misfit * estimate.bias,
        sampling=misfit * estimate.sampling,
        privacy=misfit * estimate.privacy,
        misfit=misfit,
    )


def _residual_variance(
    reading: StageReading,
    output: int,
    guess: tuple[FloatArray, FloatArray],
    noise_variance: float,
    tail: Tail | None,
) -> float:
    """Mean squared residual of a stage, corrected for what the estimate took from its own noise.

    Some standard deviations of the privacy noise in it and half of the correction are added:
    residuals that are thought too small would be clipped.

    ``(T - 2 b.g + b^T M b + 2 tr(Q M) - tr(R^-1 M Q M Q M)) / sum w^2`` with ``b = A^-1 (theta -
    baseline)`` and ``Q = A^-1 P A^-T``.
    """
    mean, covariance = guess
    change = mean - reading.baseline[:, output]
    slope = 1.0
    if tail is not None:
        slope, change = tail.slope, tail.slope * change - tail.skew
    b = reading.unwhiten @ change
    vector = reading.result.vector[:, output]
    matrix = reading.covariance
    rss = float(reading.result.squares[output]) - 2 * b @ vector + b @ matrix @ b
    posterior = slope**2 * (reading.unwhiten @ covariance @ reading.unwhiten.T)
    on_entry, on_vector, on_square = reading.result.noise
    noise = float(on_vector[output]) ** 2 + reading.uncertain(change, covariance)
    near = noise_variance * (1.0 if tail is None else tail.share)
    total = np.diag(noise) + near * matrix
    total[np.diag_indices_from(total)] += 1e-10 * float(np.trace(total)) / len(total)
    image = posterior @ matrix
    taken = 2 * float(np.trace(image))
    taken -= float(np.sum(cho_solve(cho_factor(total), image.T) * (image.T @ matrix)))
    doubt = (
        on_square[output] ** 2
        + 4 * on_vector[output] ** 2 * (b @ b)
        + 2 * (on_entry * (b @ b)) ** 2
    )
    return float(rss + 1.5 * max(taken, 0.0) + _CAUTION * np.sqrt(doubt)) / reading.rows
