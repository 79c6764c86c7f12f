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
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import Problem
from capri.features import ProjectedFeatures
from capri.learners.belief import Block, Expected, Observation
from capri.learners.context_law import ContextLaw
from capri.learners.messages import Message, Question, coordinate_noise
from capri.learners.model import Knowledge, Model, Reading
from capri.learners.moment_design import moments_of
from capri.learners.response import ResponseRate, Silence
from capri.learners.segments import BlockPart, Design, PlannedSegment
from capri.privacy.histogram import HistogramLayout
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout

# A basis that leaves out so many times what it may never fits, whether the function changes or not.
_LEFT_OUT = 2.0


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

    known: Knowledge
    value_bound: float
    places: Mapping[Block, slice]
    parts: Sequence[tuple[PlannedSegment, int, Iterable[BlockPart]]]

    @property
    def participants(self) -> int:
        """Decisions that were really made."""
        return sum(count for _, count, _ in self.parts)

    def measured(
        self,
        response: ResponseRate,
        layout: VectorLayout | ProductLayout | HistogramLayout,
        vector: FloatArray,
        variance: Callable[[float], FloatArray],
    ) -> ResponseRate:
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
        baseline: FloatArray,
        *,
        noise: float,
        main_share: float,
        response: ResponseRate | None = None,
    ) -> tuple[Design, dict[Block, FloatArray]]:
        """The observation as if ``baseline`` had been subtracted all along, and what that shifts.

        ``g = H (theta - baseline) + sum_s H_s (baseline - theta_s) + error``: the second term is
        known, and is to be taken off the release. ``response``: who answers, where that is
        measured.
        """
        known, bound, width = self.known, self.value_bound, baseline.shape[-1]
        state, reward_bound = known.posterior, known.problem.reward_bound
        sums = {
            block: _Sums.empty(place.stop - place.start, width)
            for block, place in self.places.items()
        }
        spread = np.zeros((*baseline.shape, width))
        squares, image, constant = np.zeros_like(spread), np.zeros_like(baseline), 0.0
        precision = answers = away = left_out = total_variance = 0.0
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
                residual = weights * (signal + known.model.noise_at(known, v @ mean))
                own.sampling += scale**2 * (psi * residual[:, None]).T @ psi
                spread[block] += (v * decisions[:, None]).T @ v
                number = float(weights.sum())
                answers += number
                away += number * segment.value_bound
                share = weights / segment.value_bound**2
                moments = (v * share[:, None]).T @ v
                squares[block] += moments
                image[block] += moments @ base
                constant += float(base @ moments @ base)
                precision += number / segment.value_bound**2
                total_variance += float(residual.sum())
                left_out += float((decisions * part.left_out).sum())
        observations = {
            block: self._observation(own, block, baseline, noise, response)
            for block, own in sums.items()
        }
        return Design(
            observations=observations,
            value_bound=away / answers,
            residual=any(each.value_bound < reward_bound for each, _, _ in self.parts),
            main_share=main_share,
            noise=noise,
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
        block: Block,
        baseline: FloatArray,
        noise: float,
        response: ResponseRate | None,
    ) -> Observation:
        """What is said of a block; how blocks go together in an error of the rate is left out."""
        state, base = self.known.posterior, baseline[block]
        covariance = noise**2 * np.eye(len(own.shift)) + own.sampling
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


def promised(
    known: Knowledge, question: Question[Any], message: Message, segment: PlannedSegment
) -> FloatArray | None:
    """The information that a planned segment is expected to give, where the plan did not say."""
    model = known.model
    parts = model.parts(message.features, segment, question.support)
    asked = [(segment, question.answers, parts)]
    expected = Expectations(known, question.value_bound, model.places(message.features), asked)
    design, _ = expected.design(
        segment.baseline, noise=message.noise, main_share=message.main_share
    )
    return design.information


def read_release(known: Knowledge, release: Release, generator: np.random.Generator) -> Reading:
    """What the release observed, who answered, and who came.

    As planned, where the epoch went as planned; else by its segments and real counts.
    """
    plan = release.plan
    problem, model, law = known.problem, known.model, known.context_law
    segments, features = known.pending[plan.epoch], model.readable(plan.features)
    design, response, moments = segments[0].design, known.response, None
    vector, places = plan.asked.main(release.vector, plan.value_bound), model.places(features)
    as_planned = (
        len(segments) == 1
        and release.participants == plan.length
        and segments[0].learnt == known.belief.epochs
    )
    shifts: dict[Block, FloatArray] = {}
    if design is None or not as_planned or problem.sends_products:
        played = [_played_again(model, segment, law, generator) for segment in segments]
        moments = moments_of(release, segments, played, law, partial(model.coordinates, features))
        if moments is not None:
            law = law.observe(moments)
        same_law = law.kind == known.context_law.kind == 0
        if design is None or not as_planned or problem.rewards.measured or not same_law:
            supports = [each.support(law) for each in played]
            design, shifts, response = _expected(known, release, features, supports)
    return Reading(
        design=design,
        told=[
            (block, seen, vector[places[block]] - shifts.get(block, 0.0))
            for block, seen in design.observations.items()
            if seen.design.any()
        ],
        response=response,
        law=law,
        moments=moments,
        whole=design.left_out <= _LEFT_OUT * known.options.rank_tolerance,
    )


def _played_again(
    model: Model, segment: PlannedSegment, law: ContextLaw, generator: np.random.Generator
) -> Any:
    """What a planned segment played.

    Once the actions were replaced, its law is known where it was planned and nowhere else.
    """
    if segment.played is not None:
        return segment.played
    rows = law.elsewhere[:0] if segment.moved else law.elsewhere
    return model.played(segment.stage, segment.behaviour, rows, generator)


def _expected(
    known: Knowledge, release: Release, features: ProjectedFeatures, supports: Sequence[Any]
) -> tuple[Design, dict[Block, FloatArray], ResponseRate]:
    """What is expected of the segments with their real counts, and who answered."""
    plan, layout = release.plan, release.plan.asked
    problem, model, response = known.problem, known.model, known.response
    segments = known.pending[plan.epoch]
    expected = Expectations(
        known,
        plan.value_bound,
        model.places(features),
        [
            (segment, count, model.parts(features, segment, support))
            for segment, count, support in zip(segments, release.counts, supports, strict=True)
            if count > 0
        ],
    )
    main_share, answered = 1.0, None
    if not isinstance(layout, HistogramLayout):
        main_share = known.options.main_share(
            tail="tail" in layout.blocks, products=isinstance(layout, ProductLayout)
        )
    if "missing" in layout.blocks:
        shares = model.prior.of_shares
        answered = response = expected.measured(response, layout, release.vector, shares)
    design, shifts = expected.design(
        segments[0].baseline,
        noise=noise_of_release(problem, plan, release.participants, main_share),
        main_share=main_share,
        response=answered,
    )
    return design, shifts, response


def noise_of_release(problem: Problem, plan: EpochPlan, answers: int, main_share: float) -> float:
    """Deviation of the privacy noise on a coordinate of ``t psi``, summed over so many."""
    if not isinstance(plan.asked, VectorLayout) and problem.budget is not None:
        return plan.noise_scale
    if plan.sphere is not None:  # of an epoch that was planned for more or fewer reports
        return plan.noise_scale * sqrt(answers) / main_share
    scale = coordinate_noise(problem, plan.features.rank, plan.value_bound, answers)
    return scale / main_share
