"""One block: a function in one public basis, of a known kernel or of a mixture of many.

**Other actions.** What was learnt passes to the new basis
(:mod:`capri.learners.change_of_basis`). Of some new actions the kernel then tells little, and where
known ones are good, Thompson play would hardly try them: its draws start from a prior around 0. So
in the first epoch after a change a few draws are made in which such an action is the best, and
rewards are encoded whole: residuals of the others say nothing of how large those of an unknown
action are, and clipping would hide how good it is.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Self

import numpy as np

from capri.arrays import FloatArray, IntArray, rounded16
from capri.epoch import play
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.family import family_of
from capri.features import (
    NUMERICAL_RANK,
    Basis,
    LowRankFeatures,
    ProjectedFeatures,
    Span,
    spectral_basis,
)
from capri.kernels import Auto
from capri.learners.active import DifferenceTest, Rehearsal, calibrated_test
from capri.learners.belief import Believed, Block, CoefficientPrior, Posterior
from capri.learners.boundary import intercept_of, uniform_pairs
from capri.learners.cells import allowed, best_of, left_over, partitions
from capri.learners.change_of_basis import ChangeOfBasis, across, between
from capri.learners.context_law import ContextLaw
from capri.learners.draws import outlook_of, resolvable
from capri.learners.messages import Message, Question, dense_design, remaining
from capri.learners.model import BlockModel, Knowledge
from capri.learners.moment_design import Coordinates, layout_for, loudest, projection_for
from capri.learners.options import PracticalOptions
from capri.learners.prior import Observed
from capri.learners.priors import EvidencePrior, KnownKernelPrior
from capri.learners.segments import (
    BlockPart,
    PlannedSegment,
    PlayedPairs,
    Stage,
    Support,
    shortened,
)
from capri.learners.warm_start import WarmStart, warm_start
from capri.partition import CellFeatures
from capri.privacy.layout import Norm
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout, vector_layout

# Public pairs from which the basis is built, and pairs on which active sets are calibrated.
_BASIS_SAMPLE = 3000
_REHEARSAL_PAIRS = 2048
# An action is unknown where its posterior variance is above this share of the prior one.
_UNKNOWN = 0.25
# Draws in which an unknown action is the best, and the share of draws that all of them may take.
_DRAWS_EACH, _SHARE = 2, 0.25


@dataclass(frozen=True, eq=False)
class DenseModel(BlockModel):
    """Coordinates of all pairs together; ``rehearsal``: public functions to calibrate tests on."""

    options: PracticalOptions
    basis: Span
    prior: CoefficientPrior
    rehearsal: Rehearsal

    @classmethod
    def of(
        cls,
        problem: Problem,
        options: PracticalOptions,
        law: ContextLaw,
        generator: np.random.Generator,
    ) -> Self:
        """For a problem, and those who come to it."""
        basis, prior = _basis_and_prior(problem, options, law, generator)
        return cls(options, basis, prior, _rehearsal(problem, law, basis, prior, generator))

    @property
    def shape(self) -> tuple[int]:
        """One coefficient for every coordinate."""
        return (self.basis.rank,)

    @property
    def left_out(self) -> float:
        """What the chosen products of a mixture cannot express."""
        return self.prior.left_out if isinstance(self.prior, EvidencePrior) else 0.0

    def accepts(self, problem: Problem) -> None:
        """Any actions of these contexts will do."""

    def changed(
        self, before: Problem, problem: Problem, law: ContextLaw, generator: np.random.Generator
    ) -> tuple[Self, ChangeOfBasis]:
        """What was learnt stays by the kernel."""
        sample, passage = _sample_pairs(problem, law, generator), None
        if isinstance(self.basis, Basis):
            assert isinstance(self.prior, KnownKernelPrior)
            passage, spectrum = between(self.basis, sample, self.options)
            basis: Span = passage.basis
            prior: CoefficientPrior = replace(
                self.prior, spectrum=spectrum, intercept=intercept_of(problem, basis)
            )
        else:
            basis, prior = _basis_and_prior(problem, self.options, law, generator)
            old = _sample_pairs(before, law, generator)
            passage = across(self.basis, basis, old, sample.shape[1])
        rehearsal = _rehearsal(problem, law, basis, prior, generator)
        return replace(self, basis=basis, prior=prior, rehearsal=rehearsal), passage

    def warm_start(self, observed: Observed) -> WarmStart:
        """What was known before the first user."""
        rows: dict[Block, tuple[FloatArray, FloatArray]] = {
            ...: (observed.design(self.basis), observed.targets)
        }
        variance = None if observed.matrix is None else 1.0
        return warm_start(rows, self.shape, self.prior, variance=variance)

    # -- planning and reading ---------------------------------------------------------------------

    def played(
        self,
        stage: Stage,
        behaviour: play.BehaviourPolicy,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> PlayedPairs:
        """Pairs of positive probability."""
        return PlayedPairs.of(self.basis, stage, behaviour, elsewhere, generator)

    def message(
        self, question: Question[Support], played: PlayedPairs, law: ContextLaw, *, moments: bool
    ) -> Message:
        """Of one cell, or dense: only dense messages carry second moments."""
        problem, found, least = question.problem, None, inf
        if problem.budget is None or Norm.L2 in problem.norms:
            shape, design = dense_design(question)
            least = left_over(question, design.observation)
        if allowed(problem) and not (least < inf and moments):
            found = best_of(partitions(question), question, least)
        if found is not None:
            design = question.expected(found.observation, main_share=1.0, noise=found.noise)
            return Message(found.features, found.layout, found.noise, 1.0, design)
        if problem.on_devices:  # as bundles carry it: devices and their aggregator have one shape
            shape = rounded16(shape)
        features = LowRankFeatures(self.basis, shape, question.tau)
        layout = self._layout(question, features, played, law)
        return Message(features, layout, design.noise, design.main_share, design)

    def _layout(
        self,
        question: Question[Support],
        features: LowRankFeatures,
        played: PlayedPairs,
        law: ContextLaw,
    ) -> VectorLayout | ProductLayout:
        """Messages of products, or of one vector where each is made private by itself."""
        problem, rank, length = question.problem, features.rank, question.length
        if problem.sends_products:
            psi = shortened(played.features @ features.whitening)
            pool = np.append(played.weights, np.zeros(len(law.elsewhere)))[played.row]
            chosen = loudest((pool * played.chance) @ psi**2)
            own = Coordinates(psi[:, chosen], played.row, played.chance)
            projection = projection_for(played, own, chosen, rank, law)
            return layout_for(problem, rank, length, question.tail_share, projection)
        coordinates = rank + 1 + question.tail  # with moment and tail
        return vector_layout(
            rank=rank,
            length=length,
            budget=problem.budget,
            value_bound=question.value_bound,
            moment_share=self.options.moment_share,
            tail_share=question.tail_share,
            composition=problem.composition,
            sphere=problem.sphere_of(coordinates, length),
        )

    def places(self, features: ProjectedFeatures) -> dict[Block, slice]:
        """All of a message."""
        return {...: slice(0, features.rank)}

    def parts(
        self, features: ProjectedFeatures, segment: PlannedSegment, support: Support
    ) -> list[BlockPart]:
        """One part."""
        if segment.moved:  # the shape is that of the old basis, in its columns
            assert isinstance(features, LowRankFeatures | CellFeatures)
            psi = shortened(features.whitened_block(support.pairs[:, : features.basis.columns]))
        else:
            psi = _psi(features, support.features)
        left_out = support.left_out(self.basis)
        return [BlockPart(..., support.features, psi, support.weights, left_out)]

    def coordinates(
        self, features: ProjectedFeatures, played: PlayedPairs, chosen: IntArray
    ) -> Coordinates:
        """At all pairs."""
        psi = _psi(features, played.features)[:, chosen]
        return Coordinates(psi, played.row, played.chance)

    # -- playing ----------------------------------------------------------------------------------

    def law(
        self,
        known: Knowledge,
        length: float,
        generator: np.random.Generator,
        *,
        awaited: FloatArray | None = None,
        waiting: int = 0,
    ) -> play.ThompsonLaw:
        """Draws of what no epoch under way will tell and an epoch of this length can resolve."""
        xi = generator.standard_normal((self.basis.rank, self.options.draws))
        state, scale = known.posterior, self.options.thompson_scale
        factor, mean = remaining(state.factor, awaited), state.mean[:, None]
        apart, weights = self.rehearsal.apart(mean + scale * (factor @ xi))
        image = apart @ factor
        unknown = float(weights @ np.einsum("ij,ij->i", image, image))
        outlook = outlook_of(known.problem, self.options, known.belief, unknown, length)
        factor = resolvable(factor, image, weights, outlook)
        return play.ThompsonLaw(self.basis, mean + scale * (factor @ xi))

    def curious(
        self, known: Knowledge, law: play.ThompsonLaw, change: ChangeOfBasis
    ) -> tuple[play.ThompsonLaw, bool]:
        """Some draws are lifted for actions that nothing is known of."""
        assert isinstance(known.posterior, Posterior)
        unknown = self._unknown(known.posterior)
        return play.ThompsonLaw(self.basis, self._lifted(law.draws, unknown)), len(unknown) > 0

    def stakes(self, state: Believed) -> float:
        """Over public pairs."""
        values = self.rehearsal.features @ state.mean
        return float(np.sqrt(values.var(axis=1).mean()))

    def difference_test(self, known: Knowledge) -> DifferenceTest | None:
        """Calibrated when it is asked for; None before any release."""
        belief, state = known.belief, known.posterior
        if belief.epochs == 0:
            return None
        if known.warm_start is not None:
            belief = known.warm_start.added(belief, state.doubt)
        failure = self.options.failure_probability
        assert isinstance(state, Posterior)
        return calibrated_test(self.rehearsal, self.basis, belief, state, failure)

    def pass_over(self, generator: np.random.Generator) -> None:
        """Leave the public stream where a calibration at every release would leave it.

        Active sets are calibrated on demand from a stream of their own, and a run of a seed stays
        the same to the bit.
        """
        generator.standard_normal(self.rehearsal.coefficients.shape)

    def _lifted(self, draws: FloatArray, unknown: IntArray) -> FloatArray:
        """Some of the draws lifted, so that in each of them an unknown action is the best.

        ``theta + c u`` with ``u`` the mean of ``v(c, x)`` over contexts: by the kernel no function
        of its norm is larger at the action, and ``c`` makes up for what the draw says of others.
        """
        features = self.rehearsal.features  # (contexts, actions, rank)
        count = min(_DRAWS_EACH * len(unknown), int(_SHARE * draws.shape[1]))
        if count == 0:
            return draws
        lifted = draws.copy()
        for place in range(count):
            action = unknown[place % len(unknown)]
            direction = features[:, action].mean(axis=0)
            values, push = features @ lifted[:, place], features @ direction
            rivals = np.delete(push, action, axis=1).max(axis=1, initial=0.0)
            margin = float((push[:, action] - rivals).mean())
            short = float((values.max(axis=1) - values[:, action]).max())
            if margin > 0:
                lifted[:, place] += 1.1 * short / margin * direction
        return lifted

    def _unknown(self, state: Posterior) -> IntArray:
        """Actions of which the releases said little, in the order of how little."""
        features = self.rehearsal.features
        before = (features**2 @ self.prior.variance(state)).mean(axis=0)
        after = ((features @ state.factor) ** 2).sum(axis=2).mean(axis=0)
        share = after / np.maximum(before, np.finfo(np.float64).tiny)
        order = np.argsort(-share, kind="stable")
        return np.asarray(order[share[order] > _UNKNOWN])


def _psi(features: ProjectedFeatures, coordinates: FloatArray) -> FloatArray:
    """``psi`` of pairs as messages have it: cut to norm 1, or a 1 at the cell."""
    if isinstance(features, CellFeatures):
        return np.asarray(np.eye(features.rank)[features.cells_of(coordinates)])
    assert isinstance(features, LowRankFeatures)
    return shortened(coordinates @ features.whitening)


def _basis_and_prior(
    problem: Problem,
    options: PracticalOptions,
    law: ContextLaw,
    generator: np.random.Generator,
) -> tuple[Span, CoefficientPrior]:
    """Coordinates for the actions of now, and what is believed of them before any release."""
    kernel, norm_bound = problem.kernel, options.norm_bound or problem.reward_bound
    if isinstance(kernel, Auto):
        contexts, rank = law.contexts(problem.contexts), options.max_rank
        family = family_of(contexts, problem.actions, max_rank=rank, generator=generator)
        intercept = intercept_of(problem, family.basis)
        return family.basis, EvidencePrior(family, norm_bound, intercept)
    basis, spectrum = spectral_basis(
        kernel,
        _sample_pairs(problem, law, generator),
        tolerance=options.rank_tolerance,
        max_rank=options.max_rank,
    )
    if not spectrum.max() > NUMERICAL_RANK:
        raise ConfigurationError("the kernel is 0 on all pairs: nothing can be learnt with it")
    intercept = intercept_of(problem, basis)
    return basis, KnownKernelPrior(spectrum, options.smoothness, norm_bound, intercept)


def _sample_pairs(problem: Problem, law: ContextLaw, generator: np.random.Generator) -> FloatArray:
    contexts = law.contexts(problem.contexts)
    return uniform_pairs(contexts, problem.actions, _BASIS_SAMPLE, generator)


def _rehearsal(
    problem: Problem,
    law: ContextLaw,
    basis: Span,
    prior: CoefficientPrior,
    generator: np.random.Generator,
) -> Rehearsal:
    """Functions and contexts to calibrate active sets on, drawn once."""
    actions = problem.actions
    contexts, _ = law.contexts(problem.contexts).support(generator, _REHEARSAL_PAIRS)
    count = max(1, min(len(contexts), _REHEARSAL_PAIRS // actions.count))
    chosen = generator.choice(len(contexts), size=count, replace=False)
    pairs = actions.pairs(contexts[chosen])
    if isinstance(prior, EvidencePrior):
        covariance = prior.covariance(prior.expected)
        return Rehearsal.of_prior(basis, pairs, covariance, generator)
    assert isinstance(basis, Basis)
    assert isinstance(prior, KnownKernelPrior)
    return Rehearsal.draw(basis, pairs, prior.norm_bound, generator)
