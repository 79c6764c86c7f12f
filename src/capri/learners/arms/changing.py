"""Arms whose rewards change: :mod:`capri.learners.changing` in blocks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.plan import Release
from capri.epoch.problem import Problem
from capri.learners.arms.evidence import ArmPrior
from capri.learners.arms.messages import ArmDesign
from capri.learners.arms.observe import nothing_known, nothing_measured, observed
from capri.learners.arms.posterior import ArmPosterior
from capri.learners.belief import Belief, Observation
from capri.learners.crowds import Crowds
from capri.learners.drift import Drift, Kind, News, Nothing, faded, noise_kept, renewed
from capri.learners.lengths import Told, enough
from capri.learners.messages import first_epoch_length
from capri.learners.options import PracticalOptions
from capri.learners.playing import PlayingLearner
from capri.learners.reading import Leg, cuts_off_too_much, measured_square
from capri.learners.squares import Squares

ToldArms = Sequence[tuple[int, Observation, FloatArray]]


class ChangingArms(PlayingLearner):
    """Takes a release for what it is, and says how long epochs may be."""

    _problem: Problem
    _options: PracticalOptions
    _prior: ArmPrior
    _belief: Belief
    _squares: Squares
    _crowds: Crowds
    _posterior: ArmPosterior
    _flights: dict[int, tuple[Leg, ...]]
    _drift: Drift

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

    def _news(self, release: Release, design: ArmDesign, told: ToldArms) -> News:
        """What a release is good for, by what was believed before it."""
        state, before = self._posterior, self._belief
        if self._drift.stale(self._flights[release.plan.epoch], release.counts):
            return News(Kind.STALE)
        heavy = cuts_off_too_much(release, design, self._problem.reward_bound)
        if self._options.memory == np.inf:
            return News(Kind.HEAVY if heavy else Kind.LEARNT)
        root = np.linalg.cholesky(sum(self._prior.covariances(state.weights)))
        return self._drift.news(
            [(arm, self._crowds.seen(observation), part) for arm, observation, part in told],
            expected=state,
            fade=lambda keep: self._prior.again(faded(before, keep), state.weights),
            empty=Nothing(
                np.zeros_like(state.mean), np.broadcast_to(root, (len(state.mean), *root.shape))
            ),
            heavy=heavy,
        )

    def _taken_in(
        self, news: News, release: Release, design: ArmDesign, told: ToldArms
    ) -> tuple[Belief, Crowds, Squares, Drift]:
        """What is believed after a release, before anything is made of it."""
        before, bound, drift = self._belief, self._problem.reward_bound, self._drift
        if news.kind is Kind.STALE:
            return replace(before, epochs=before.epochs + 1), self._crowds, self._squares, drift
        size = before.vector.shape
        drift = drift.after(news, before.epochs + 1)
        if news.kind is Kind.CHANGE:
            squares = noise_kept(self._squares, before, bound)
            return renewed(before), Crowds.empty(*size), squares, drift
        if news.kind is Kind.HEAVY:
            again = replace(nothing_known(*size), epochs=before.epochs + 1, heavy_tails=True)
            return again, Crowds.empty(*size), nothing_measured(*size), drift
        drift, kept = drift.remembered(release.participants, self._options.memory)
        keep = news.keep * kept
        squares = faded(self._squares, keep).measured(
            *measured_square(release, design, bound), design.squares
        )
        crowds = faded(self._crowds, keep).observe(told)
        return observed(faded(before, keep), told), crowds, squares, drift

    def _enough(
        self, drift: Drift, design: ArmDesign, told: ToldArms, state: ArmPosterior
    ) -> float:
        """How long epochs must be to tell nearly as much as by the schedule."""
        first = self._first_epoch
        least = drift.least(first)
        if self._problem.budget is None:
            return least
        blocks = [
            Told(observation, state.factor[arm], design.spread[arm]) for arm, observation, _ in told
        ]
        return enough(
            blocks,
            float(np.sqrt(state.mean.var(axis=0).sum())),
            noise=design.noise,
            least=least,
            most=first + (self.growth - 1) * drift.begun,
        )
