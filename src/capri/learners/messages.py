"""What an epoch should ask about: the shape of its messages, and what they will tell.

A message ``t psi(w)`` has norm at most 1 whatever its shape, so loudness in one direction is paid
for in all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.features import LowRankFeatures, Span
from capri.learners.belief import Belief, Expected, Observation, Posterior
from capri.learners.boundary import Encoding, mean_of, noise_at, shared_baseline
from capri.learners.options import PracticalOptions
from capri.learners.support import Support
from capri.privacy.budget import PrivacyModel

# Overall loudness tried, relative to the most informative direction; the best prediction wins.
_LOUDNESS = 2.0 ** np.arange(0.5, 24.0, 1.5)
# Where every report has noise of its own, residuals are clipped at this share of the usual bound,
# and messages are so many times as loud: later epochs correct what clipping distorts.
_LOCAL_CLIP, _LOCAL_LOUDNESS = 2 / 3, 2.0
# Directions with less than this share of the largest spread under the law are left out.
_NEGLIGIBLE = 1e-6


def water_filling(
    features: FloatArray,
    weights: FloatArray,
    posterior: Posterior,
    *,
    length: int,
    noise: float,
    residual_variance: float,
) -> FloatArray:
    """The matrix ``A`` of ``psi(w) = A^T v(w)``, with ``max |psi| = 1`` over the support.

    In coordinates where the posterior is white and the law's covariance diagonal, ``l_j``, a
    message ``sqrt(a_j) u_j`` leaves a variance ``l_j / (1 + b_j a_j)``, ``b_j = (n l_j/noise)^2``.
    Minimising the sum under ``sum a_j l_j = const`` gives ``a_j = (sqrt(b_j g) - 1)_+ / b_j``:
    directions not worth their noise are dropped. The multiplier ``g`` is the one with the smallest
    predicted error, sampling noise and the true maximal norm included.
    """
    whitened = features @ posterior.factor
    spread, vectors = np.linalg.eigh((whitened * weights[:, None]).T @ whitened)
    kept = spread > _NEGLIGIBLE * spread[-1]
    spread, vectors = spread[kept], vectors[:, kept]
    squares = (whitened @ vectors) ** 2
    value = (length * spread / noise) ** 2
    loudness = _LOUDNESS[:, None] / value.max()
    shares = np.maximum(np.sqrt(value * loudness) - 1, 0) / value
    shares /= (squares @ shares.T).max(axis=0)[:, None]
    information = (length * spread) ** 2 * shares
    information /= noise**2 + length * residual_variance * spread * shares
    best = shares[(spread / (1 + information)).sum(axis=1).argmin()]
    used = best > 0
    return np.asarray((posterior.factor @ vectors[:, used]) * np.sqrt(best[used]))


# The noise hardly depends on the number of coordinates; this one stands for all.
_TYPICAL_DIMENSION = 32
# Lengths of a first batch of mixed reports, and what it should tell: its length over the squared
# noise multiplier.
_FIRST_BATCHES = (50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_TELLING = 250.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """The plan of an epoch as the learner needs it again when the release is there.

    ``main_share`` is the share of a message's norm that carries ``t psi``, ``noise`` the standard
    deviation of the privacy noise after division by it; ``signal_variance`` is what the belief
    expects of the squared residual without reward noise. ``spread = E[v v^T]`` and
    ``left_out = E[residual]`` are expectations.
    """

    observation: Observation
    value_bound: float
    residual: bool
    main_share: float
    noise: float
    signal_variance: float
    residual_variance: float
    spread: FloatArray
    left_out: float
    squares: Expected
    # Where the epoch was not what its plan expected: how many answered, and the bound by which
    # squared residuals were divided on average (see learners/reading.py).
    answers: float | None = None
    moment_bound: float | None = None

    @property
    def noise_share(self) -> float:
        """Privacy noise as a share of the variance of the released vector."""
        covariance = self.observation.covariance
        return self.noise**2 * len(covariance) / float(np.trace(covariance))


def first_epoch_length(problem: Problem) -> int:
    """Long enough for the first release to rise above its noise: 40 times the noise multiplier.

    In the local model the noise of ``n`` reports grows as ``sqrt(n)``, so the length goes with the
    square: 10 times the squared multiplier. At least 50 rounds in any case.
    """
    if problem.budget is None:
        return 50
    if problem.shuffle is not None:
        return _first_batch(problem)
    multiplier = problem.least_noise(_TYPICAL_DIMENSION)
    if problem.model is PrivacyModel.LOCAL:
        return max(50, int(10 * multiplier**2))
    return max(50, int(40 * multiplier))


def _first_batch(problem: Problem) -> int:
    """Reports of the first batch: the smallest of some lengths that tells enough.

    What ``n`` reports tell goes with ``n`` over the squared multiplier, which falls steeply in
    small batches: a first one of the local model's length would tell next to nothing.
    """
    for length in _FIRST_BATCHES:
        if length / problem.noise_per_bound(_TYPICAL_DIMENSION, length) ** 2 >= _TELLING:
            return length
    return _FIRST_BATCHES[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """What an epoch could ask about, before anybody says how: all that its layouts share.

    ``total`` is the expected square of a residual at each pair of the support, ``signal`` that part
    of it which is not reward noise. ``answers``: rewards that are expected. ``unsettled``: a root
    of what will not be known when the epochs before this one are released.
    """

    problem: Problem
    basis: Span
    support: Support
    state: Posterior
    unsettled: FloatArray
    baseline: FloatArray
    value_bound: float
    residual: bool
    signal: FloatArray
    total: FloatArray
    answers: int

    @property
    def mean_total(self) -> float:
        """``E[z^2]`` under the law."""
        return float(self.support.weights @ self.total)

    @cached_property
    def spread(self) -> FloatArray:
        """``E[v v^T]``."""
        v = self.support.features
        return np.asarray((v * self.support.weights[:, None]).T @ v)

    @cached_property
    def unknown(self) -> FloatArray:
        """``E[v v^T]`` in coordinates in which what is unknown is white."""
        return np.asarray(self.unsettled.T @ self.spread @ self.unsettled)

    def expected(self, observation: Observation, *, main_share: float, noise: float) -> "Design":
        """Everything that a release of this observation will be read with."""
        support = self.support
        return Design(
            observation=observation,
            value_bound=self.value_bound,
            residual=self.residual,
            main_share=main_share,
            noise=noise,
            signal_variance=float(support.weights @ self.signal),
            residual_variance=self.mean_total,
            spread=self.spread,
            squares=Expected.of(self.spread, self.baseline),
            left_out=float(support.weights @ self.basis.residual(support.pairs, support.features)),
        )


def question_of(
    *,
    problem: Problem,
    options: PracticalOptions,
    basis: Span,
    belief: Belief,
    state: Posterior,
    support: Support,
    length: int,
    rate: float,
    awaited: Sequence[Observation],
) -> Question:
    """What is known of a coming epoch.

    ``awaited``: what earlier epochs will tell that are not released yet. ``rate``: the share of
    decisions whose reward is expected to come, where that is measured.
    """
    features, weights = support.features, support.weights
    variance = np.sum((features @ state.factor) ** 2, axis=1)
    estimate = features @ state.mean
    noise_variance = noise_at(belief, estimate, problem.reward_bound)
    answers = max(1, int(length * rate))
    encoding = bound_of(
        problem,
        options,
        belief,
        float(weights @ variance) + mean_of(noise_variance, weights),
        played=(estimate, weights, answers),
    )
    signal = variance
    if encoding.share < 1:
        signal = variance + ((1 - encoding.share) * estimate) ** 2
    return Question(
        problem=problem,
        basis=basis,
        support=support,
        state=state,
        unsettled=awaited_factor(state.factor, awaited),
        baseline=encoding.subtracted(state.mean),
        value_bound=encoding.bound,
        residual=encoding.clips,
        signal=signal,
        total=signal + noise_variance,
        answers=answers,
    )


def dense_design(question: Question, options: PracticalOptions) -> tuple[FloatArray, Design]:
    """The shape ``A`` of ``psi(w) = A^T v(w)``, and what the release will be read with.

    The shape asks about what will not be known when earlier epochs are released.
    """
    problem, support, length = question.problem, question.support, question.answers
    features, weights, value_bound = support.features, support.weights, question.value_bound
    # Later segments may clip residuals even where the first does not.
    main_share = options.main_share(
        tail=question.residual or problem.rewards.overlapping, products=problem.sends_products
    )
    noise = coordinate_noise(problem, question.basis.rank, value_bound, length) / main_share
    loudness = options.loudness
    if problem.budget is not None and problem.model is PrivacyModel.LOCAL:
        loudness *= _LOCAL_LOUDNESS
    shape = loudness * water_filling(
        features,
        weights,
        replace(question.state, factor=question.unsettled),
        length=length,
        noise=noise,
        residual_variance=question.mean_total,
    )
    # What the basis rank allowed for at most is now known: a report of fewer coordinates.
    noise = coordinate_noise(problem, shape.shape[1], value_bound, length) / main_share
    psi = features @ shape
    psi /= np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None]
    sampling = length * (psi * (weights * question.total)[:, None]).T @ psi
    observation = Observation(
        design=length * (psi * weights[:, None]).T @ features,
        covariance=noise**2 * np.eye(psi.shape[1]) + sampling,
        baseline=question.baseline,
        sampling=sampling,
        participants=length,
    )
    design = question.expected(observation, main_share=main_share, noise=noise)
    return np.ascontiguousarray(shape), design


def awaited_factor(factor: FloatArray, awaited: Sequence[Observation]) -> FloatArray:
    """A root of the covariance that will be left when the awaited releases are in.

    ``F (I + F^T sum H^T R^-1 H F)^-1/2``: what data under way will settle need be neither explored
    nor asked about again. The mean, and hence what is thought best, is that of now.
    """
    if not awaited:
        return factor
    information = np.zeros((factor.shape[1], factor.shape[1]))
    for observation in awaited:
        image = observation.design @ factor
        information += image.T @ np.linalg.solve(observation.covariance, image)
    values, vectors = np.linalg.eigh(information)
    return np.asarray(factor @ (vectors / np.sqrt(1 + np.maximum(values, 0.0))))


def bound_of(
    problem: Problem,
    options: PracticalOptions,
    belief: Belief,
    variance: float,
    played: tuple[FloatArray, FloatArray, int] | None = None,
) -> Encoding:
    """``B_s`` and what is subtracted: a few predicted standard deviations of residuals.

    Never above the reward bound, where rewards are encoded as they are, but where an estimate is
    subtracted and nothing is clipped: then up to twice that. Without privacy noise a
    large bound costs nothing, and residuals are never clipped: ``|y - b| <= 2 B``. Rewards at the
    ends of their range are not clipped either; ``played``: estimates at pairs, weights, decisions.
    """
    known = options.residual and belief.epochs > 0 and not belief.curious
    reward_bound = problem.reward_bound
    if problem.budget is None:
        # Tails are measured all the same where an estimate is subtracted.
        return Encoding(2 * reward_bound if known else reward_bound, float(known), clips=known)
    if known and belief.ends and played is not None:
        multiplier = problem.least_noise(_TYPICAL_DIMENSION, played[2])
        return shared_baseline(problem, multiplier, *played)
    bound = options.clip_scale * sqrt(variance)
    if known and not belief.heavy_tails and bound < reward_bound:
        share = _LOCAL_CLIP if problem.model is PrivacyModel.LOCAL else 1.0
        return Encoding(share * bound, 1.0, clips=True)
    return Encoding(reward_bound, 0.0, clips=False)


def coordinate_noise(problem: Problem, rank: int, value_bound: float, length: int) -> float:
    """Standard deviation of the privacy noise on a coordinate of the release."""
    if problem.budget is None:
        # Not zero: the shape needs some noise to weigh directions against each other.
        return 1e-3 * value_bound * sqrt(length)
    # The rank, plus the moment and the tail coordinate; twice and a count with a missing block.
    coordinates = 2 * rank + 3 if problem.rewards.measured else rank + 2
    multiplier = problem.noise_per_bound(coordinates, length)
    return multiplier * value_bound * sqrt(problem.reports(length))


def sigma_max(basis: Span, support: Support, length: int, tau: float) -> float:
    """``sigma~_max`` of the expected covariance ``n E[v v^T] + tau I`` over the support."""
    v, weights = support.features, support.weights
    gram = length * (v * weights[:, None]).T @ v
    psi = v @ LowRankFeatures.from_covariance(basis, gram, tau).whitening
    inside = np.einsum("ij,ij->i", psi, psi)
    outside = basis.residual(support.pairs, v) / tau
    return float(np.sqrt((inside + outside).max()))
