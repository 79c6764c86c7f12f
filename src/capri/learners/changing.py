"""The part of the practical learner that reckons with a function that changes."""

from dataclasses import replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.notice import Notice
from capri.epoch.plan import Release
from capri.learners.belief import Belief, Posterior
from capri.learners.crowds import Crowds
from capri.learners.drift import (
    ALARM,
    Drift,
    Kind,
    News,
    Nothing,
    faded,
    noise_kept,
    renewed,
)
from capri.learners.guards import words
from capri.learners.guards.fit import Fit
from capri.learners.lengths import Told, enough
from capri.learners.messages import Design
from capri.learners.reading import cuts_off_too_much, measured_square
from capri.learners.squares import Squares
from capri.learners.stored import StoredLearner
from capri.learners.tails import noise_of, pooled, restored_square, too_heavy
from capri.privacy.promise import PrivacyModel

# A basis that leaves out so many times what it may never fits, whether the function changes or not.
_LEFT_OUT = 2.0


class ChangingLearner(StoredLearner):
    """Takes a release for what it is, and says how long epochs may be."""

    _first_epoch: int

    @property
    def longest(self) -> float:
        """By what the last release left to learn, and short again after a change."""
        options = self._options
        return self._drift.longest(self._first_epoch, options.growth, options.memory)

    def shortest(self, length: int) -> int:
        """A release that tells of a change makes the next epoch as short as the first."""
        return self._drift.shortest(length, self._first_epoch)

    def obsolete(self, epoch: int) -> bool:
        """Whether it began to clip residuals around an estimate that was given up since."""
        return self._drift.obsolete(self._flights.get(epoch, ()))

    def _news(self, release: Release, design: Design, released: FloatArray, before: Belief) -> News:
        """What a release is good for, by what was believed before it."""
        state, drift = self._posterior, self._drift
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
            [(..., self._crowds.seen(design.observation), released)],
            expected=state,
            fade=lambda keep: self._prior.again(faded(before, keep), state.weights),
            empty=Nothing(np.zeros_like(state.mean), self._prior.root(state)),
            heavy=heavy,
            whole=design.left_out <= _LEFT_OUT * self._options.rank_tolerance,
        )

    def _taken_in(
        self, news: News, release: Release, design: Design, released: FloatArray, before: Belief
    ) -> tuple[Belief, Crowds, Squares, Drift]:
        """What is believed after a release, before anything is made of it."""
        bound, crowds, squares = self._problem.reward_bound, self._crowds, self._squares
        if news.kind is Kind.STALE:
            return replace(before, epochs=before.epochs + 1), crowds, squares, self._drift
        nothing = Crowds.empty(self._basis.rank)
        if news.kind is Kind.CHANGE:
            belief, crowds, squares = renewed(before), nothing, noise_kept(squares, before, bound)
            return belief, crowds, squares, self._drift.after(news, belief.epochs)
        if news.kind is Kind.HEAVY:
            belief, squares = before.start_again(), Squares.empty(self._basis.rank)
            return belief, nothing, squares, self._drift.after(news, belief.epochs)
        drift, kept = self._drift.after(news, before.epochs + 1).remembered(
            release.participants, self._options.memory
        )
        keep = news.keep * kept
        squares = faded(squares, keep)
        if self._problem.model is PrivacyModel.LOCAL:
            squares = pooled(squares, release, design, bound)
            found = restored_square(squares, release, design, bound)
        else:
            found = measured_square(release, design, bound)
        squares = squares.measured(*found, design.squares)
        belief = faded(before, keep).observe(design.observation, released)
        crowds = faded(crowds, keep).observe([(..., design.observation, released)])
        return belief, crowds, squares, drift

    def _noise_of(self, squares: Squares, state: Posterior) -> tuple[float, float] | None:
        """The variance of the reward noise as measured, and the precision of it."""
        if self._problem.budget is None or self._problem.model is not PrivacyModel.LOCAL:
            return squares.noise(state)
        return noise_of(squares, state, self._problem.reward_bound)

    def _said(
        self, news: News, design: Design, released: FloatArray, **known: Any
    ) -> tuple[Fit, tuple[Notice, ...]]:
        """How releases fit by now, and what there is to say."""
        if news.kind is Kind.STALE:
            return self._fit, ()
        if news.kind is Kind.CHANGE:
            return Fit(), (words.drift(news.nats, ALARM),)
        return self._watch.after(self._fit, design, released, **known)

    def _enough(self, drift: Drift, design: Design, state: Posterior) -> float:
        """How long epochs must be to tell nearly as much as by the schedule.

        Where every decision has noise of its own, all lengths tell the same; where reports are
        mixed, many of them need less noise each, and epochs are as long as scheduled.
        """
        first, problem = self._first_epoch, self._problem
        least = drift.least(first)
        if problem.shuffle is not None:
            return max(least, first + (self._options.growth - 1) * drift.begun)
        if problem.budget is None or problem.model is PrivacyModel.LOCAL:
            return least
        values = self._rehearsal.features @ state.mean
        return enough(
            [Told(design.observation, state.factor, design.spread)],
            float(np.sqrt(values.var(axis=1).mean())),
            noise=design.noise,
            least=least,
            most=first + (self._options.growth - 1) * drift.begun,
        )
