"""What an epoch should ask about: the shape of its messages, and what they will tell.

A message ``t psi(w)`` has norm at most 1 whatever its shape, so loudness in one direction is paid
for in all others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Generic, TypeVar

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.features import ProjectedFeatures, Span, whitening_of
from capri.learners.belief import Belief, Believed, Expected, Observation
from capri.learners.boundary import Encoding, mean_of, shared_baseline
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Overdispersion
from capri.learners.segments import Design, Estimated, Support, Supported
from capri.privacy.budget import PrivacyModel
from capri.privacy.histogram import HistogramLayout
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout

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
    factor: FloatArray,
    *,
    length: int,
    noise: float,
    residual_variance: float,
) -> FloatArray:
    """The matrix ``A`` of ``psi(w) = A^T v(w)``, with ``max |psi| = 1`` over the support.

    In coordinates where the posterior, of root ``factor``, is white and the law's covariance
    diagonal, ``l_j``, a message ``sqrt(a_j) u_j`` leaves a variance ``l_j / (1 + b_j a_j)``,
    ``b_j = (n l_j/noise)^2``. Minimising the sum under ``sum a_j l_j = const`` gives ``a_j =
    (sqrt(b_j g) - 1)_+ / b_j``: directions not worth their noise are dropped. The multiplier ``g``
    is the one with the smallest predicted error, sampling noise and the true maximal norm included.
    """
    whitened = features @ factor
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
    return np.asarray((factor @ vectors[:, used]) * np.sqrt(best[used]))


# The noise hardly depends on the number of coordinates; this one stands for all.
_TYPICAL_DIMENSION = 32
# Lengths of a first batch of mixed reports, and what it should tell: its length over the squared
# noise multiplier.
_FIRST_BATCHES = (50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_TELLING = 250.0


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


S = TypeVar("S", bound=Supported)


@dataclass(frozen=True, kw_only=True, eq=False)
class Question(Generic[S]):
    """What an epoch could ask about, before anybody says how: all that its layouts share.

    ``total`` is the expected square of a residual at each pair of the support. ``answers``: rewards
    that are expected. ``unsettled``: a root of what will not be known when the epochs before this
    one are released. ``tail``: what clipping cuts off is measured. ``tau``: the ridge that the
    prior amounts to.
    """

    problem: Problem
    options: PracticalOptions
    basis: Span
    overdispersion: Overdispersion
    support: S
    unsettled: FloatArray
    baseline: FloatArray
    value_bound: float
    residual: bool
    weights: FloatArray
    total: FloatArray
    epoch: int
    length: int
    answers: int
    tau: float

    @property
    def mean_total(self) -> float:
        """``E[z^2]`` under the law."""
        return float(self.weights @ self.total)

    @property
    def tail(self) -> bool:
        """Later segments may clip residuals even where the first does not."""
        return self.residual or self.problem.rewards.overlapping

    @property
    def tail_share(self) -> float:
        """Share of a message's norm that measures what clipping cuts off."""
        return self.options.tail_share * self.tail

    @cached_property
    def spread(self) -> FloatArray:
        """``E[v v^T]``, whole or of every block."""
        found = np.zeros((*self.baseline.shape, self.baseline.shape[-1]))
        for block, v, weights in self.support.blocks():
            found[block] = (v * weights[:, None]).T @ v
        return found

    @cached_property
    def differences(self: "Question[Support]") -> FloatArray:
        """``E[d d^T]`` in coordinates in which what is unknown is white."""
        return np.asarray(self.unsettled.T @ self.support.differences @ self.unsettled)

    def expected(self, observation: Observation, *, main_share: float, noise: float) -> Design:
        """Everything that a release of this observation of one block will be read with."""
        return Design(
            observations={...: observation},
            value_bound=self.value_bound,
            residual=self.residual,
            main_share=main_share,
            noise=noise,
            residual_variance=self.mean_total,
            spread=self.spread,
            squares=Expected.of(self.spread, self.baseline),
            left_out=float(self.weights @ self.support.left_out(self.basis)),
        )


@dataclass(frozen=True, eq=False)
class Message:
    """How an epoch asks: its features and layout.

    ``design``: what they are expected to tell, where that was found on the way. ``noise`` and
    ``main_share``: as in :class:`Design`.
    """

    features: ProjectedFeatures
    layout: VectorLayout | ProductLayout | HistogramLayout
    noise: float
    main_share: float
    design: Design | None = None


def question_of(
    *,
    problem: Problem,
    options: PracticalOptions,
    basis: Span,
    belief: Belief,
    state: Believed,
    overdispersion: Overdispersion,
    support: S,
    epoch: int,
    length: int,
    rate: float,
    awaited: FloatArray | None,
    prior_variance: float,
    noise_at: Callable[[FloatArray], FloatArray | float],
) -> Question[S]:
    """What is known of a coming epoch.

    ``awaited``: the information of earlier epochs that are not released yet. ``rate``: the share of
    decisions whose reward is expected to come, where that is measured. ``prior_variance``: the
    largest of a coefficient. ``noise_at``: variances of the reward noise by estimates.
    """
    answers = max(1, int(length * rate))
    estimated = support.estimated(state)
    noise = noise_at(estimated.estimate)
    encoding = encoding_of(problem, options, belief, estimated, noise, answers)
    signal = estimated.variance
    if encoding.share < 1:
        signal = signal + ((1 - encoding.share) * estimated.estimate) ** 2
    total = signal + noise
    return Question(
        problem=problem,
        options=options,
        basis=basis,
        overdispersion=overdispersion,
        support=support,
        unsettled=remaining(state.factor, awaited),
        baseline=encoding.subtracted(state.mean),
        value_bound=encoding.bound,
        residual=encoding.clips,
        weights=estimated.weights,
        total=total,
        epoch=epoch,
        length=length,
        answers=answers,
        tau=float(estimated.weights @ total) / prior_variance,
    )


def encoding_of(
    problem: Problem,
    options: PracticalOptions,
    belief: Belief,
    estimated: Estimated,
    noise: FloatArray | float,
    answers: int,
) -> Encoding:
    """How so many rewards are encoded; ``noise``: the variance of theirs at each pair."""
    variance = estimated.unknown + mean_of(noise, estimated.weights)
    played = (estimated.estimate, estimated.weights, answers)
    return bound_of(problem, options, belief, variance, played=played)


def dense_design(question: Question[Support]) -> tuple[FloatArray, Design]:
    """The shape ``A`` of ``psi(w) = A^T v(w)``, and what the release will be read with.

    The shape asks about what will not be known when earlier epochs are released.
    """
    problem, support, length = question.problem, question.support, question.answers
    features, weights, value_bound = support.features, support.weights, question.value_bound
    main_share = question.options.main_share(tail=question.tail, products=problem.sends_products)
    noise = coordinate_noise(problem, question.basis.rank, value_bound, length) / main_share
    loudness = question.options.loudness
    if problem.budget is not None and problem.model is PrivacyModel.LOCAL:
        loudness *= _LOCAL_LOUDNESS
    shape = loudness * water_filling(
        features,
        weights,
        question.unsettled,
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


def remaining(factor: FloatArray, awaited: FloatArray | None) -> FloatArray:
    """A root of the covariance that will be left when awaited information ``J`` is in.

    ``F (I + F^T J F)^-1/2``, whole or of every block: what data under way will settle need be
    neither explored nor asked about again. The mean, and hence what is thought best, is that of
    now.
    """
    if awaited is None:
        return factor
    values, vectors = np.linalg.eigh(np.swapaxes(factor, -1, -2) @ awaited @ factor)
    scale = np.sqrt(1 + np.maximum(values, 0.0))
    return np.asarray(factor @ (vectors / scale[..., None, :]))


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


def sigma_max(question: Question[Supported]) -> float:
    """``sigma~_max`` of the expected covariance ``n E[v v^T] + tau I`` over the support."""
    largest, tau = 0.0, question.tau
    left_out = question.support.left_out(question.basis)
    for _, v, weights in question.support.blocks():
        gram = question.length * (v * weights[:, None]).T @ v
        psi = v @ whitening_of(gram, tau)
        inside = np.einsum("ij,ij->i", psi, psi)
        largest = max(largest, float((inside + left_out / tau).max()))
    return sqrt(largest)
