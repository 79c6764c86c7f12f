"""CAPRI that learns at horizons people run: pooled releases, a public belief, Thompson play.

Same guarantee as the paper's: one noisy vector per epoch, everything else a function of earlier
releases and public draws. Each epoch asks about what the belief does not know yet, encodes only
what the last estimate missed, and plays by the law of the best action under the belief.

Written once, over blocks of coefficients: what differs between one block and many is a
model (:mod:`capri.learners.model`).
"""

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.epoch import play
from capri.epoch.learner import Learner, Lesson, State
from capri.epoch.plan import EpochPlan, Notice, Release, Schedule, Segment
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.features import Function
from capri.learners.active import DifferenceTest
from capri.learners.arms_model import ArmsModel
from capri.learners.belief import Belief, Squares
from capri.learners.codec import knowledge_from, knowledge_state
from capri.learners.context_law import ContextLaw, left_out, too_many
from capri.learners.context_support import ContextSupport
from capri.learners.crowd import Crowd
from capri.learners.crowd_report import notices_of
from capri.learners.dense_model import DenseModel
from capri.learners.learning import law_after, opening_law, taken_in
from capri.learners.messages import encoding_of, first_epoch_length, question_of, sigma_max
from capri.learners.model import Knowledge, behaviour_of
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Overdispersion
from capri.learners.prior import Observed
from capri.learners.reading import promised, read_release
from capri.learners.response import ResponseRate
from capri.learners.segments import PlannedSegment, SegmentPlay, Stage, predicted
from capri.learners.warm_start import inferred
from capri.learners.words import Watch
from capri.spaces import context_chunks

# Laws of up to so many pairs are kept with their segment: 2 MB each.
_KEPT_LAW = 1 << 18


class PracticalLearner(Learner):
    """Plans, learns and plays as described above; :class:`PracticalOptions` names the choices.

    ``blocks``: one block of coefficients for every action instead of one for all.
    """

    def __init__(
        self,
        problem: Problem,
        options: PracticalOptions,
        generator: np.random.Generator,
        *,
        blocks: bool = False,
        crowd: Crowd | None = None,
    ) -> None:
        law = ContextLaw.trusting(ContextSupport.of(problem))
        kind: type[DenseModel] | type[ArmsModel] = ArmsModel if blocks else DenseModel
        model = kind.of(problem, options, law, generator)
        belief = Belief.empty(*model.shape)
        self._known = Knowledge(
            problem=problem,
            options=options,
            model=model,
            belief=belief,
            posterior=model.prior.infer(belief),
            overdispersion=Overdispersion.empty(*model.shape),
            squares=Squares.empty(*model.shape),
            response=ResponseRate.unknown(*model.shape),
            context_law=law,
            behaviour=play.BehaviourPolicy(problem.actions, play.UniformLaw(), problem.bounds),
            stage=Stage(np.empty((0, problem.contexts.dimension)), np.empty(0), False),
            pending={},
            crowd=crowd or Crowd.of(problem, None, asked=False),
        )
        behaviour = behaviour_of(problem, opening_law(self._known, self.first_epoch, generator))
        self._known = replace(
            self._known, behaviour=behaviour, stage=Stage.draw(problem, generator)
        )
        self._watch = self._watched()

    @property
    def known(self) -> Knowledge:
        """What there is to explain."""
        return self._known

    @property
    def problem(self) -> Problem:
        """What it plays, with the actions of now and the contexts that were declared."""
        return self._known.crowd.told_by(self._known.problem)

    def on(self, problem: Problem) -> Self:
        """A copy for a problem with other actions, to restore a state into that knew them."""
        heir = copy(self)
        heir._known = replace(self._known, problem=self._known.crowd.inhabited(problem))
        return heir

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not fit in the configuration itself."""
        return self._watch.opening

    def _watched(self) -> Watch:
        """Guard rails around the basis of now."""
        problem, options, model = self._known.problem, self._known.options, self._known.model
        norm_bound = options.norm_bound or problem.reward_bound
        return Watch(problem, options, norm_bound, model.basis, model.left_out)

    # -- planning ---------------------------------------------------------------------------------

    def plan(self, epoch: int, length: int, generator: np.random.Generator) -> EpochPlan:
        """Shape the messages of an epoch under the law it will be played with."""
        if self._known.crowd.asks:
            crowd, plan = self._known.crowd.plan(self._known.problem, epoch, length)
            self._known = replace(self._known, crowd=crowd)
            return plan
        if self._known.crowd.arrives:
            self._settle_in(generator)
        self._widen(generator)
        others = set(self._known.pending) - {epoch}
        awaited = self._known.awaited(others)
        if awaited is not None and self._known.plays_again(others):
            self._draw_anew(length, generator, awaited, len(others))
        played, known = self._played(generator), self._known
        problem, model, law = known.problem, known.model, known.context_law
        question = question_of(
            problem=problem,
            options=known.options,
            basis=model.basis,
            belief=known.belief,
            state=known.posterior,
            overdispersion=known.overdispersion,
            support=played.support(law),
            epoch=epoch,
            length=length,
            rate=known.response.rate if problem.rewards.measured else 1.0,
            awaited=awaited,
            prior_variance=float(model.prior.variance(known.posterior).max()),
            noise_at=partial(model.noise_at, known),
        )
        message = model.message(question, played, law, moments=known.asks_who_comes(epoch))
        segment = self._segment(question.baseline, question.value_bound, played)
        segment = replace(segment, design=message.design)
        if message.design is None and problem.rewards.overlapping:
            # The next epochs begin before this one is released.
            segment = replace(segment, promised=promised(known, question, message, segment))
        pending = {**known.pending, epoch: (segment,)}
        self._known = replace(known, pending=pending, drift=known.drift.planned(length))
        return EpochPlan(
            epoch=epoch,
            length=length,
            features=message.features,
            tau=question.tau,
            sigma_max=sigma_max(question),
            value_bound=question.value_bound,
            clip_norm=1.0,
            layout=message.layout,
            baseline=self._subtracted(question.baseline),
        )

    def turn(self, generator: np.random.Generator) -> Segment | None:
        """The newest law, baseline and bound for the rest of the newest epoch.

        Its shape stays: coordinates of one sum cannot change.
        """
        pending = self._known.pending
        if not pending or max(pending) < self._known.crowd.waiting:
            return None
        played, known = self._played(generator), self._known
        epoch, state = max(known.pending), known.posterior
        answers = self.first_epoch if known.design is None else known.design.participants
        estimated = played.support(known.context_law).estimated(state)
        noise = known.model.noise_at(known, estimated.estimate)
        encoding = encoding_of(
            known.problem, known.options, known.belief, estimated, noise, answers
        )
        baseline = encoding.subtracted(state.mean)
        segments = (*known.pending[epoch], self._segment(baseline, encoding.bound, played))
        self._known = replace(known, pending={**known.pending, epoch: segments})
        return Segment(
            number=len(segments),
            value_bound=encoding.bound,
            baseline=self._subtracted(baseline),
        )

    def _widen(self, generator: np.random.Generator) -> None:
        """Make the basis anew where it does not know many of those who come."""
        known, law = self._known, self._known.context_law
        if left_out(law, known.basis, known.problem) > too_many(law):
            self.adopt(known.problem, generator)
            law = replace(law, left_out=left_out(law, self._known.basis, known.problem))
            self._known = replace(self._known, context_law=law)

    def _draw_anew(
        self, length: int, generator: np.random.Generator, awaited: FloatArray, waiting: int
    ) -> None:
        """Another law from the same belief."""
        known = self._known
        law = known.model.law(known, length, generator, awaited=awaited, waiting=waiting)
        stage = replace(known.stage, law=None)
        self._known = replace(known, behaviour=behaviour_of(known.problem, law), stage=stage)

    def _played(self, generator: np.random.Generator) -> Any:
        """What the coming epoch may play."""
        self._stage_law()
        known = self._known
        elsewhere = known.context_law.elsewhere
        return known.model.played(known.stage, known.behaviour, elsewhere, generator)

    def _segment(
        self, baseline: FloatArray, value_bound: float, played: SegmentPlay
    ) -> PlannedSegment:
        """A segment that plays the law of now."""
        law, known = self._stage_law(), self._known
        stage = known.stage
        if law.size > _KEPT_LAW:
            stage = replace(stage, law=None)  # computed again when the release is read
        return PlannedSegment(
            known.behaviour,
            stage,
            baseline,
            value_bound,
            known.belief.epochs,
            played=played if played.kept else None,
        )

    def _subtracted(self, baseline: FloatArray) -> Function | None:
        """What is subtracted from rewards; None for nothing."""
        return self._known.basis.function(baseline.ravel()) if baseline.any() else None

    # -- learning ---------------------------------------------------------------------------------

    def learn(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Update the belief and the law."""
        known, plan = self._known, release.plan
        if plan.epoch == known.crowd.waiting:
            return self._meet(release, generator)
        if plan.epoch not in known.pending:
            raise ConfigurationError("a release needs the plan it was made with")
        read = read_release(known, release, generator)
        learnt, notices = taken_in(
            known, self._watch, release, read, first=self.first_epoch, growth=self.growth
        )
        waiting, model = known.under_way(plan.epoch), known.model
        model.pass_over(generator)
        length = min(self.growth * release.participants, self._longest(learnt))
        law = model.law(
            learnt, length, generator, awaited=known.awaited(waiting), waiting=len(waiting)
        )
        behaviour, stage = behaviour_of(known.problem, law), Stage.draw(known.problem, generator)
        # All or nothing: what failed half-way can be learnt again from the same release.
        self._known = replace(learnt, behaviour=behaviour, stage=stage)
        if release.last:
            self.drop(plan.epoch)
        error, played = learnt.posterior.error(read.design.spread), self._stage_law()
        private, measured = known.problem.budget is not None, known.problem.rewards.measured
        return Lesson(
            width=error,
            active_share=float(np.count_nonzero(played)) / played.size,
            predicted_error=error,
            noise_share=read.design.noise_share if private else 0.0,
            response_rate=read.response.rate if measured else None,
            mismatch=learnt.pool_test.mismatch if known.problem.sends_products else None,
            notices=notices,
        )

    def _meet(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Take in what an epoch told of contexts alone: the next plan goes by it."""
        crowd = self._known.crowd.after(release, generator)
        self._known = replace(self._known, crowd=crowd)
        return Lesson(width=self.problem.reward_bound, active_share=1.0, notices=notices_of(crowd))

    def _settle_in(self, generator: np.random.Generator) -> None:
        """Go by the learnt pool; what was learnt by the ranges passes to it."""
        known, crowd = self._known, replace(self._known.crowd, lived=True)
        problem, blocks = crowd.inhabited(known.problem), isinstance(known.model, ArmsModel)
        if known.begun:
            self._known = replace(known.among(problem), crowd=crowd)
            self.adopt(problem, generator)
        else:
            fresh = PracticalLearner(problem, known.options, generator, blocks=blocks, crowd=crowd)
            self._known, self._watch = fresh._known, fresh._watch

    # -- lengths of epochs ------------------------------------------------------------------------

    @property
    def growth(self) -> float:
        """Growth of the epochs."""
        terms, options = self.problem.schedule, self._known.options
        growth = options.growth if terms is None else terms.growth
        return min(growth, self._known.model.fastest_growth)

    @property
    def first_epoch(self) -> int:
        """As it was asked for, or by the noise."""
        terms, options = self.problem.schedule, self._known.options
        asked = options.first_epoch if terms is None else terms.first_epoch
        return asked or first_epoch_length(self.problem)

    def length(self, schedule: Schedule, epoch: int, decided: int) -> int:
        """By the schedule, which begins when it is known who comes."""
        known = self._known
        return known.crowd.scheduled(known.problem, schedule, epoch, decided, self.longest)

    @property
    def longest(self) -> float:
        """By what the last release left to learn, and short again after a change."""
        return self._longest(self._known)

    def _longest(self, known: Knowledge) -> float:
        return known.drift.longest(self.first_epoch, self.growth, known.options.memory)

    def shortest(self, length: int) -> int:
        """As short as the first after a change, or as what is asked of contexts next."""
        length = int(min(length, self._known.crowd.shortest(self.first_epoch)))
        return self._known.drift.shortest(length, self.first_epoch)

    def obsolete(self, epoch: int) -> bool:
        """Whether it began to clip residuals around an estimate that was given up since."""
        return self._known.drift.obsolete(self._known.pending.get(epoch, ()))

    def keep(self, epoch: int | None) -> None:
        """Await nothing of epochs that are lost, and of this one only what is still to come."""
        self._known = self._known.keeping(epoch)

    def drop(self, epoch: int) -> None:
        """Forget the segments of an epoch that will never be released."""
        self._known = self._known.without(epoch)

    # -- other actions, and what was known before the first user ----------------------------------

    def begin(self, observed: Observed, generator: np.random.Generator) -> None:
        """Take in what is known before the first user, and play by it."""
        known, model = self._known, self._known.model
        start = model.warm_start(observed)
        posterior = inferred(start, model.prior, known.belief, None)
        stage = replace(known.stage, law=None)
        self._known = replace(known, warm_start=start, posterior=posterior, stage=stage)
        law = opening_law(self._known, self.first_epoch, generator)
        self._known = replace(self._known, behaviour=behaviour_of(known.problem, law))

    def amend(self, problem: Problem) -> None:
        """Play the law of now within the limits of another problem."""
        known, problem = self._known, self._known.crowd.inhabited(problem)
        behaviour = behaviour_of(problem, known.behaviour.law)
        stage = replace(known.stage, law=None)
        self._known = replace(known, problem=problem, behaviour=behaviour, stage=stage)
        self._watch = replace(self._watch, problem=problem)

    def accepts(self, problem: Problem) -> None:
        """Refuse actions that the model cannot go on with."""
        self._known.model.accepts(problem)

    def adopt(self, problem: Problem, generator: np.random.Generator) -> None:
        """Go on with other actions from the next plan: what was learnt stays."""
        self.accepts(problem)
        known = self._known
        problem = known.crowd.inhabited(problem)
        model, change = known.model.changed(known.problem, problem, known.context_law, generator)
        belief, start = change.belief(known.belief), change.warm_start(known.warm_start)
        if start is None and change.same_prior:  # what is new says nothing of the old
            posterior = model.prior.again(belief, known.posterior.weights)
        else:
            posterior = inferred(start, model.prior, belief, known.posterior)
        heir = replace(
            known,
            problem=problem,
            model=model,
            belief=belief,
            warm_start=start,
            posterior=posterior,
            overdispersion=change.overdispersion(known.overdispersion),
            squares=change.squares(known.squares),
            response=change.response(known.response),
            pending=change.pending(known.pending, problem.actions.dimension),
            stage=Stage.draw(problem, generator),
        )
        law, curious = law_after(heir, change, self.first_epoch, generator)
        self._known = replace(  # all or nothing
            heir, belief=replace(belief, curious=curious), behaviour=behaviour_of(problem, law)
        )
        self._watch = self._watched()

    # -- playing ----------------------------------------------------------------------------------

    def behaviour(self) -> play.BehaviourPolicy:
        """The law of the open epoch."""
        return self._known.behaviour

    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """The law of the open epoch."""
        return self._known.behaviour.probabilities(contexts, available)

    def _stage_law(self) -> FloatArray:
        """The law at the contexts the coming epoch is planned on, computed once."""
        known = self._known
        law = known.stage.law_of(known.behaviour)
        if known.stage.law is None:
            self._known = replace(known, stage=replace(known.stage, law=law))
        return law

    def pool_law(self) -> FloatArray | None:
        """The law for every context of a pool that fits in a table.

        None where the plan expects sets of available actions: it is another law without them.
        """
        bounds = self._known.behaviour.bounds
        expects = bounds is not None and bounds.masks is not None
        away = expects or self._known.crowd.lived
        return self._stage_law() if self._known.stage.is_pool and not away else None

    def estimate(self, contexts: FloatArray) -> FloatArray:
        """Posterior mean of ``f``."""
        known = self._known
        function = known.basis.function(known.posterior.mean.ravel())
        return predicted(function, known.problem.actions, contexts)

    def active(self, contexts: FloatArray) -> BoolArray:
        """Actions that may still be the best, by a test that is calibrated when it is asked for."""
        active = np.ones((len(contexts), self.problem.actions.count), dtype=np.bool_)
        if (test := self.difference_test()) is not None:
            for part in context_chunks(*active.shape):
                active[part] = test.active(self.problem.actions.pairs(contexts[part]))
        return active

    def difference_test(self) -> DifferenceTest | None:
        """How far estimates of two actions must be apart to tell which is better."""
        return self._known.model.difference_test(self._known)

    # -- storage ----------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that is known, as JSON values and arrays."""
        return knowledge_state(self._known)

    def restore(self, state: State) -> None:
        """Go on from :meth:`state`, to the bit."""
        self._known = knowledge_from(self._known, state)
        self._watch = self._watched()
