"""The part of the practical learner that reckons with a function that changes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.notice import Notice
from capri.epoch.plan import Release
from capri.learners.belief import Belief, Told
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
from capri.learners.guards.watch import Watch
from capri.learners.lengths import Prospect, enough
from capri.learners.messages import first_epoch_length
from capri.learners.options import PracticalOptions
from capri.learners.playing import PlayingLearner
from capri.learners.reading import Read, cuts_off_too_much, measured_square
from capri.learners.squares import Squares
from capri.learners.tails import noise_of, pooled, restored_square, too_heavy
from capri.privacy.promise import PrivacyModel


class ChangingLearner(PlayingLearner):
    """Takes a release for what it is, and says how long epochs may be.

    Beliefs are whole or in blocks: a release is told block by block.
    """

    _options: PracticalOptions
    _prior: Any
    _posterior: Any
    _crowds: Crowds
    _squares: Squares
    _drift: Drift
    _fit: Fit
    _watch: Watch

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

    def _news(
        self, release: Release, design: Read, told: Sequence[Told], *, whole: bool = True
    ) -> News:
        """What a release is good for, by what was believed before it.

        ``whole``: the basis can hold the function.
        """
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
            [(block, self._crowds.seen(observation), part) for block, observation, part in told],
            expected=state,
            fade=lambda keep: self._prior.again(faded(before, keep), state.weights),
            empty=Nothing(np.zeros_like(state.mean), self._prior.root(state)),
            heavy=heavy,
            whole=whole,
        )

    def _taken_in(
        self, news: News, release: Release, design: Read, told: Sequence[Told]
    ) -> tuple[Belief, Crowds, Squares, Drift]:
        """What is believed after a release, before anything is made of it."""
        before, bound, squares = self._belief, self._problem.reward_bound, self._squares
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

    def _enough(
        self, drift: Drift, design: Read, told: Sequence[Told], spread: FloatArray, state: Any
    ) -> float:
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
            [Prospect(seen, state.factor[block], spread[block]) for block, seen, _ in told],
            self._stakes(state),
            noise=design.noise,
            least=least,
            most=first + (self.growth - 1) * drift.begun,
        )
