"""How a release is read when its epoch was not what its plan expected.

An epoch is a list of public segments ``(n_s, law_s, theta_s, B_s)``. With ``t = z / B_s`` and the
release in units of the opening bound ``V``,

    g = sum_s H_s (theta - theta_s) + error,     H_s = n_s V/B_s  E_s[psi v^T]
    R = noise^2 I + sum_s n_s (V/B_s)^2 E_s[(v^T P v + (v^T (mean - theta_s))^2 + noise) psi psi^T]

where ``n_s`` counts the decisions that were really made, times the rate of those who answered
where that is measured. Everything here is a function of public laws, counts and earlier releases.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.play import Conduct
from capri.epoch.problem import Problem
from capri.epoch.rewards import tail_bound
from capri.features import LowRankFeatures, Span
from capri.learners.belief import Belief, Expected, Observation, Posterior
from capri.learners.boundary import noise_at
from capri.learners.context_law import ContextLaw
from capri.learners.messages import Design, coordinate_noise
from capri.learners.response import Response, Silence
from capri.learners.support import Gathered, Stage
from capri.partition import CellFeatures
from capri.privacy.histogram import HistogramLayout
from capri.privacy.products import ProductLayout

# Residuals are heavy-tailed when clipping cuts off more than this share of the clipping bound.
_HEAVY_TAILS = 0.3
# Parts of an epoch below one in so many are not asked about tails.
_TELLING = 4


class Read(Protocol):
    """What is expected of a release, whole or in blocks."""

    @property
    def value_bound(self) -> float: ...  # noqa: D102 - as in Design

    @property
    def residual(self) -> bool: ...  # noqa: D102

    @property
    def main_share(self) -> float: ...  # noqa: D102

    @property
    def noise(self) -> float: ...  # noqa: D102

    @property
    def answers(self) -> float | None: ...  # noqa: D102

    @property
    def moment_bound(self) -> float | None: ...  # noqa: D102

    @property
    def residual_variance(self) -> float: ...  # noqa: D102

    @property
    def squares(self) -> Expected: ...  # noqa: D102

    @property
    def noise_share(self) -> float: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Leg:
    """A segment as the learner needs it again: what was played, subtracted and clipped at.

    ``design`` is what the plan expected of the whole epoch, of use as long as no release came
    since: ``learnt`` counts those before it. ``moved``: the actions were replaced since it was
    played, and the basis with them.
    """

    conduct: Conduct
    stage: Stage
    baseline: FloatArray
    value_bound: float
    learnt: int
    design: Design | None = None
    moved: bool = False
    # The information that the epoch will give, in blocks, where others begin before it is told.
    promised: FloatArray | None = None
    # What it may play, kept in memory where that is small and would be found the same again.
    pairs: Gathered | None = None

    def gathered(
        self, basis: Span, elsewhere: FloatArray, generator: np.random.Generator
    ) -> Gathered:
        """The pairs that it may play, in contexts of the pool and beside them.

        Once the actions were replaced, its law is known where it was planned and nowhere else.
        """
        if self.pairs is not None:
            return self.pairs
        rows = elsewhere[:0] if self.moved else elsewhere
        return Gathered.of(basis, self.stage, self.conduct, rows, generator)

    def psi(self, plan: EpochPlan, pairs: FloatArray, features: FloatArray) -> FloatArray:
        """``psi`` of pairs as messages have it: cut to norm 1, or a 1 at the cell."""
        own = plan.features
        assert isinstance(own, LowRankFeatures | CellFeatures)
        if self.moved:  # the shape is that of the old basis, in its columns
            return shortened(own.whitened_block(pairs[:, : own.basis.columns]))
        if isinstance(own, CellFeatures):
            return np.asarray(np.eye(own.rank)[own.cells_of(features)])
        return shortened(features @ own.whitening)


def shortened(psi: FloatArray) -> FloatArray:
    """Rows cut to norm 1."""
    return np.asarray(psi / np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None])


@dataclass(frozen=True, eq=False)
class _Part:
    """What is expected of a leg: pairs, ``psi``, and how many answer at each pair."""

    leg: Leg
    features: FloatArray
    psi: FloatArray
    decisions: FloatArray
    answers: FloatArray
    left_out: FloatArray


@dataclass(frozen=True, eq=False)
class Expectations:
    """What is expected of a released epoch, leg by leg."""

    problem: Problem
    plan: EpochPlan
    parts: tuple[_Part, ...]
    participants: int

    @classmethod
    def of(
        cls,
        problem: Problem,
        basis: Span,
        plan: EpochPlan,
        legs: Sequence[Leg],
        counts: Sequence[int],
        gathered: Sequence[Gathered],
        law: ContextLaw,
    ) -> "Expectations":
        """Before anything is known of who answered; ``gathered``: the pairs of each leg."""
        parts = []
        for leg, count, pairs in zip(legs, counts, gathered, strict=True):
            if count == 0:
                continue
            support = pairs.support(law)
            features, decisions = support.features, count * support.weights
            psi = leg.psi(plan, support.pairs, features)
            left_out = basis.residual(support.pairs, features)
            parts.append(_Part(leg, features, psi, decisions, decisions, left_out))
        return cls(problem, plan, tuple(parts), sum(counts))

    def measured(
        self,
        response: Response,
        vector: FloatArray,
        variance: Callable[[float], FloatArray],
    ) -> Response:
        """Who answered, from the count and the silent block of the release."""
        layout = self.plan.layout
        count = float(layout.part(vector, "count")[0])
        counted = response.counted(count, self.participants, layout.deviation("count"))
        rank, full = self.plan.features.rank, self.parts[0].features.shape[1]
        design, expected = np.zeros((rank, full)), np.zeros(rank)
        second_moment = np.zeros((rank, rank))
        for part in self.parts:
            weighted = part.psi * part.decisions[:, None]
            design += weighted.T @ part.features
            expected += weighted.sum(axis=0)
            second_moment += weighted.T @ part.psi
        silence = Silence(
            ...,
            layout.part(vector, "missing"),
            layout.deviation("missing"),
            design,
            expected,
            second_moment,
        )
        return counted.regressed([silence], variance)

    def answered(self, response: Response) -> "Expectations":
        """With the measured rate of answers at each pair."""
        parts = tuple(
            _Part(p.leg, p.features, p.psi, p.decisions, p.decisions * rates, p.left_out)
            for p in self.parts
            for rates in (response.rates(p.features),)
        )
        return Expectations(self.problem, self.plan, parts, self.participants)

    def design(
        self,
        belief: Belief,
        state: Posterior,
        baseline: FloatArray,
        *,
        main_share: float,
        response: Response | None = None,
    ) -> tuple[Design, FloatArray]:
        """The observation as if ``baseline`` had been subtracted all along, and what that shifts.

        ``g = H (theta - baseline) + sum_s H_s (baseline - theta_s) + error``: the second term is
        known, and is to be taken off the release.
        """
        plan, bound = self.plan, self.plan.value_bound
        reward_bound = self.problem.reward_bound
        rank, full = plan.features.rank, len(baseline)
        matrix, shift = np.zeros((rank, full)), np.zeros(rank)
        sampling = np.zeros((rank, rank))
        spread, squares, image = np.zeros((full, full)), np.zeros((full, full)), np.zeros(full)
        constant = 0.0
        expected = precision = answers = away = left_out = total_variance = 0.0
        for part in self.parts:
            leg, v, psi, weights = part.leg, part.features, part.psi, part.answers
            scale = bound / leg.value_bound
            piece = scale * (psi * weights[:, None]).T @ v
            matrix += piece
            shift += piece @ (baseline - leg.baseline)
            signal = np.sum((v @ state.factor) ** 2, axis=1)
            signal += (v @ (state.mean - leg.baseline)) ** 2
            residual = weights * (signal + noise_at(belief, v @ state.mean, reward_bound))
            sampling += scale**2 * (psi * residual[:, None]).T @ psi
            spread += (v * part.decisions[:, None]).T @ v
            number = float(weights.sum())
            answers += number
            away += number * leg.value_bound
            share = weights / leg.value_bound**2
            expected += float(share @ signal)
            moments = (v * share[:, None]).T @ v
            squares += moments
            image += moments @ leg.baseline
            constant += float(leg.baseline @ moments @ leg.baseline)
            precision += number / leg.value_bound**2
            total_variance += float(residual.sum())
            left_out += float(part.decisions @ part.left_out)
        noise = self._noise(main_share)
        covariance = noise**2 * np.eye(rank) + sampling
        if response is not None:
            # An error of the measured rate: everything expected is off by a common factor.
            root, offset = matrix @ state.factor, matrix @ (state.mean - baseline) + shift
            doubt = response.variance / response.rate**2
            covariance += doubt * (root @ root.T + np.outer(offset, offset))
        return Design(
            observation=Observation(
                design=matrix,
                covariance=covariance,
                baseline=baseline,
                sampling=sampling,
                participants=self.participants,
            ),
            value_bound=away / answers,
            residual=any(part.leg.value_bound < self.problem.reward_bound for part in self.parts),
            main_share=main_share,
            noise=noise,
            signal_variance=expected / precision,
            residual_variance=total_variance / answers,
            spread=spread / self.participants,
            left_out=left_out / self.participants,
            squares=Expected(
                spread=squares / precision, image=image / precision, constant=constant / precision
            ),
            answers=answers,
            moment_bound=sqrt(answers / precision),
        ), shift

    def _noise(self, main_share: float) -> float:
        plan = self.plan
        if self.problem.sends_products and self.problem.budget is not None:
            return plan.noise_scale
        if plan.sphere is not None:  # of an epoch that was planned for more or fewer reports
            return plan.noise_scale * sqrt(self.participants) / main_share
        scale = coordinate_noise(
            self.problem, plan.features.rank, plan.value_bound, self.participants
        )
        return scale / main_share


def measured_square(release: Release, design: Read, reward_bound: float) -> tuple[float, float]:
    """``E[z^2]`` of the residuals from the moment coordinate, and its standard deviation.

    Of clipped residuals it is ``B_r^2 (coordinate / (B_r s n) + 1) / 2``, to which the privacy
    noise gives the deviation ``B_r sigma / (2 s n)``. With segments, ``B_r^2`` is the mean by which
    squares were divided. What clipping cut off is added back, or bounds would shrink with every
    epoch: an excess ``|z| - B_r`` takes ``(|z| + B_r)`` times itself off the square, and rare
    residuals that large are about ``B``, or as large as is measured. One standard deviation of the
    measure counts for nothing.
    """
    square, deviation = measured_moment(release, design)
    excess = measured_excess(release, design, reward_bound)
    if excess is None or not design.residual:
        return square, deviation
    most = tail_bound(reward_bound, design.value_bound)
    lost = (most + design.value_bound) * max(excess[0] - excess[1], 0.0)
    return square + lost, deviation


def measured_moment(release: Release, design: Read) -> tuple[float, float]:
    """``E[z^2]`` of clipped residuals, and its standard deviation."""
    plan = release.plan
    answers = release.participants if design.answers is None else design.answers
    bound = plan.value_bound if design.moment_bound is None else design.moment_bound
    layout, moment = plan.layout, float(plan.layout.part(release.vector, "moment")[0])
    if isinstance(layout, HistogramLayout):
        mean, noise = layout.mean_square(release.vector, release.participants, answers)
        return bound**2 * mean, bound**2 * max(noise, 1 / answers)
    square = bound**2 * (moment / (layout.scale("moment") * answers) + 1) / 2
    if isinstance(layout, ProductLayout):
        deviation = bound**2 * layout.deviation("moment") / (2 * answers)
    else:
        deviation = bound * design.noise * design.main_share / (2 * layout.moment_share * answers)
        deviation *= bound / plan.value_bound
    return square, max(deviation, bound**2 / answers)


def measured_excess(
    release: Release, design: Read, reward_bound: float
) -> tuple[float, float] | None:
    """``E[(|z| - B_r)_+]``, what clipping cuts off, and its standard deviation.

    ``E (coordinate / (B_r q n) + 1) / 2`` of the tail coordinate, ``E`` the largest excess that is
    measured; None where there is none.
    """
    layout = release.plan.layout
    if "tail" not in layout.blocks:
        return None
    answers = release.participants if design.answers is None else design.answers
    if isinstance(layout, HistogramLayout):
        mean, noise = layout.mean_excess(release.vector, answers)
        most = tail_bound(reward_bound, design.value_bound)
        return most * mean, most * noise
    unit = layout.scale("tail") * answers
    mean = float(layout.part(release.vector, "tail")[0]) / unit
    noise = design.noise * design.main_share / unit
    if isinstance(layout, ProductLayout):
        noise = layout.deviation("tail") / unit
    most = tail_bound(reward_bound, design.value_bound)
    return most * (mean + 1) / 2, most * noise / 2


def cuts_off_too_much(release: Release, design: Read, reward_bound: float) -> bool:
    """Whether clipped residuals lose so much that the estimate is biased (rare large rewards).

    The measure must exceed its limit by 2.5 standard deviations of the privacy noise. A few late
    reports, or an epoch that hardly began, are all noise: many such parts would cry wolf sooner or
    later, and everything learnt so far would go.
    """
    excess = measured_excess(release, design, reward_bound)
    if excess is None or _TELLING * release.participants < release.plan.length:
        return False
    return excess[0] > _HEAVY_TAILS * design.value_bound + 2.5 * excess[1]
