"""How a release is read when its epoch was not what its plan expected.

An epoch is a list of public segments ``(n_s, law_s, theta_s, B_s)``. With ``t = z / B_s`` and the
release in units of the opening bound ``V``,

    g = sum_s H_s (theta - theta_s) + error,     H_s = n_s V/B_s  E_s[psi v^T]
    R = noise^2 I + sum_s n_s (V/B_s)^2 E_s[(v^T P v + (v^T (mean - theta_s))^2 + noise) psi psi^T]

where ``n_s`` counts the decisions that were really made, times the rate of those who answered
where that is measured. Everything here is a function of public laws, counts and earlier releases.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import Problem
from capri.epoch.rewards import tail_bound
from capri.learners.belief import Belief, Believed, Block, Expected, Observation, Told
from capri.learners.boundary import noise_at
from capri.learners.context_law import ContextLaw, Moments
from capri.learners.messages import coordinate_noise
from capri.learners.response import Response, Silence
from capri.learners.segments import Design, Part, PlannedSegment
from capri.privacy.histogram import HistogramLayout
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout

# Residuals are heavy-tailed when clipping cuts off more than this share of the clipping bound.
_HEAVY_TAILS = 0.3
# Parts of an epoch below one in so many are not asked about tails.
_TELLING = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A release as the learner takes it in.

    ``design``: what was expected of it; ``told``: what it says, block by block. ``whole``: the
    basis can hold the function. ``response``: who answers; ``law``: who comes, and what ``moments``
    of it say so.
    """

    design: Design
    told: Sequence[Told]
    response: Response
    law: ContextLaw
    moments: Moments | None = None
    whole: bool = True


@dataclass(eq=False)
class _Sums:
    """Of one block over all segments: ``sum psi v^T``, the known shift, and the sampling noise."""

    matrix: FloatArray
    shift: FloatArray
    sampling: FloatArray

    @classmethod
    def empty(cls, size: int, width: int) -> "_Sums":
        return cls(np.zeros((size, width)), np.zeros(size), np.zeros((size, size)))


@dataclass(frozen=True, eq=False)
class Expectations:
    """What is expected of a released epoch: segment by segment, and block by block.

    ``value_bound``: the one that it opened with. ``places``: where messages speak of each block.
    ``parts``: each segment with the decisions really made in it and its parts, which are walked
    through more than once.
    """

    problem: Problem
    value_bound: float
    places: Mapping[Block, slice]
    parts: Sequence[tuple[PlannedSegment, int, Iterable[Part]]]

    @property
    def participants(self) -> int:
        """Decisions that were really made."""
        return sum(count for _, count, _ in self.parts)

    def measured(
        self,
        response: Response,
        layout: VectorLayout | ProductLayout | HistogramLayout,
        vector: FloatArray,
        variance: Callable[[float], FloatArray],
    ) -> Response:
        """Who answered, from the count and the silent block of the release."""
        count = float(layout.part(vector, "count")[0])
        counted = response.counted(count, self.participants, layout.deviation("count"))
        silent, deviation = layout.part(vector, "missing"), layout.deviation("missing")
        found: dict[Block, Silence] = {}
        for _, decisions, parts in self.parts:
            for part in parts:
                block, v, said = part.block, part.features, silent[self.places[part.block]]
                if not len(said):
                    continue
                own = found.get(block) or Silence.empty(block, said, deviation, v.shape[1])
                found[block] = own.with_pairs(v, part.psi, decisions * part.weights)
        return counted.regressed(found.values(), variance)

    def design(
        self,
        belief: Belief,
        state: Believed,
        baseline: FloatArray,
        *,
        noise: float,
        main_share: float,
        response: Response | None = None,
    ) -> tuple[Design, dict[Block, FloatArray]]:
        """The observation as if ``baseline`` had been subtracted all along, and what that shifts.

        ``g = H (theta - baseline) + sum_s H_s (baseline - theta_s) + error``: the second term is
        known, and is to be taken off the release. ``response``: who answers, where that is
        measured.
        """
        bound, reward_bound = self.value_bound, self.problem.reward_bound
        width = baseline.shape[-1]
        sums = {
            block: _Sums.empty(place.stop - place.start, width)
            for block, place in self.places.items()
        }
        spread = np.zeros((*baseline.shape, width))
        squares, image, constant = np.zeros_like(spread), np.zeros_like(baseline), 0.0
        expected = precision = answers = away = left_out = total_variance = 0.0
        for segment, count, parts in self.parts:
            scale = bound / segment.value_bound
            for part in parts:
                block, v, psi = part.block, part.features, part.psi
                own, base, mean = sums[block], segment.baseline[block], state.mean[block]
                decisions = count * part.weights
                weights = decisions
                if response is not None:
                    weights = decisions * response.rates(v, block)
                piece = scale * (psi * weights[:, None]).T @ v
                own.matrix += piece
                own.shift += piece @ (baseline[block] - base)
                signal = np.sum((v @ state.factor[block]) ** 2, axis=1)
                signal += (v @ (mean - base)) ** 2
                residual = weights * (signal + noise_at(belief, v @ mean, reward_bound))
                own.sampling += scale**2 * (psi * residual[:, None]).T @ psi
                spread[block] += (v * decisions[:, None]).T @ v
                number = float(weights.sum())
                answers += number
                away += number * segment.value_bound
                share = weights / segment.value_bound**2
                expected += float(share @ signal)
                moments = (v * share[:, None]).T @ v
                squares[block] += moments
                image[block] += moments @ base
                constant += float(base @ moments @ base)
                precision += number / segment.value_bound**2
                total_variance += float(residual.sum())
                left_out += float((decisions * part.left_out).sum())
        observations = {
            block: self._observation(own, state, block, baseline, noise, response)
            for block, own in sums.items()
        }
        return Design(
            observations=observations,
            value_bound=away / answers,
            residual=any(each.value_bound < reward_bound for each, _, _ in self.parts),
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
        ), {block: own.shift for block, own in sums.items()}

    def _observation(
        self,
        own: _Sums,
        state: Believed,
        block: Block,
        baseline: FloatArray,
        noise: float,
        response: Response | None,
    ) -> Observation:
        """What is said of a block; how blocks go together in an error of the rate is left out."""
        covariance, base = noise**2 * np.eye(len(own.shift)) + own.sampling, baseline[block]
        if response is not None:
            # An error of the measured rate: everything expected is off by a common factor.
            root = own.matrix @ state.factor[block]
            offset = own.matrix @ (state.mean[block] - base) + own.shift
            doubt = response.variance / response.rate**2
            covariance += doubt * (root @ root.T + np.outer(offset, offset))
        return Observation(
            design=own.matrix,
            covariance=covariance,
            baseline=base,
            sampling=own.sampling,
            participants=self.participants,
        )


def noise_of_release(problem: Problem, plan: EpochPlan, answers: int, main_share: float) -> float:
    """Deviation of the privacy noise on a coordinate of ``t psi``, summed over so many."""
    if not isinstance(plan.layout, VectorLayout) and problem.budget is not None:
        return plan.noise_scale
    if plan.sphere is not None:  # of an epoch that was planned for more or fewer reports
        return plan.noise_scale * sqrt(answers) / main_share
    scale = coordinate_noise(problem, plan.features.rank, plan.value_bound, answers)
    return scale / main_share


def measured_square(release: Release, design: Design, reward_bound: float) -> tuple[float, float]:
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


def measured_moment(release: Release, design: Design) -> tuple[float, float]:
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
    release: Release, design: Design, reward_bound: float
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


def cuts_off_too_much(release: Release, design: Design, reward_bound: float) -> bool:
    """Whether clipped residuals lose so much that the estimate is biased (rare large rewards).

    The measure must exceed its limit by 2.5 standard deviations of the privacy noise. A few late
    reports, or an epoch that hardly began, are all noise: many such parts would cry wolf sooner or
    later, and everything learnt so far would go.
    """
    excess = measured_excess(release, design, reward_bound)
    if excess is None or _TELLING * release.participants < release.plan.length:
        return False
    return excess[0] > _HEAVY_TAILS * design.value_bound + 2.5 * excess[1]
