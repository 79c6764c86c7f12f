"""Settings that cannot be right, by what was released: rows that count for little, targets at ends.

Nobody may look at a row to see that classes match no label or that bounds are in another unit. The
moments that left the gate tell of it, and reading them is post-processing. With ``b`` the
coefficients of 1 in the features of a stage,

    b^T (sum w^2 psi psi^T) b ~ sum w^2     rows that count,
    sum w^2 t^2                             their targets: t^2 = 1 at either end of ``y_bounds``,

each with Gaussian noise of known width. Rows are held against as many rows of the public law. All
that is said by one fit together is said wrongly with a probability below 1e-4: of rows that count
at least half as much as those of the law, or of targets whose mean square is at most 0.8 at the
weights of the law.
"""

import warnings
from collections.abc import Iterator
from math import sqrt
from statistics import NormalDist

import numpy as np

from capri.arrays import FloatArray
from capri.errors import KernelWarning
from capri.regression.callers import steps_to_caller
from capri.regression.engine import Engine
from capri.regression.stage import StageResult

# Chance that anything is said of a fit that it is not true of.
_FALSE_ALARM = 5e-5
# Rows count for little below this share of what rows of the public law count, and targets are at
# the ends above this mean square.
_LITTLE, _AT_ENDS = 0.5, 0.8


def warn_of_doubts(engine: Engine, *, codes: bool) -> None:
    """Say what does not fit the releases; ``codes``: targets that are all at ends, as they must."""
    for doubt in _doubts(engine, codes=codes):
        warnings.warn(doubt, KernelWarning, stacklevel=steps_to_caller())


def _doubts(engine: Engine, *, codes: bool) -> Iterator[str]:
    results = [each.result for each in engine.readings if each.result.measured]
    sample, targets = engine.setting.law.sample, engine.setting.targets
    rows = sum(result.plan.rows for result in results)
    if not rows:
        return
    deviations = NormalDist().inv_cdf(1 - _FALSE_ALARM / (1 + engine.setting.outputs))
    ones = np.asarray(np.linalg.lstsq(sample, np.ones(len(sample)), rcond=None)[0], np.float64)
    found, variance, expected = np.sum([_counted(each, sample, ones) for each in results], axis=0)
    if found + deviations * sqrt(variance) < _LITTLE * expected:
        yield (
            f"what was released of {rows} rows says that they count for less than half of what "
            "rows like the public ones would: their labels are none of the classes, or their "
            "values are missing or of another type"
        )
    for output in range(0 if codes else engine.setting.outputs):
        found, variance, expected = np.sum(
            [_squares(each, sample, output) for each in results], axis=0
        )
        if expected and found - deviations * sqrt(variance) > _AT_ENDS * expected:
            bounds = f"({targets.low[output]:g}, {targets.high[output]:g})"
            place = f" of output {output}" if engine.setting.outputs > 1 else ""
            yield (
                f"what was released says that nearly all targets{place} lie at an end of y_bounds "
                f"= {bounds}, or beyond. That is right for targets that are yes or no; else "
                "y_bounds are in another unit than y, or far too wide"
            )


def _weights(result: StageResult, sample: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Features of the public rows in a stage, and the square of the weight that each has there."""
    psi = sample @ result.plan.features.whitening
    norms = np.maximum(np.square(psi).sum(axis=1), result.plan.clip_norm**2)
    return psi, result.plan.clip_norm**2 / norms


def _counted(result: StageResult, sample: FloatArray, ones: FloatArray) -> FloatArray:
    """``b^T M b`` as released, the variance of its noise, and its mean under the public law.

    ``noise[0]`` is the standard deviation ``s`` of an entry beside the diagonal; on the diagonal
    the variance is ``2 s^2``. So that of ``b^T N b`` is ``2 s^2 sum b_i^4 + 4 s^2 sum_{i<j} b_i^2
    b_j^2 = 2 s^2 |b|^4``.
    """
    b = np.linalg.solve(result.plan.features.whitening, ones)
    psi, weights = _weights(result, sample)
    expected = result.plan.rows * float(np.mean(weights * np.square(psi @ b)))
    found = float(b @ result.covariance @ b)
    return np.array([found, 2 * (result.noise[0] * float(b @ b)) ** 2, expected])


def _squares(result: StageResult, sample: FloatArray, output: int) -> FloatArray:
    """``sum w^2 t^2`` likewise, were every target at an end; zeros where residuals are told."""
    if result.plan.reach[output] < 1:
        return np.zeros(3)
    expected = result.plan.rows * float(_weights(result, sample)[1].mean())
    return np.array([result.squares[output], result.noise[2][output] ** 2, expected])
