"""CAPRI for many unrelated arms: the practical learner with everything in blocks.

Messages, gate and promise are those of every policy; only basis, shapes, belief and law are others.
Cost grows with arms times the cube of the coordinates of one arm, and no arm is left out.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch import play
from capri.epoch.learner import Lesson, State
from capri.epoch.plan import EpochPlan, Release, Segment
from capri.epoch.problem import Problem
from capri.epoch.storage import below, named
from capri.errors import ConfigurationError
from capri.family import ArmBasis, ArmFeatures, Candidates, arms_of
from capri.kernels import Auto
from capri.learners.arms.draws import Outlook, boldness, number_of_draws, thompson_draws
from capri.learners.arms.evidence import ArmPrior
from capri.learners.arms.messages import (
    ArmDesign,
    ArmLeg,
    design_of,
    shapes_of,
    sigma_max,
    silences,
)
from capri.learners.arms.posterior import ArmPosterior, remaining
from capri.learners.belief import Belief
from capri.learners.changing import ChangingLearner
from capri.learners.crowds import Crowds
from capri.learners.drift import Drift, Kind
from capri.learners.ends import sized
from capri.learners.guards.fit import Fit
from capri.learners.guards.wait import Rates
from capri.learners.guards.watch import Watch
from capri.learners.kept import (
    apart,
    flights_from,
    flights_state,
    response_from,
    response_state,
    stage_arrays,
    stage_from,
)
from capri.learners.messages import bound_of, coordinate_noise
from capri.learners.options import PracticalOptions
from capri.learners.passage import Lengthened
from capri.learners.reading import Leg
from capri.learners.response import Response
from capri.learners.squares import Squares
from capri.learners.start.blocks import arms_head
from capri.learners.start.head import HeadStart, inferred
from capri.learners.start.prior import Observed
from capri.learners.support import Stage
from capri.learners.tally import message_for
from capri.privacy.grid import make_grid
from capri.privacy.promise import PrivacyModel
from capri.spaces import FixedActions, context_chunks

# Fewer unrelated arms fit into one dense basis.
_LEAST_ARMS = 9
# Coordinates of all arms together, of one arm at least and at most.
_COORDINATES, _NARROWEST, _WIDEST = 2400, 12, 60
# Epochs grow by no more.
_GROWTH = 1.3
# Coordinates that stand for all when the noise of a coming epoch is estimated.
_TYPICAL_DIMENSION = 64


def suits_arms(problem: Problem, options: PracticalOptions) -> bool:
    """Whether this learner takes the problem: many unrelated arms and nothing out of the ordinary.

    Arms are counted by their indicators, those that are no longer offered among them.
    """
    actions = problem.actions
    return (
        isinstance(problem.kernel, Auto)
        and isinstance(actions, FixedActions)
        and actions.dimension >= _LEAST_ARMS
        and actions.unrelated
        and problem.model is PrivacyModel.JOINT
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmKnowledge:
    """All that is known of arms, in one piece: what an explanation is made from."""

    problem: Problem
    basis: ArmBasis
    prior: ArmPrior
    belief: Belief
    posterior: ArmPosterior
    crowds: Crowds
    drift: Drift


class ArmsLearner(ChangingLearner):
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
        self._flights = {}
        self._watch = Watch(problem, options, self._prior.norm_bound, self._basis)
        self._posterior = self._prior.infer(self._belief)
        self._conduct = self._next_conduct(
            self._posterior, self._belief, self._first_epoch, generator
        )
        self._stage = Stage.draw(problem, generator)

    _basis: ArmBasis
    _prior: ArmPrior
    _posterior: ArmPosterior
    # What was known before the first user; None for nothing.
    _head: HeadStart[ArmPosterior] | None = None

    def begin(self, observed: Observed, generator: np.random.Generator) -> None:
        """Take in what is known before the first user, and play by it."""
        self._head = arms_head(observed, self._basis, self._prior)
        self._posterior = self._infer(self._belief, None)
        self._conduct = self._next_conduct(
            self._posterior, self._belief, self._first_epoch, generator
        )
        self._stage = replace(self._stage, law=None)

    def _infer(self, belief: Belief, near: ArmPosterior | None) -> ArmPosterior:
        """What releases make of the prior, and of what was known before them."""
        return inferred(self._head, self._prior, belief, near)

    def knowledge(self) -> ArmKnowledge:
        """What there is to explain."""
        return ArmKnowledge(
            problem=self._problem,
            basis=self._basis,
            prior=self._prior,
            belief=self._belief,
            posterior=self._posterior,
            crowds=self._crowds,
            drift=self._drift,
        )

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
        return min(self._options.growth, _GROWTH)

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
            self._conduct = self._next_conduct(
                state, belief, length, generator, age=age, awaited=awaited
            )
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
        main_share = options.main_share(tail=tail, products=measured)
        expected = sum(
            float(weights @ leg.signal(state, arm, u))
            for arm in leg.played
            for u, weights in (leg.where(arm),)
        )
        noise = coordinate_noise(problem, _TYPICAL_DIMENSION, bound, answers) / main_share
        shapes, sizes = shapes_of(
            leg,
            remaining(state.factor, awaited),
            length=answers,
            noise=noise,
            residual_variance=expected + noise_variance,
            loudness=options.loudness,
        )
        coordinates = int(sizes.sum()) + 1 + tail  # with moment and tail
        tau = (expected + noise_variance) / self._largest_prior_variance()
        features = ArmFeatures(self._basis, shapes, sizes, tau)
        if problem.rewards.overlapping:  # the next epochs begin before this one is told
            answering = [replace(leg, decisions=answers)]
            design = self._expectation(features, answering, bound, noise, main_share)
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
            grid=make_grid(
                bound=bound,
                rank=coordinates,
                length=length,
                budget=problem.budget,
                composition=problem.composition,
            ),
            calibration="analytic",
            baseline=self._basis.function(kept.baseline.ravel()) if encoding.share else None,
            moment_share=options.moment_share,
            tail_share=options.tail_share * tail,
            message=message_for(problem, features.rank, length, options.tail_share * tail, None)
            if measured
            else None,
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
            played=(*leg.estimates(state), self._first_epoch),
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
        heir._conduct = heir._next_conduct(
            heir._posterior, heir._belief, self._first_epoch, generator
        )
        heir._stage = Stage.draw(problem, generator)
        vars(self).update(vars(heir))

    def learn(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Update the belief and the law."""
        plan = release.plan
        if plan.epoch not in self._flights:
            raise ConfigurationError("a release needs the plan it was made with")
        assert isinstance(plan.features, ArmFeatures)
        design, response = self._read(release, plan.features)
        told = design.told(plan.features, self._main(release), release.participants)
        news = self._news(release, design, told)
        belief, crowds, squares, drift = self._taken_in(news, release, design, told)
        belief = replace(belief, curious=False)
        # What was known before the first user is about the function of then, too.
        head = None if news.kind is Kind.CHANGE else self._head
        infer, near = partial(inferred, head, self._prior), self._posterior
        crowds, belief, state = crowds.settle(belief, lambda own: infer(own, near))
        belief = belief.with_noise(self._noise_of(squares, state))
        belief = sized(belief, squares, state.mean, self._problem.reward_bound)
        if belief.ends and not self._belief.ends:
            state = infer(belief, state)
        fit, notices = self._said(
            news,
            told,
            before=self._belief,
            expected=self._posterior,
            belief=belief,
            state=state,
            crowds=crowds,
        )
        rates = self._rates.after(release)
        if (late := rates.notice()) is not None:
            notices = (*notices, late)
        if news.kind is Kind.LEARNT:
            enough = self._enough(drift, design, told, design.spread, state)
            drift = replace(drift, enough=enough)
        longest = drift.longest(self._first_epoch, self.growth, self._options.memory)
        length = min(self.growth * release.participants, longest)
        # All but the one that was read just now and the one that has not taken its decisions yet.
        full = sorted(set(self._flights) - {plan.epoch})[:-1]
        age = belief.epochs - drift.born + len(full)
        awaited = self._awaited(full)
        conduct = self._next_conduct(state, belief, length, generator, age=age, awaited=awaited)
        stage = Stage.draw(self._problem, generator)
        # All or nothing: what failed half-way can be learnt again from the same release.
        self._belief, self._posterior, self._head = belief, state, head
        self._squares, self._crowds, self._drift = squares, crowds, drift
        self._conduct, self._stage, self._fit = conduct, stage, fit
        self._response, self._rates = response, rates
        if release.last:
            self.drop(plan.epoch)
        error = sqrt(float(np.einsum("aij,aij->", design.spread, state.covariance)))
        law = self._stage_law()
        return Lesson(
            notices=notices,
            width=error,
            active_share=float(np.count_nonzero(law)) / law.size,
            predicted_error=error,
            response_rate=response.rate if self._problem.rewards.measured else None,
            noise_share=0.0 if self._problem.budget is None else design.noise_share,
        )

    @staticmethod
    def _main(release: Release) -> FloatArray:
        """The sum of ``t psi`` in units of rewards."""
        plan, vector = release.plan, release.vector[: release.plan.features.rank]
        if plan.message is not None:
            return np.asarray(plan.value_bound * vector)
        return np.asarray(vector / _main_share(plan))

    def _read(self, release: Release, features: ArmFeatures) -> tuple[ArmDesign, Response]:
        """What the release observed, by its segments and the decisions really made in each."""
        plan, response, problem = release.plan, self._response, self._problem
        legs = zip(self._flights[plan.epoch], release.counts, strict=True)
        if features.basis.arms < self._basis.arms:  # arms were added since
            more = self._basis.arms - features.basis.arms
            blocks, sizes = Lengthened(more).blocks, features.sizes.astype(np.float64)
            features = replace(
                features, shapes=blocks(features.shapes), sizes=blocks(sizes).astype(np.int64)
            )
        played = [self._expected(leg, count) for leg, count in legs if count > 0]
        rank, bound = plan.features.rank, plan.value_bound
        if plan.message is None:
            noise = coordinate_noise(problem, rank, bound, release.participants)
            share = _main_share(plan)
            return self._expectation(features, played, bound, noise / share, share), response
        noise = plan.noise_scale
        if problem.budget is None:
            noise = coordinate_noise(problem, rank, bound, release.participants)
        sums = plan.message.sums(release.vector)
        assert sums.missing is not None
        assert sums.count is not None
        deviation = plan.message.deviation("count")
        response = response.counted(sums.count, release.participants, deviation).regressed(
            silences(features, played, sums.missing, plan.message.deviation("missing")),
            self._prior.of_shares,
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

    def _next_conduct(
        self,
        state: ArmPosterior,
        belief: Belief,
        length: float,
        generator: np.random.Generator,
        *,
        age: int | None = None,
        awaited: FloatArray | None = None,
    ) -> play.Conduct:
        """Thompson draws of what an epoch of about this length can resolve.

        ``age``: releases since the last change, by default all of them. ``awaited``: information
        that epochs under way will give.
        """
        if age is None:
            age = belief.epochs - self._drift.born
        problem, options = self._problem, self._options
        variance = belief.noise_variance(problem.reward_bound)
        spread = float(np.trace(state.covariance.mean(axis=0)))
        bound = bound_of(problem, options, belief, spread + variance).bound
        noise = 0.0
        if problem.budget is not None:
            noise = coordinate_noise(problem, _TYPICAL_DIMENSION, bound, max(1, int(length)))
        outlook = Outlook(length=length, noise=noise, variance=variance)
        draws = thompson_draws(
            state,
            outlook,
            number_of_draws(age, options.draws, outlook),
            options.thompson_scale * boldness(age),
            generator,
            awaited,
        )
        return self._conducted(play.ThompsonLaw(self._basis, draws))

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

    def state(self) -> State:
        """Basis, candidates, belief, law, and the legs of epochs that are not read yet."""
        values: dict[str, Any] = {"stage": {"is_pool": self._stage.is_pool}}
        values["belief"], arrays = apart("belief", self._belief)
        values["squares"], squares = apart("squares", self._squares)
        arrays |= apart("crowds", self._crowds)[1]
        values["basis"], basis = self._basis.state()
        values["drift"], values["fit"] = asdict(self._drift), asdict(self._fit)
        values["candidates"] = list(self._prior.candidates.names)
        basis |= {
            "covariances": self._prior.candidates.covariances,
            "shares": self._prior.candidates.shares,
            "weights": self._posterior.weights,
        }
        values["flights"], flights = flights_state(self._flights)
        if self._problem.rewards.measured:
            values["rates"], answers = asdict(self._rates), response_state(self._response)
            values |= answers[0]
            arrays |= answers[1]
        if self._head is not None:
            values["doubt"], state = self._posterior.doubt, self._posterior
            arrays |= named("head", vars(self._head))
            mixed = {"mean": state.mean, "own": state.own, "carried": state.carried}
            arrays |= named("mixed", mixed)
        conduct, law = self._conduct.state()
        arrays |= squares | named("basis", basis) | flights | law | stage_arrays(self._stage)
        return values | conduct, arrays

    def restore(self, state: State) -> None:
        """Go on from :meth:`state`."""
        values, arrays = state
        problem, own = self._problem, below("basis", arrays)
        self._basis = ArmBasis.from_state(values["basis"], own)
        names = tuple(values["candidates"])
        candidates = Candidates(own["covariances"], own["shares"], names)
        self._prior = ArmPrior(candidates, self._prior.norm_bound)
        self._belief = Belief(**below("belief", arrays), **values["belief"])
        self._squares = Squares(**below("squares", arrays), **values["squares"])
        self._crowds = Crowds(**below("crowds", arrays))
        self._drift, self._fit = Drift(**values["drift"]), Fit(**values["fit"])
        self._watch = Watch(problem, self._options, self._prior.norm_bound, self._basis)
        self._posterior = self._prior.again(self._belief, own["weights"])
        if "doubt" in values:  # something was known before the first user
            self._head = HeadStart(**below("head", arrays))
            mixed = below("mixed", arrays)
            self._posterior = replace(self._posterior, doubt=values["doubt"], **mixed)
        self._conduct = play.Conduct.from_state(
            values, arrays, self._basis, problem.actions
        ).within(problem.bounds)
        self._stage = stage_from(problem, values["stage"], arrays)
        self._flights = flights_from(values["flights"], arrays, problem, self._basis)
        self._response, self._rates = Response.unknown(*self._belief.vector.shape), Rates()
        if "response" in values:
            self._response = response_from(values, arrays)
            self._rates = Rates(**values["rates"])


def _main_share(plan: EpochPlan) -> float:
    """Share of a message's norm that carries ``t psi``, beside moment and tail."""
    return sqrt(1 - plan.moment_share**2 - plan.tail_share**2)
