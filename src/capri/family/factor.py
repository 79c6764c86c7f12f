"""Features of one side of a pair: of contexts, or of actions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.features import row_by_row
from capri.kernels import Kernel, from_dict
from capri.kernels.evaluate import Near

# Standard scores beyond are cut: one odd row must not stretch every distance.
FARTHEST_SCORE = 4.0


@dataclass(frozen=True, eq=False)
class Scores:
    """``clip((x - centre) rate) axes``: raw columns on a common scale, all from public rows.

    A column that never changes has rate 0. ``axes`` makes new columns of them, None keeps them.
    """

    centre: FloatArray
    rate: FloatArray
    axes: FloatArray | None = None

    def __call__(self, rows: FloatArray) -> FloatArray:
        """The scores of each row, by itself."""
        with np.errstate(over="ignore"):
            scores = rows - self.centre
            scores *= self.rate
        np.maximum(scores, -FARTHEST_SCORE, out=scores)
        np.minimum(scores, FARTHEST_SCORE, out=scores)
        return scores if self.axes is None else row_by_row(scores, self.axes)


@dataclass(frozen=True, eq=False)
class Factor:
    """``u(x) = [1, T^T k(scores(x), pivots) - offset]``: the constant, then features of mean 0.

    Over the public rows it was built on they have mean square 1 and are uncorrelated.
    """

    scores: Scores
    kernel: Kernel
    pivots: FloatArray
    transform: FloatArray
    offset: FloatArray

    @property
    def columns(self) -> int:
        """Numbers of a raw row."""
        return len(self.scores.centre)

    @property
    def width(self) -> int:
        """Features, the constant among them."""
        return len(self.offset) + 1

    def __call__(self, rows: FloatArray) -> FloatArray:
        """``u`` of each row; it does not depend on the rows beside it, to the bit."""
        found = np.empty((len(rows), len(self.offset) + 1))
        found[:, 0] = 1.0
        if len(self.offset):
            values = row_by_row(self._near(self.scores(rows)), self.transform)
            np.subtract(values, self.offset, out=found[:, 1:])
        return found

    @cached_property
    def _near(self) -> Near:
        return Near(self.kernel, self.pivots)

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """As JSON values and arrays."""
        arrays = {
            "centre": self.scores.centre,
            "rate": self.scores.rate,
            "pivots": self.pivots,
            "transform": self.transform,
            "offset": self.offset,
        }
        if self.scores.axes is not None:
            arrays["axes"] = self.scores.axes
        return self.kernel.to_dict(), arrays

    @classmethod
    def from_state(cls, kernel: dict[str, Any], arrays: dict[str, FloatArray]) -> "Factor":
        """The inverse of :meth:`state`."""
        return cls(
            Scores(arrays["centre"], arrays["rate"], arrays.get("axes")),
            from_dict(kernel),
            arrays["pivots"],
            arrays["transform"],
            arrays["offset"],
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """Covariances of a factor's coefficients, one for each candidate kernel.

    Each is centred and of trace 1, with zeros for the constant. ``shares``: how much is expected of
    each; ``names`` say which it is.
    """

    covariances: FloatArray
    shares: FloatArray
    names: tuple[str, ...]

    @property
    def and_constant(self) -> FloatArray:
        """All of them, and last, as number -1, the constant."""
        width = self.covariances.shape[1]
        constant = np.zeros((1, width, width))
        constant[0, 0, 0] = 1.0
        return np.concatenate([self.covariances, constant])


def standard_scores(rows: FloatArray, weights: FloatArray, dimensions: int) -> Scores:
    """Mean 0 and deviation 1 in every column.

    Of many columns, first the principal directions of most variance, for distances, and then all
    of them, for what is linear.
    """
    centre = weights @ rows
    deviation = np.sqrt(weights @ (rows - centre) ** 2)
    moving = deviation > 1e-13 * np.maximum(np.abs(rows).max(axis=0), 1e-300)
    rate = np.where(moving, 1.0, 0.0) / np.where(moving, deviation, 1.0)
    scores = Scores(centre, rate)
    if rows.shape[1] <= dimensions:
        return scores
    found = scores(rows)
    found = (found - weights @ found) * np.sqrt(weights)[:, None]
    axes = np.linalg.svd(found, full_matrices=False)[2][:dimensions].T
    return replace(scores, axes=np.concatenate([axes, np.eye(len(axes))], axis=1))


def range_scores(rows: FloatArray) -> Scores:
    """Every column from 0 to 1 over these rows."""
    low, extent = rows.min(axis=0), np.ptp(rows, axis=0)
    moving = extent > 0
    return Scores(low, np.where(moving, 1.0, 0.0) / np.where(moving, extent, 1.0))


def make_factor(
    scores: Scores,
    kernel: Kernel,
    sample: FloatArray,
    basis: tuple[FloatArray, FloatArray],
    candidates: Sequence[Kernel],
    *,
    shares: Sequence[float],
    names: Sequence[str],
    power: float,
) -> tuple[Factor, Candidates]:
    """Features that span ``basis`` (pivots and transform of a kernel), and the candidates on them.

    A candidate ``k`` has the covariance ``E[u(x) k~(x, x') u(x')^T]`` with ``k~`` centred over the
    sample, its spectrum raised to ``power`` and scaled to trace 1: its weight is then the share of
    ``E f^2`` under the sample that it stands for.
    """
    pivots, transform = basis
    mapped = scores(sample)
    raw = kernel(mapped, pivots) @ transform
    mean = raw.mean(axis=0)
    spectrum, vectors = np.linalg.eigh(np.atleast_2d(np.cov(raw.T, bias=True)))
    kept = spectrum > 1e-5 * max(spectrum.sum(), 1e-300)
    turn = (vectors[:, kept] / np.sqrt(spectrum[kept]))[:, ::-1]
    features = (raw - mean) @ turn
    found = [_projected(each(mapped, mapped), features, power) for each in candidates]
    width = features.shape[1] + 1
    covariances = np.zeros((len(found), width, width))
    if width > 1:
        covariances[:, 1:, 1:] = found
    factor = Factor(
        scores,
        kernel,
        np.ascontiguousarray(pivots),
        np.ascontiguousarray(transform @ turn),
        mean @ turn,
    )
    expected = np.asarray(shares, dtype=np.float64) / sum(shares)
    return factor, Candidates(covariances, expected, tuple(names))


def _projected(gram: FloatArray, features: FloatArray, power: float) -> FloatArray:
    """``E[u k~ u^T]``, its spectrum raised to the power, of trace 1."""
    count = len(features)
    gram = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    inner = features.T @ gram @ features / count**2
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    values = np.maximum(values, 0.0) ** power
    return np.asarray((vectors * (values / max(values.sum(), 1e-300))) @ vectors.T)
