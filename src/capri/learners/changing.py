"""What every practical learner does alike.

It plays by a public law, takes a release for what it is, and reckons with a function that changes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.epoch import play
from capri.epoch.learner import Learner, Lesson
from capri.epoch.notice import Notice
from capri.epoch.plan import Release
from capri.epoch.play import priced
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.features import Span
from capri.learners import words
from capri.learners.belief import Belief, Squares, Told
from capri.learners.boundary import sized
from capri.learners.context_law import ContextLaw, Moments
from capri.learners.drift import (
    ALARM,
    Drift,
    Kind,
    News,
    Nothing,
    Prospect,
    enough,
    faded,
    noise_kept,
    renewed,
)
from capri.learners.fit import Fit
from capri.learners.messages import first_epoch_length
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Crowds
from capri.learners.priors import ToldPrior
from capri.learners.reading import Leg, Read, cuts_off_too_much, measured_square
from capri.learners.response import Response
from capri.learners.start import HeadStart, inferred
from capri.learners.support import Stage
from capri.learners.tails import noise_of, pooled, restored_square, too_heavy
from capri.learners.watch import Comers, Rates, Watch
from capri.privacy.budget import PrivacyModel

# Laws of up to so many pairs are kept with their leg: 2 MB each.
_KEPT_LAW = 1 << 18
# Contexts of a sampler on which shares are priced.
_PRICED_CONTEXTS = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """Public through and through: the problem, and what the releases made of it.

    Prior and posterior are whole or in blocks, as the basis is.
    """

    problem: Problem
    basis: Span
    prior: Any
    belief: Belief
    posterior: Any
    crowds: Crowds
    drift: Drift


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A release as the learner takes it in.

    ``design``: what was expected of it; ``told``: what it says, block by block; ``spread``:
    ``E[v v^T]`` of what was played. ``whole``: the basis can hold the function. ``response``: who
    answers; ``law``: who comes, and what ``moments`` of it say so.
    """

    design: Read
    told: Sequence[Told]
    spread: FloatArray
    response: Response
    law: ContextLaw
    moments: Moments | None = None
    whole: bool = True


class ChangingLearner(Learner):
    """Takes a release for what it is, and says how long epochs may be.

    Beliefs are whole or in blocks: a release is told block by block.
    """

    _options: PracticalOptions
    _basis: Span
    _conduct: play.Conduct
    _stage: Stage
    _belief: Belief
    # The legs of every epoch that is planned and not yet read; only the newest takes decisions.
    _flights: dict[int, tuple[Leg, ...]]
    _prior: Any
    _posterior: Any
    _crowds: Crowds
    _squares: Squares
    _drift: Drift
    _fit: Fit
    _watch: Watch
    _response: Response
    _rates: Rates
    _context_law: ContextLaw
    _comers: Comers

    # What was known before the first user; None for nothing.
    _head: HeadStart[Any] | None = None

    def _infer(self, belief: Belief, near: Any) -> Any:
        """What releases make of the prior, and of what was known before them."""
        return inferred(self._head, self._prior, belief, near)

    @property
    def _learns_contexts(self) -> bool:
        """Whether messages tell who comes."""
        return False

    def knowledge(self) -> Knowledge:
        """What there is to explain."""
        return Knowledge(
            problem=self._problem,
            basis=self._basis,
            prior=self._prior,
            belief=self._belief,
            posterior=self._posterior,
            crowds=self._crowds,
            drift=self._drift,
        )

    @abstractmethod
    def _read(self, release: Release, generator: np.random.Generator) -> Reading:
        """What the release observed, who answered, and who came."""

    @abstractmethod
    def _learnt_law(
        self,
        release: Release,
        belief: Belief,
        drift: Drift,
        state: Any,
        generator: np.random.Generator,
    ) -> play.ThompsonLaw:
        """The law after a release."""

    def learn(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Update the belief and the law."""
        plan, before, problem = release.plan, self._belief, self._problem
        if plan.epoch not in self._flights:
            raise ConfigurationError("a release needs the plan it was made with")
        read = self._read(release, generator)
        news = self._news(release, read)
        belief, crowds, squares, drift = self._taken_in(news, release, read)
        if not self._flights[plan.epoch][0].moved:
            belief = replace(belief, curious=False)
        # What was known before the first user is about the function of then, too.
        head = None if news.kind is Kind.CHANGE else self._head
        near, infer = self._posterior, partial(inferred, head, self._prior)
        if isinstance(self._prior, ToldPrior):
            state = infer(belief, near)
        else:
            crowds, belief, state = crowds.settle(belief, lambda own: infer(own, near))
        belief = belief.with_noise(self._noise_of(squares, state))
        belief = sized(belief, squares, state.mean, problem.reward_bound)
        if belief.ends and not before.ends:
            state = infer(belief, state)
        fit, notices = self._said(
            news,
            read.told,
            before=before,
            expected=near,
            belief=belief,
            state=state,
            crowds=crowds,
        )
        rates = self._rates.after(release)
        comers, strangers = self._comers.after(read.moments, *read.law.mismatch)
        notices += tuple(each for each in (rates.notice(), strangers) if each is not None)
        if news.kind is Kind.LEARNT:
            drift = replace(drift, enough=self._enough(drift, read, state))
        law = self._learnt_law(release, belief, drift, state, generator)
        stage = Stage.draw(problem, generator)
        # All or nothing: what failed half-way can be learnt again from the same release.
        self._belief, self._posterior, self._head = belief, state, head
        self._crowds, self._squares, self._fit, self._drift = crowds, squares, fit, drift
        self._response, self._rates = read.response, rates
        self._context_law, self._comers = read.law, comers
        self._conduct, self._stage = self._conducted(law), stage
        if release.last:
            self.drop(plan.epoch)
        error, played = state.error(read.spread), self._stage_law()
        return Lesson(
            width=error,
            active_share=float(np.count_nonzero(played)) / played.size,
            predicted_error=error,
            noise_share=0.0 if problem.budget is None else read.design.noise_share,
            response_rate=read.response.rate if problem.rewards.measured else None,
            mismatch=comers.mismatch if self._learns_contexts else None,
            notices=notices,
        )

    @property
    def growth(self) -> float:
        """Growth of the epochs."""
        return self._options.growth

    @property
    def _first_epoch(self) -> int:
        return self._options.first_epoch or first_epoch_length(self._problem)

    @property
    def longest(self) -> float:
        """By what the last release left to learn, and short again after a change."""
        return self._drift.longest(self._first_epoch, self.growth, self._options.memory)

    def shortest(self, length: int) -> int:
        """A release that tells of a change makes the next epoch as short as the first."""
        return self._drift.shortest(length, self._first_epoch)

    def obsolete(self, epoch: int) -> bool:
        """Whether it began to clip residuals around an estimate that was given up since."""
        return self._drift.obsolete(self._flights.get(epoch, ()))

    def _news(self, release: Release, read: Reading) -> News:
        """What a release is good for, by what was believed before it."""
        design = read.design
        state, before, drift = self._posterior, self._belief, self._drift
        if drift.stale(self._flights[release.plan.epoch], release.counts):
            return News(Kind.STALE)
        bound = self._problem.reward_bound
        if self._problem.model is PrivacyModel.LOCAL:
            heavy = too_heavy(pooled(self._squares, release, design, bound))
        else:
            heavy = cuts_off_too_much(release, design, bound)
        if self._options.memory == np.inf:
            return News(Kind.HEAVY if heavy else Kind.LEARNT)
        return drift.news(
            [
                (block, self._crowds.seen(observation), part)
                for block, observation, part in read.told
            ],
            expected=state,
            fade=lambda keep: self._prior.again(faded(before, keep), state.weights),
            empty=Nothing(np.zeros_like(state.mean), self._prior.root(state)),
            heavy=heavy,
            whole=read.whole,
        )

    def _taken_in(
        self, news: News, release: Release, read: Reading
    ) -> tuple[Belief, Crowds, Squares, Drift]:
        """What is believed after a release, before anything is made of it."""
        before, bound, squares = self._belief, self._problem.reward_bound, self._squares
        design, told = read.design, read.told
        if news.kind is Kind.STALE:
            return replace(before, epochs=before.epochs + 1), self._crowds, squares, self._drift
        size = before.vector.shape
        drift = self._drift.after(news, before.epochs + 1)
        if news.kind is Kind.CHANGE:
            kept = noise_kept(squares, before, bound)
            return renewed(before), Crowds.empty(*size), kept, drift
        if news.kind is Kind.HEAVY:
            return before.start_again(), Crowds.empty(*size), Squares.empty(*size), drift
        drift, kept_share = drift.remembered(release.participants, self._options.memory)
        keep = news.keep * kept_share
        squares = faded(squares, keep)
        if self._problem.model is PrivacyModel.LOCAL:
            squares = pooled(squares, release, design, bound)
            found = restored_square(squares, release, design, bound)
        else:
            found = measured_square(release, design, bound)
        squares = squares.measured(*found, design.squares)
        crowds = faded(self._crowds, keep).observe(told)
        return faded(before, keep).observe(told), crowds, squares, drift

    def _noise_of(self, squares: Squares, state: Any) -> tuple[float, float] | None:
        """The variance of the reward noise as measured, and the precision of it."""
        if self._problem.budget is None or self._problem.model is not PrivacyModel.LOCAL:
            return squares.noise(state)
        return noise_of(squares, state, self._problem.reward_bound)

    def _said(
        self, news: News, told: Sequence[Told], **known: Any
    ) -> tuple[Fit, tuple[Notice, ...]]:
        """How releases fit by now, and what there is to say."""
        if news.kind is Kind.STALE:
            return self._fit, ()
        if news.kind is Kind.CHANGE:
            return Fit(), (words.drift(news.nats, ALARM),)
        return self._watch.after(self._fit, told, **known)

    @abstractmethod
    def _stakes(self, state: Any) -> float:
        """The spread of the estimate over actions, which is what there is to lose."""

    def _enough(self, drift: Drift, read: Reading, state: Any) -> float:
        """How long epochs must be to tell nearly as much as by the schedule.

        Where every decision has noise of its own, all lengths tell the same; where reports are
        mixed, many of them need less noise each, and epochs are as long as scheduled.
        """
        first, problem = self._first_epoch, self._problem
        least = drift.least(first)
        if problem.shuffle is not None:
            return max(least, first + (self.growth - 1) * drift.begun)
        if problem.budget is None or problem.model is PrivacyModel.LOCAL:
            return least
        return enough(
            [
                Prospect(seen, state.factor[block], read.spread[block])
                for block, seen, _ in read.told
            ],
            self._stakes(state),
            noise=read.design.noise,
            least=least,
            most=first + (self.growth - 1) * drift.begun,
        )

    # -- playing ---------------------------------------------------------------------------------

    def conduct(self) -> play.Conduct:
        """The law of the open epoch."""
        return self._conduct

    def active(self, contexts: FloatArray) -> BoolArray:
        """Every action: nothing is ruled out for good."""
        return np.ones((len(contexts), self._problem.actions.count), dtype=np.bool_)

    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """The law of the open epoch."""
        return self._conduct.probabilities(contexts, available)

    def _conducted(self, law: play.Law) -> play.Conduct:
        """A law within the limits of the problem."""
        problem = self._problem
        if problem.on_devices and isinstance(law, play.ThompsonLaw):
            law = law.rounded()
        conduct = play.Conduct(problem.actions, law, problem.bounds)
        if problem.bounds is None or problem.bounds.shares is None:
            return conduct
        public = np.random.default_rng(0)  # no draw of others moves
        return priced(conduct, *problem.contexts.support(public, _PRICED_CONTEXTS))

    def _stage_law(self) -> FloatArray:
        """The law at the contexts the coming epoch is planned on, computed once."""
        law = self._stage.law
        if law is None:
            law = self._conduct.expected(self._stage.contexts)
            self._stage = replace(self._stage, law=law)
        return law

    def pool_law(self) -> FloatArray | None:
        """The law for every context of a pool that fits in a table.

        None where the plan expects sets of available actions: it is another law without them.
        """
        bounds = self._conduct.bounds
        expects = bounds is not None and bounds.masks is not None
        return self._stage_law() if self._stage.is_pool and not expects else None

    # -- epochs that are not read yet -------------------------------------------------------------

    def _leg(self, baseline: FloatArray, value_bound: float) -> Leg:
        """A segment that plays the law of now."""
        law, stage = self._stage_law(), self._stage
        if law.size > _KEPT_LAW:
            stage = replace(stage, law=None)  # computed again when the release is read
        return Leg(self._conduct, stage, baseline, value_bound, self._belief.epochs)

    def keep(self, epoch: int | None) -> None:
        """Await nothing of epochs that are lost, and of this one only what is still to come."""
        legs = self._flights.get(epoch or 0, ())
        lost = tuple(replace(leg, design=None, promised=None) for leg in legs)
        self._flights = {epoch: lost} if epoch is not None and lost else {}

    def drop(self, epoch: int) -> None:
        """Forget the legs of an epoch that will never be released."""
        self._flights = {number: legs for number, legs in self._flights.items() if number != epoch}
