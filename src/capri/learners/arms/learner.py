"""CAPRI for many unrelated arms: the practical learner with everything in blocks.

Messages, gate and promise are those of every policy; only basis, shapes, belief and law are others.
Cost grows with arms times the cube of the coordinates of one arm, and no arm is left out.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.plan import EpochPlan, Release, Segment
from capri.epoch.problem import Problem
from capri.epoch.storage import below, named
from capri.errors import ConfigurationError
from capri.family import ArmBasis, ArmFeatures, Candidates, arms_of
from capri.learners.arms.draws import (
    Prospect,
    boldness,
    number_of_draws,
    outlook_of,
    thompson_draws,
)
from capri.learners.arms.kinds import MessageChoice
from capri.learners.arms.messages import (
    ArmDesign,
    ArmLeg,
    design_of,
    lengthened,
    sigma_max,
    silences,
)
from capri.learners.arms.prior import ArmPosterior, ArmPrior, remaining
from capri.learners.belief import Belief, Squares
from capri.learners.change_of_basis import Lengthened
from capri.learners.changing import Reading
from capri.learners.context_law import ContextLaw
from capri.learners.context_support import Reach
from capri.learners.drift import Drift
from capri.learners.fit import Fit
from capri.learners.messages import bound_of, coordinate_noise
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Crowds
from capri.learners.reading import Leg
from capri.learners.response import Response
from capri.learners.start.head import arms_head
from capri.learners.start.prior import Observed
from capri.learners.stored import StoredLearner
from capri.learners.support import Stage
from capri.learners.watch import Comers, Rates, Watch
from capri.privacy.vector import VectorLayout
from capri.spaces import FixedActions, context_chunks

# Coordinates of all arms together, of one arm at least and at most.
_COORDINATES, _NARROWEST, _WIDEST = 2400, 12, 60
# Contexts on which it is judged whether an arm is worth a try.
_PROSPECT_CONTEXTS = 256
# Epochs grow by no more.
_GROWTH = 1.3


class ArmsLearner(StoredLearner):
    """Plans, learns and plays many unrelated arms; everything it holds is public."""

    def __init__(
        self, problem: Problem, options: PracticalOptions, generator: np.random.Generator
    ) -> None:
        self._problem, self._options = problem, options
        actions = self._arms(problem)
        width = int(np.clip(_COORDINATES // actions.dimension, _NARROWEST, _WIDEST))
        self._basis, candidates = arms_of(
            problem.contexts, actions, width=width, generator=generator
        )
        self._prior = ArmPrior(
            candidates,
            options.norm_bound or problem.reward_bound,
            None if problem.scale.symmetric else problem.reward_bound,
        )
        size = self._basis.arms, self._basis.width
        self._belief, self._squares = Belief.empty(*size), Squares.empty(*size)
        self._crowds, self._drift, self._fit = Crowds.empty(*size), Drift(), Fit()
        self._response, self._rates = Response.unknown(*size), Rates()
        self._context_law, self._comers = ContextLaw.trusting(Reach.of(problem)), Comers()
        self._flights = {}
        self._watch = Watch(problem, options, self._prior.norm_bound, self._basis)
        self._posterior = self._prior.infer(self._belief)
        self._conduct = self._first_conduct(generator)
        self._stage = Stage.draw(problem, generator)

    _basis: ArmBasis
    _prior: ArmPrior
    _posterior: ArmPosterior

    def begin(self, observed: Observed, generator: np.random.Generator) -> None:
        """Take in what is known before the first user, and play by it."""
        self._head = arms_head(observed, self._basis, self._prior)
        self._posterior = self._infer(self._belief, None)
        self._conduct = self._first_conduct(generator)
        self._stage = replace(self._stage, law=None)

    @staticmethod
    def _arms(problem: Problem) -> FixedActions:
        actions = problem.actions
        if not (isinstance(actions, FixedActions) and actions.unrelated):
            raise ConfigurationError(
                "this policy was built for actions that are names or numbers: it goes on with "
                "others of that kind only. Build a new policy for actions with features"
            )
        return actions

    @property
    def growth(self) -> float:
        """Growth of the epochs: many arms are sorted out in many short ones."""
        return min(super().growth, _GROWTH)

    # -- planning and learning --------------------------------------------------------------------

    def plan(self, epoch: int, length: int, generator: np.random.Generator) -> EpochPlan:
        """Shape the messages of an epoch under the law it will be played with."""
        problem, options, state, belief = (
            self._problem,
            self._options,
            self._posterior,
            self._belief,
        )
        awaited = self._awaited(set(self._flights) - {epoch})
        if awaited is not None and self._tried(epoch):
            age = belief.epochs - self._drift.born + len(set(self._flights) - {epoch})
            law = self._next_law(state, belief, length, generator, age=age, awaited=awaited)
            self._conduct = self._conducted(law)
            self._stage = replace(self._stage, law=None)
        measured = problem.rewards.measured
        answers = max(1, int(length * self._response.rate)) if measured else length
        noise_variance = belief.noise_variance(problem.reward_bound)
        nothing = np.zeros_like(state.mean)
        leg = self._expected(self._leg(nothing, problem.reward_bound), length)
        unknown = leg.variance(state)
        encoding = bound_of(
            problem,
            options,
            belief,
            unknown + noise_variance,
            played=(*leg.estimates(state), answers),
        )
        bound, residual = encoding.bound, encoding.clips
        kept = self._leg(encoding.subtracted(state.mean), bound)
        leg = replace(leg, baseline=kept.baseline, value_bound=bound)
        # Later segments may clip residuals even where the first does not.
        tail = residual or problem.rewards.overlapping
        expected = sum(
            float(weights @ leg.signal(state, arm, u))
            for arm in leg.played
            for u, weights in (leg.where(arm),)
        )
        factor, residual_variance = remaining(state.factor, awaited), expected + noise_variance
        choice = MessageChoice(problem, options, bound, tail)
        found, kind = choice.best(leg, factor, answers, residual_variance)
        tau = residual_variance / self._largest_prior_variance()
        features = ArmFeatures(self._basis, found.shapes, found.sizes, tau, found.offsets)
        if problem.rewards.overlapping:  # the next epochs begin before this one is told
            answering = [replace(leg, decisions=answers)]
            design = self._expectation(features, answering, bound, kind.noise, kind.main_share)
            kept = replace(kept, promised=design.information)
        self._flights = {**self._flights, epoch: (kept,)}
        self._drift = self._drift.planned(length)
        return EpochPlan(
            epoch=epoch,
            length=length,
            features=features,
            tau=tau,
            sigma_max=sigma_max(leg, length, tau),
            value_bound=bound,
            clip_norm=1.0,
            layout=choice.layout(kind.norm, features.rank, length),
            baseline=self._basis.function(kept.baseline.ravel()) if encoding.share else None,
        )

    def _awaited(self, epochs: Iterable[int]) -> FloatArray | None:
        """The information that these epochs will give, as their plans expect it; None for none."""
        found = [self._flights[epoch][0].promised for epoch in epochs]
        told = [each for each in found if each is not None]
        return np.sum(told, axis=0) if told else None

    def _tried(self, epoch: int) -> bool:
        """Whether an epoch under way plays the law of now: the next one had better try others."""
        others = (legs for number, legs in self._flights.items() if number != epoch)
        return any(leg.learnt == self._belief.epochs for legs in others for leg in legs)

    def _expected(self, leg: Leg, decisions: int) -> ArmLeg:
        """A segment of so many decisions, by columns of arms."""
        law, actions = leg.stage.law, leg.conduct.actions
        if law is None:
            law = leg.conduct.expected(leg.stage.contexts)
        assert isinstance(actions, FixedActions)
        return ArmLeg.of(
            self._basis,
            leg.stage.contexts,
            leg.stage.weights,
            law,
            actions.rows.argmax(axis=1),
            baseline=leg.baseline,
            value_bound=leg.value_bound,
            decisions=decisions,
        )

    def _largest_prior_variance(self) -> float:
        common, own = self._prior.covariances(self._posterior.weights)
        return float(np.diag(common + own).max())

    def turn(self, generator: np.random.Generator) -> Segment | None:
        """The newest law, baseline and bound for the rest of the newest epoch.

        On a store an epoch may begin before the release of the one before it is learnt from.
        """
        if not self._flights:
            return None
        problem, state, epoch = self._problem, self._posterior, max(self._flights)
        nothing = np.zeros_like(state.mean)
        leg = self._expected(self._leg(nothing, problem.reward_bound), 1)
        noise_variance = self._belief.noise_variance(problem.reward_bound)
        encoding = bound_of(
            problem,
            self._options,
            self._belief,
            leg.variance(state) + noise_variance,
            played=(*leg.estimates(state), self.first_epoch),
        )
        bound, baseline = encoding.bound, encoding.subtracted(state.mean)
        legs = (*self._flights[epoch], self._leg(baseline, bound))
        self._flights = {**self._flights, epoch: legs}
        return Segment(
            number=len(legs),
            value_bound=bound,
            baseline=self._basis.function(baseline.ravel()) if encoding.share else None,
        )

    def accepts(self, problem: Problem) -> None:
        """Refuse actions with features."""
        self._arms(problem)

    def adopt(self, problem: Problem, generator: np.random.Generator) -> None:
        """Go on with other arms: an arm is known by its indicator, a new one starts from the prior.

        What all arms have in common is known of a new one, too.
        """
        actions = self._arms(problem)
        heir, more = copy(self), actions.dimension - self._basis.arms  # all or nothing
        heir._problem = problem
        heir._basis = replace(
            self._basis,
            offered=actions.rows.argmax(axis=1).astype(np.int64),
            arms=actions.dimension,
        )
        longer = Lengthened(more)
        heir._belief = longer.belief(self._belief)
        heir._squares = longer.squares(self._squares)
        heir._crowds = longer.crowds(self._crowds)
        heir._posterior = self._prior.again(heir._belief, self._posterior.weights)
        if self._head is not None:
            heir._head = longer.head(self._head)
            heir._posterior = heir._infer(heir._belief, self._posterior)
        heir._response = longer.response(self._response)
        heir._flights = {
            epoch: longer.legs(legs, actions.dimension) for epoch, legs in self._flights.items()
        }
        heir._watch = replace(self._watch, problem=problem, basis=heir._basis)
        heir._conduct = heir._first_conduct(generator)
        heir._stage = Stage.draw(problem, generator)
        vars(self).update(vars(heir))

    def _learnt_law(
        self,
        release: Release,
        belief: Belief,
        drift: Drift,
        state: ArmPosterior,
        generator: np.random.Generator,
    ) -> play.ThompsonLaw:
        """Draws of what the next epoch can resolve and no epoch under way will tell."""
        longest = drift.longest(self.first_epoch, self.growth, self._options.memory)
        length = min(self.growth * release.participants, longest)
        # All but the one that was read just now and the one that has not taken its decisions yet.
        full = sorted(set(self._flights) - {release.plan.epoch})[:-1]
        age = belief.epochs - drift.born + len(full)
        awaited = self._awaited(full)
        return self._next_law(state, belief, length, generator, age=age, awaited=awaited)

    def _read(self, release: Release, generator: np.random.Generator) -> Reading:
        """What the release observed of every arm, and who answered."""
        plan, features = release.plan, release.plan.features
        assert isinstance(features, ArmFeatures)
        design, response = self._observed(release, features)
        main = plan.layout.main(release.vector, plan.value_bound)
        return Reading(
            design=design,
            told=design.told(features, main, release.participants),
            spread=design.spread,
            response=response,
            law=self._context_law,
        )

    def _observed(self, release: Release, features: ArmFeatures) -> tuple[ArmDesign, Response]:
        """What the release observed, by its segments and the decisions really made in each."""
        plan, response, problem = release.plan, self._response, self._problem
        legs = zip(self._flights[plan.epoch], release.counts, strict=True)
        if features.basis.arms < self._basis.arms:  # arms were added since
            features = lengthened(features, self._basis.arms - features.basis.arms)
        played = [self._expected(leg, count) for leg, count in legs if count > 0]
        rank, bound = plan.features.rank, plan.value_bound
        layout, noise = plan.layout, plan.noise_scale
        if isinstance(layout, VectorLayout) or problem.budget is None:
            noise = coordinate_noise(problem, rank, bound, release.participants)
        share = layout.main_share if isinstance(layout, VectorLayout) else 1.0
        if "missing" not in layout.blocks:
            return self._expectation(features, played, bound, noise / share, share), response
        count = float(layout.part(release.vector, "count")[0])
        response = response.counted(count, release.participants, layout.deviation("count"))
        silent = layout.part(release.vector, "missing")
        response = response.regressed(
            silences(features, played, silent, layout.deviation("missing")), self._prior.of_shares
        )
        design = self._expectation(features, played, bound, noise, 1.0, response)
        return design, response

    def _expectation(
        self,
        features: ArmFeatures,
        legs: Sequence[ArmLeg],
        value_bound: float,
        noise: float,
        main_share: float,
        response: Response | None = None,
    ) -> ArmDesign:
        """What an epoch of these segments tells, by what is believed now."""
        problem = self._problem
        return design_of(
            features,
            legs,
            self._posterior,
            noise_variance=self._belief.noise_variance(problem.reward_bound),
            value_bound=value_bound,
            reward_bound=problem.reward_bound,
            main_share=main_share,
            noise=noise,
            response=response,
        )

    def _first_conduct(self, generator: np.random.Generator) -> play.Conduct:
        """Draws of what a first epoch can resolve."""
        state, belief = self._posterior, self._belief
        return self._conducted(self._next_law(state, belief, self.first_epoch, generator))

    def _next_law(
        self,
        state: ArmPosterior,
        belief: Belief,
        length: float,
        generator: np.random.Generator,
        *,
        age: int | None = None,
        awaited: FloatArray | None = None,
    ) -> play.ThompsonLaw:
        """Thompson draws of what an epoch of about this length can resolve.

        ``age``: releases since the last change, by default all of them. ``awaited``: information
        that epochs under way will give.
        """
        age = belief.epochs - self._drift.born if age is None else age
        outlook = outlook_of(self._problem, self._options, belief, state, length)
        draws = thompson_draws(
            state,
            outlook,
            number_of_draws(age, self._options.draws, outlook),
            self._options.thompson_scale * boldness(age),
            generator,
            awaited,
            self._prospect,
        )
        return play.ThompsonLaw(self._basis, draws)

    @property
    def _prospect(self) -> Prospect | None:
        """Nothing before the first epoch: all arms are alike then."""
        if not self._drift.begun:
            return None
        u = self._basis.context(self._stage.contexts[:_PROSPECT_CONTEXTS])
        return Prospect(u=u, offered=self._basis.offered, decisions=self._drift.begun)

    def _stakes(self, state: ArmPosterior) -> float:
        """Over arms."""
        return float(np.sqrt(state.mean.var(axis=0).sum()))

    def estimate(self, contexts: FloatArray) -> FloatArray:
        """Posterior mean of ``f``."""
        values = np.empty((len(contexts), self._problem.actions.count))
        weights = self._posterior.mean.reshape(-1, 1)
        for part in context_chunks(len(contexts), self._problem.actions.count):
            pairs = self._problem.actions.pairs(contexts[part])
            values[part] = self._basis.values(pairs, weights)[:, :, 0]
        return values

    # -- storage ----------------------------------------------------------------------------------

    def _own_state(self) -> State:
        """Basis and candidates."""
        values, basis = self._basis.state()
        candidates = self._prior.candidates
        basis |= {
            "covariances": candidates.covariances,
            "shares": candidates.shares,
            "weights": self._posterior.weights,
        }
        return {"basis": values, "candidates": list(candidates.names)}, named("basis", basis)

    def _restore_own(self, values: dict[str, Any], arrays: dict[str, FloatArray]) -> FloatArray:
        """The inverse of :meth:`_own_state`; the weights of candidates."""
        own = below("basis", arrays)
        self._basis = ArmBasis.from_state(values["basis"], own)
        names = tuple(values["candidates"])
        candidates = Candidates(own["covariances"], own["shares"], names)
        self._prior = replace(self._prior, candidates=candidates)
        self._watch = replace(self._watch, basis=self._basis)
        return np.asarray(own["weights"])
