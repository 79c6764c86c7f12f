"""What all releases together say of ``f``: a Gaussian belief in one public basis.

Every release is a linear observation of the coefficients ``theta`` of ``f`` with known matrix and
known noise covariance, so releases of all epochs add up and no datum is thrown away. All of this is
post-processing of what left the gate.

How noisy rewards are: measured squares of residuals, less what is believed of ``f``.

Every epoch measures ``E[z^2]`` of its residuals ``z = y - v^T b`` in private. With ``S = E[v v^T]``
under its law,

    noise variance = E[z^2] - E[(v^T (theta - b))^2],
    E[(v^T (theta - b))^2] = tr(S P) + m^T S m - 2 b^T S m + b^T S b

under the belief ``N(m, P)``. The sums over epochs of both sides are kept, not their difference:
what is believed of early epochs improves with every release. A belief that took most of ``E[z^2]``
for noise when it knew nothing must not go on doing so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import log, sqrt
from types import EllipsisType
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from scipy.linalg import cho_factor, cho_solve, qr, solve_triangular

from capri.arrays import FloatArray

if TYPE_CHECKING:
    from capri.learners.arm_prior import ArmPosterior, ArmPrior
    from capri.learners.priors import EvidencePrior, KnownKernelPrior

# A posterior, and a prior with something left for the evidence to choose: whole, or in blocks.
Believed: TypeAlias = "Posterior | ArmPosterior"
CoefficientPrior: TypeAlias = "KnownKernelPrior | EvidencePrior | ArmPrior"

# Prior scales among which the evidence chooses; 1 expects a root-mean-square of f of about 0.3 B.
PRIOR_SCALES = (0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
PRIOR_SECOND_MOMENT = 0.1
# Strength of the hyper-prior that holds the scale near 1; weak ones lock in on wrong actions.
_SCALE_CERTAINTY = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What an epoch will tell: ``release = design (theta - baseline) + noise``.

    ``design = n E[psi v^T]`` under the sampling law and ``covariance`` of the sum of privacy noise
    and sampling noise, both known before the data. ``sampling`` is the part of it that comes from
    who came and what they said, ``participants`` of them.
    """

    design: FloatArray
    covariance: FloatArray
    baseline: FloatArray
    sampling: FloatArray | None = None
    participants: int = 0


# Which block of the coefficients: its number, or an ellipsis for all of them.
Block = int | EllipsisType
# A block, what was observed of it, and the release.
Told = tuple[Block, Observation, FloatArray]


@dataclass(frozen=True, kw_only=True, eq=False)
class Belief:
    """Information form: ``information = sum H^T R^-1 H``, ``vector = sum H^T R^-1 (g + H base)``.

    Whole, or of every block by itself, ``(blocks, r, r)`` and ``(blocks, r)``.
    ``moment`` and ``moment_precision`` are the measured reward-noise variance times its
    precision, and that precision.
    ``heavy_tails``: clipping residuals was seen to cut off so much that it biases the estimate.
    ``ends``: rewards were seen to lie at the ends of their range, as clicks do: residuals of two
    values are never clipped, and their noise is what their mean leaves (learners/boundary.py).
    ``size``: what ``E y^2`` is at most, as measured, where that is far below the bound; else None.
    ``curious``: there are actions that nothing is known of, whose residuals may be large.
    """

    information: FloatArray
    vector: FloatArray
    moment: float = 0.0
    moment_precision: float = 0.0
    epochs: int = 0
    heavy_tails: bool = False
    curious: bool = False
    ends: bool = False
    size: float | None = None

    @classmethod
    def empty(cls, *shape: int) -> "Belief":
        """Before any release; ``shape``: that of the vector, blocks first."""
        return cls(information=np.zeros((*shape, shape[-1])), vector=np.zeros(shape))

    def observe(self, told: Iterable[Told]) -> "Belief":
        """Add a release, block by block."""
        information, vector = self.information.copy(), self.vector.copy()
        for block, observation, released in told:
            design = observation.design
            weighted = cho_solve(cho_factor(observation.covariance), design)
            information[block] += design.T @ weighted
            vector[block] += weighted.T @ (released + design @ observation.baseline)
        return replace(self, information=information, vector=vector, epochs=self.epochs + 1)

    def with_noise(self, measured: tuple[float, float] | None) -> "Belief":
        """With a variance of the reward noise and its precision, measured over all epochs."""
        value, precision = measured or (0.0, 0.0)
        return replace(self, moment=value * precision, moment_precision=precision)

    def start_again(self) -> "Belief":
        """Forget what residuals with heavy tails have biased, and clip them no more."""
        empty = Belief.empty(*self.vector.shape)
        return replace(empty, epochs=self.epochs + 1, heavy_tails=True)

    def noise_variance(self, reward_bound: float) -> float:
        """Variance of the reward noise: measured mean plus a standard error, ``B^2/4`` at first."""
        if self.moment_precision == 0:
            return 0.25 * reward_bound**2
        measured = max(self.moment / self.moment_precision, 0.0) + self.moment_precision**-0.5
        return float(min(measured, reward_bound**2))


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """``theta | releases ~ N(mean, factor factor^T)`` and the prior scale behind it.

    ``weights``: logarithms of the weights of candidate kernels, where the evidence weighs some.
    ``evidence``: its logarithm, up to what does not depend on the prior. ``doubt``: how far what
    was known before the first user is from ``f`` (:mod:`capri.learners.warm_start`).
    ``reach``: what the prior's deviations were multiplied by (learners/boundary.py).
    """

    mean: FloatArray
    factor: FloatArray
    scale: float
    weights: FloatArray | None = None
    evidence: float = 0.0
    doubt: int = 0
    reach: float = 1.0

    def squares(
        self, spread: FloatArray, image: FloatArray, constant: float
    ) -> tuple[float, float]:
        """``tr(S P)`` and ``(m - b)^T S (m - b)``, given ``S``, ``S b`` and ``b^T S b``."""
        unknown = float(np.einsum("ij,ij->", spread @ self.factor, self.factor))
        known = float(self.mean @ spread @ self.mean - 2 * image @ self.mean)
        return unknown, known + constant

    def error(self, spread: FloatArray) -> float:
        """Root-mean-square deviation of the estimate over pairs with this ``E[v v^T]``."""
        return sqrt(float(np.trace(self.factor.T @ spread @ self.factor)))

    @property
    def parts(self) -> dict[str, FloatArray]:
        """What a mixture is restored from."""
        return {"mean": self.mean, "factor": self.factor}

    def mixed(self, mean: FloatArray, apart: FloatArray) -> Self:
        """With another mean, and columns ``apart`` added to the root of the covariance."""
        stacked = np.concatenate([self.factor, apart], axis=1)
        upper = qr(stacked.T, mode="r")[0][: len(mean)]
        return replace(self, mean=mean, factor=np.asarray(upper.T))


def prior_moment(scale: float, norm_bound: float) -> float:
    """``E f^2 = 0.1 (scale B)^2`` under uniform play, before any release."""
    return PRIOR_SECOND_MOMENT * (scale * norm_bound) ** 2


def scale_penalty(scale: float) -> float:
    """What the hyper-prior takes off the log evidence of a scale: ``4 ln^2 scale``."""
    return _SCALE_CERTAINTY * log(scale) ** 2


def prior_variance(
    spectrum: FloatArray, scale: float, smoothness: float, norm_bound: float
) -> FloatArray:
    """``D_j`` proportional to ``lambda_j^smoothness``, scaled to ``E f^2 = 0.1 scale^2 B^2``.

    ``lambda_j`` is the spectrum of the kernel under uniform play. Smoothness 0 is a sample path of
    the Gaussian process, 1 the mean shape of a function of bounded RKHS norm.
    """
    weights = spectrum**smoothness
    return np.asarray(prior_moment(scale, norm_bound) * weights / (spectrum @ weights))


def posterior(
    belief: Belief,
    variance: Callable[[float], FloatArray],
    *,
    scale: float | None = None,
    level: FloatArray | None = None,
) -> Posterior:
    """The posterior under the prior scale of largest evidence, or under a given one.

    With ``D`` the prior ``variance`` of a scale and ``L L^T = I + D^1/2 information D^1/2``:
    covariance ``D^1/2 (L L^T)^-1 D^1/2``, and ``log evidence = |L^-1 D^1/2 vector|^2 / 2 - log det
    L`` up to a constant. The hyper-prior ``-4 ln^2 scale`` holds the scale near 1. ``level``: a
    covariance that every scale has in common, added to ``D``.
    """
    scales = (1.0,) if belief.epochs == 0 else PRIOR_SCALES
    found: list[tuple[float, Posterior]] = []
    for candidate in scales if scale is None else (scale,):
        root = np.sqrt(variance(candidate))
        if level is None:
            inner = root[:, None] * belief.information * root
            seen = root * belief.vector
        else:
            root = np.linalg.cholesky(np.diag(root**2) + level)
            inner, seen = root.T @ belief.information @ root, root.T @ belief.vector
        lower = np.linalg.cholesky(np.eye(len(root)) + inner)
        whitened = solve_triangular(lower, seen, lower=True)
        evidence = (
            0.5 * float(whitened @ whitened)
            - float(np.log(np.diag(lower)).sum())
            - scale_penalty(candidate)
        )
        inverse = solve_triangular(lower, np.eye(len(root)), lower=True)
        factor = root[:, None] * inverse.T if level is None else root @ inverse.T
        found.append(
            (
                evidence,
                Posterior(
                    mean=factor @ whitened, factor=factor, scale=candidate, evidence=evidence
                ),
            )
        )
    return max(found, key=lambda pair: pair[0])[1]


# What is unknown of f is expected to within so many times itself.
TRUSTED = 1.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What it takes to predict a measured square: ``S``, ``S b`` and ``b^T S b``."""

    spread: FloatArray
    image: FloatArray
    constant: float

    @classmethod
    def of(cls, spread: FloatArray, baseline: FloatArray) -> "Expected":
        """For one law and one baseline."""
        image = spread @ baseline
        return cls(spread=spread, image=image, constant=float(baseline @ image))


@dataclass(frozen=True, kw_only=True, eq=False)
class Squares:
    """Sums over epochs, weighted by the precision of each measure."""

    spread: FloatArray
    image: FloatArray
    constant: float = 0.0
    total: float = 0.0
    weight: float = 0.0
    # What clipping cuts off, in units of its bound, where releases are pooled: residuals.py.
    cut: float = 0.0
    cut_weight: float = 0.0

    @classmethod
    def empty(cls, *shape: int) -> "Squares":
        """Before any release; ``shape``: that of the coefficients, blocks first."""
        return cls(spread=np.zeros((*shape, shape[-1])), image=np.zeros(shape))

    @classmethod
    def of(cls, belief: Belief, state: Posterior) -> "Squares":
        """As if the noise variance had been measured with nothing left to believe of ``f``."""
        precision = belief.moment_precision
        return replace(cls.empty(len(state.mean)), total=belief.moment, weight=precision)

    def measured(self, square: float, deviation: float, expected: Expected) -> "Squares":
        """Add the measured ``E[z^2]`` of an epoch."""
        weight = deviation**-2
        return replace(
            self,
            spread=self.spread + weight * expected.spread,
            image=self.image + weight * expected.image,
            constant=self.constant + weight * expected.constant,
            total=self.total + weight * square,
            weight=self.weight + weight,
        )

    def second_moment(self, mean: FloatArray) -> tuple[float, float] | None:
        """``E y^2`` of rewards, and the standard deviation of its measure.

        ``z = y - v^T b``, so ``E y^2 = E z^2 + 2 E[v^T b y] - E[(v^T b)^2]``, with what is believed
        of ``f`` in the place of ``y`` in the middle.
        """
        if self.weight == 0:
            return None
        cross = 2 * float((self.image * mean).sum()) - self.constant
        return (self.total + cross) / self.weight, self.weight**-0.5

    def noise(self, state: Believed) -> tuple[float, float] | None:
        """The noise variance under a belief, and the precision of it."""
        if self.weight == 0:
            return None
        unknown, known = state.squares(self.spread, self.image, self.constant)
        variance = 1 / self.weight + (TRUSTED * unknown / self.weight) ** 2
        return (self.total - unknown - known) / self.weight, 1 / variance
