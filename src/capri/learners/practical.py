"""CAPRI that learns at horizons people run: pooled releases, a public belief, Thompson play.

Same guarantee as the paper's: one noisy vector per epoch, everything else a function of earlier
releases and public draws. Each epoch asks about what the belief does not know yet, encodes only
what the last estimate missed, and plays by the law of the best action under the belief.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy.special import chdtrc

from capri.arrays import FloatArray
from capri.epoch import play
from capri.epoch.notice import Notice
from capri.epoch.plan import EpochPlan, Release, Segment
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.family import family_of
from capri.features import (
    NUMERICAL_RANK,
    Basis,
    Function,
    LowRankFeatures,
    ProjectedFeatures,
    Span,
    spectral_basis,
)
from capri.kernels import Auto
from capri.learners.active import Rehearsal
from capri.learners.belief import Belief, Observation, Posterior, Squares
from capri.learners.boundary import mean_of, noise_at
from capri.learners.catalogue import Catalogue
from capri.learners.cells import allowed, best_of, left_over, partitions
from capri.learners.changing import Reading
from capri.learners.context_law import ContextLaw, Moments, left_out, too_many
from capri.learners.context_support import Reach
from capri.learners.drift import Drift
from capri.learners.fit import Fit
from capri.learners.messages import (
    Design,
    Question,
    awaited_factor,
    bound_of,
    dense_design,
    question_of,
    sigma_max,
)
from capri.learners.moment_design import layout_for, moments_of, projection_for
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Crowds
from capri.learners.priors import EvidencePrior, Prior, ToldPrior
from capri.learners.reading import Expectations, shortened
from capri.learners.response import Response
from capri.learners.support import Gathered, Stage, predicted
from capri.learners.watch import Comers, Rates, Watch, level_of
from capri.privacy.budget import PrivacyModel
from capri.privacy.histogram import HistogramLayout
from capri.privacy.mechanism import Norm
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout, vector_layout

# Public pairs from which the basis is built, and pairs on which active sets are calibrated.
_BASIS_SAMPLE = 3000
_REHEARSAL_PAIRS = 2048
# A basis that leaves out so many times what it may never fits, whether the function changes or not.
_LEFT_OUT = 2.0
# Innovations so long have at most this probability where pool, kernel and noise are right.
_SUSPICIOUS = 0.01


class PracticalLearner(Catalogue):
    """Plans, learns and plays as described above; :class:`PracticalOptions` names the choices."""

    def __init__(
        self, problem: Problem, options: PracticalOptions, generator: np.random.Generator
    ) -> None:
        self._problem = problem
        self._options = options
        self._norm_bound = options.norm_bound or problem.reward_bound
        self._context_law, self._comers = ContextLaw.trusting(Reach.of(problem)), Comers()
        self._basis, self._prior = self._build_basis(generator)
        self._rehearsal = self._rehearse(generator)
        self._belief = Belief.empty(self._basis.rank)
        self._crowds = Crowds.empty(self._basis.rank)
        self._squares = Squares.empty(self._basis.rank)
        self._posterior = self._prior.infer(self._belief)
        self._conduct = self._conducted(play.UniformLaw())
        self._stage = Stage.draw(problem, generator)
        self._response = Response.unknown(self._basis.rank)
        self._flights = {}
        self._fit, self._drift, self._rates = Fit(), Drift(), Rates()
        self._watch = self._watched()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not fit in the configuration itself."""
        return self._watch.opening

    def _watched(self) -> Watch:
        """Guard rails around the basis of now."""
        left_out = self._prior.left_out if isinstance(self._prior, EvidencePrior) else 0.0
        return Watch(self._problem, self._options, self._norm_bound, self._basis, left_out)

    @property
    def _design(self) -> Design | None:
        """What the plan of the newest epoch expects; None where none is open."""
        return self._flights[max(self._flights)][0].design if self._flights else None

    def _build_basis(self, generator: np.random.Generator) -> tuple[Span, Prior]:
        kernel = self._problem.kernel
        if isinstance(kernel, Auto):
            family = family_of(
                self._context_law.contexts(self._problem.contexts),
                self._problem.actions,
                max_rank=self._options.max_rank,
                generator=generator,
            )
            level = level_of(self._problem, family.basis)
            return family.basis, EvidencePrior(family, self._norm_bound, level)
        basis, spectrum = spectral_basis(
            kernel,
            self._sample_pairs(generator),
            tolerance=self._options.rank_tolerance,
            max_rank=self._options.max_rank,
        )
        if not spectrum.max() > NUMERICAL_RANK:
            raise ConfigurationError("the kernel is 0 on all pairs: nothing can be learnt with it")
        return basis, ToldPrior(
            spectrum, self._options.smoothness, self._norm_bound, level_of(self._problem, basis)
        )

    def _sample_pairs(self, generator: np.random.Generator) -> FloatArray:
        """Public pairs under uniform play."""
        actions = self._problem.actions
        known = self._context_law.contexts(self._problem.contexts)
        contexts, weights = known.support(generator, _BASIS_SAMPLE)
        if len(contexts) * actions.count <= _BASIS_SAMPLE:
            pairs = actions.pairs(contexts)
            return np.asarray(pairs.reshape(-1, pairs.shape[-1]))
        rows = generator.choice(len(contexts), size=_BASIS_SAMPLE, p=weights)
        chosen = generator.integers(actions.count, size=_BASIS_SAMPLE)
        return actions.chosen(contexts[rows], chosen)

    def _rehearse(self, generator: np.random.Generator) -> Rehearsal:
        """Functions and contexts to calibrate active sets on, drawn once."""
        actions = self._problem.actions
        known = self._context_law.contexts(self._problem.contexts)
        contexts, _ = known.support(generator, _REHEARSAL_PAIRS)
        count = max(1, min(len(contexts), _REHEARSAL_PAIRS // actions.count))
        chosen = generator.choice(len(contexts), size=count, replace=False)
        pairs = actions.pairs(contexts[chosen])
        if isinstance(self._prior, EvidencePrior):
            prior = self._prior.covariance(self._prior.expected)
            return Rehearsal.of_prior(self._basis, pairs, prior, generator)
        assert isinstance(self._basis, Basis)
        return Rehearsal.draw(self._basis, pairs, self._norm_bound, generator)

    # -- planning and learning --------------------------------------------------------------------

    def plan(self, epoch: int, length: int, generator: np.random.Generator) -> EpochPlan:
        """Shape the messages of an epoch under the law it will be played with."""
        problem = self._problem
        self._widen(generator)
        gathered = self._gathered(generator)
        question = question_of(
            problem=problem,
            options=self._options,
            basis=self._basis,
            belief=self._belief,
            state=self._posterior,
            support=gathered.support(self._context_law),
            length=length,
            rate=self._response.rate if problem.rewards.measured else 1.0,
            awaited=self._awaited(number for number in self._flights if number != epoch),
        )
        tau = self._ridge(question.mean_total)
        features, layout, design = self._laid_out(epoch, length, question, gathered, tau)
        plan = EpochPlan(
            epoch=epoch,
            length=length,
            features=features,
            tau=tau,
            sigma_max=sigma_max(self._basis, question.support, length, tau),
            value_bound=question.value_bound,
            clip_norm=1.0,
            layout=layout,
            baseline=self._subtracted(question.baseline),
        )
        leg = self._leg(question.baseline, question.value_bound)
        leg = replace(leg, design=design, pairs=gathered if gathered.kept else None)
        self._flights = {**self._flights, epoch: (leg,)}
        self._drift = self._drift.planned(length)
        return plan

    def _laid_out(
        self, epoch: int, length: int, question: Question, gathered: Gathered, tau: float
    ) -> tuple[ProjectedFeatures, VectorLayout | ProductLayout | HistogramLayout, Design]:
        """The messages that leave the least to learn: of one cell, or dense."""
        problem, found, least = self._problem, None, np.inf
        tail_share = self._options.tail_share * (question.residual or problem.rewards.overlapping)
        if problem.budget is None or Norm.L2 in problem.norms:
            shape, design = dense_design(question, self._options)
            least = left_over(question, design.observation, self._crowds)
        if allowed(problem) and not (least < np.inf and self._asks_who_comes(epoch)):
            tried = partitions(question, length=length, tail_share=tail_share, tau=tau, seed=epoch)
            found = best_of(tried, question, self._crowds, least)
        if found is not None:
            design = question.expected(found.observation, main_share=1.0, noise=found.noise)
            return found.features, found.layout, design
        features = LowRankFeatures(self._basis, shape, tau)
        return features, self._dense_layout(length, tail_share, features, gathered, design), design

    def _asks_who_comes(self, epoch: int) -> bool:
        """Whether second moments are worth more than less noise: only dense messages carry them.

        On every second epoch once the pool is known, or may be suspected, not to be those who
        come: releases that do not fit are a sign of that, too.
        """
        drift = self._drift
        odd = drift.degrees > 0 and float(chdtrc(drift.degrees, drift.chi_square)) < _SUSPICIOUS
        suspected = odd or drift.changes > 0 or drift.forgot > 0 or self._context_law.kind > 0
        return suspected and epoch % 2 == 0

    def _dense_layout(
        self,
        length: int,
        tail_share: float,
        features: LowRankFeatures,
        gathered: Gathered,
        design: Design,
    ) -> VectorLayout | ProductLayout:
        """Messages of products, or of one vector where each is made private by itself."""
        problem, rank = self._problem, features.rank
        if problem.sends_products:
            psi = shortened(gathered.features @ features.whitening)
            projection = projection_for(gathered, psi, self._context_law)
            return layout_for(problem, rank, length, tail_share, projection)
        coordinates = rank + 1 + (tail_share > 0)  # with moment and tail
        return vector_layout(
            rank=rank,
            length=length,
            budget=problem.budget,
            value_bound=design.value_bound,
            moment_share=self._options.moment_share,
            tail_share=tail_share,
            composition=problem.composition,
            sphere=problem.sphere_of(coordinates, length),
        )

    def _subtracted(self, baseline: FloatArray) -> Function | None:
        """What is subtracted from rewards; None for nothing."""
        return self._basis.function(baseline) if baseline.any() else None

    def _widen(self, generator: np.random.Generator) -> None:
        """Make the basis anew where it does not know many of those who come."""
        problem, law = self._problem, self._context_law
        if left_out(law, self._basis, problem) > too_many(law):
            self.adopt(problem, generator)
            self._context_law = replace(law, left_out=left_out(law, self._basis, problem))

    def _gathered(self, generator: np.random.Generator) -> Gathered:
        """What the coming epoch may play."""
        self._stage_law()
        elsewhere = self._context_law.elsewhere
        return Gathered.of(self._basis, self._stage, self._conduct, elsewhere, generator)

    def turn(self, generator: np.random.Generator) -> Segment | None:
        """The newest law, baseline and bound for the rest of the newest epoch.

        Its shape stays: coordinates of one sum cannot change.
        """
        if not self._flights:
            return None
        epoch = max(self._flights)
        gathered = self._gathered(generator)
        support = gathered.support(self._context_law)
        variance = np.sum((support.features @ self._posterior.factor) ** 2, axis=1)
        estimate = support.features @ self._posterior.mean
        noise = noise_at(self._belief, estimate, self._problem.reward_bound)
        planned = self._flights[epoch][0].design
        encoding = bound_of(
            self._problem,
            self._options,
            self._belief,
            float(support.weights @ variance) + mean_of(noise, support.weights),
            played=(
                estimate,
                support.weights,
                1 if planned is None else planned.observation.participants,
            ),
        )
        baseline, bound = encoding.subtracted(self._posterior.mean), encoding.bound
        leg = replace(self._leg(baseline, bound), pairs=gathered if gathered.kept else None)
        legs = (*self._flights[epoch], leg)
        self._flights = {**self._flights, epoch: legs}
        return Segment(
            number=len(legs),
            value_bound=bound,
            baseline=self._subtracted(baseline),
        )

    def accepts(self, problem: Problem) -> None:
        """Any actions of these contexts will do."""

    def _ridge(self, residual_variance: float) -> float:
        """The ``tau`` of kernel ridge regression that the prior amounts to: noise over prior."""
        return residual_variance / float(self._prior.variance(self._posterior).max())

    def _learnt_law(
        self,
        release: Release,
        belief: Belief,
        drift: Drift,
        state: Posterior,
        generator: np.random.Generator,
    ) -> play.ThompsonLaw:
        """Draws of what no epoch under way will tell."""
        self._pass_over(generator)
        return self._next_law(state, generator, read=release.plan.epoch)

    def _read(self, release: Release, generator: np.random.Generator) -> Reading:
        """What the release observed, who answered, and who came."""
        design, released, response, law, moments = self._observed(release, generator)
        return Reading(
            design=design,
            told=[(..., design.observation, released)],
            spread=design.spread,
            response=response,
            law=law,
            moments=moments,
            whole=design.left_out <= _LEFT_OUT * self._options.rank_tolerance,
        )

    def _observed(
        self, release: Release, generator: np.random.Generator
    ) -> tuple[Design, FloatArray, Response, ContextLaw, Moments | None]:
        """What the release observed, the vector it observed, who answered, and who came.

        As planned, where the epoch went as planned; else by its segments and real counts.
        """
        plan, response, law = release.plan, self._response, self._context_law
        belief = self._belief
        legs = self._flights[plan.epoch]
        planned, trusted = legs[0].design, law.kind
        vector = plan.layout.main(release.vector, plan.value_bound)
        as_planned = (
            len(legs) == 1
            and planned is not None
            and release.participants == plan.length
            and legs[0].learnt == self._belief.epochs
        )
        products = self._problem.sends_products
        if as_planned and not products:
            assert planned is not None
            return planned, vector, response, law, None
        gathered = [leg.gathered(self._basis, law.elsewhere, generator) for leg in legs]
        if (moments := moments_of(release, legs, gathered, law)) is not None:
            law = law.observe(moments)
        if as_planned and not self._problem.rewards.measured and law.kind == trusted == 0:
            assert planned is not None  # the law is the one that was planned with
            return planned, vector, response, law, moments
        expected = Expectations.of(
            self._problem, self._basis, plan, legs, release.counts, gathered, law
        )
        tail = "tail" in plan.layout.blocks
        main_share = self._options.main_share(tail=tail, products=products)
        if isinstance(plan.layout, HistogramLayout):
            main_share = 1.0
        doubt = None
        if "missing" in plan.layout.blocks:
            doubt = response = expected.measured(response, release.vector, self._prior.of_shares)
            expected = expected.answered(response)
        design, shift = expected.design(
            belief, self._posterior, legs[0].baseline, main_share=main_share, response=doubt
        )
        return design, vector - shift, response, law, moments

    def _next_law(
        self,
        state: Posterior,
        generator: np.random.Generator,
        *,
        read: int | None = None,
    ) -> play.ThompsonLaw:
        """The law after a belief; ``read``: the epoch whose release it was learnt from."""
        options = self._options
        xi = generator.standard_normal((self._basis.rank, options.draws))
        # All but the one that was read just now and the one that has not taken its decisions yet.
        full = sorted(set(self._flights) - {read})[:-1]
        factor = awaited_factor(state.factor, self._awaited(full))
        draws = state.mean[:, None] + options.thompson_scale * (factor @ xi)
        return play.ThompsonLaw(self._basis, draws)

    def _awaited(self, epochs: Iterable[int]) -> list[Observation]:
        """What these epochs will tell, as their plans expect it. Reports are read as they come."""
        if self._problem.model is PrivacyModel.LOCAL:
            return []
        designs = (self._flights[number][0].design for number in epochs)
        return [design.observation for design in designs if design is not None]

    def estimate(self, contexts: FloatArray) -> FloatArray:
        """Posterior mean of ``f``."""
        return predicted(
            self._basis.function(self._posterior.mean), self._problem.actions, contexts
        )
