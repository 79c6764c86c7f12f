"""What every learner offers. A learner sees plans, releases and public draws; never a user."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import Any, Self

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.epoch.plan import EpochPlan, Notice, Release, Schedule, Segment
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError

State = tuple[dict[str, Any], dict[str, FloatArray]]


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a release taught: the width of the estimate and the share of pairs still in play.

    ``notices``: what does not fit as of this release, said before or not.
    """

    width: float
    active_share: float
    predicted_error: float | None = None
    noise_share: float | None = None
    response_rate: float | None = None
    mismatch: float | None = None
    notices: tuple[Notice, ...] = ()


class Learner(ABC):
    """Plans epochs and turns releases into a way to play. Everything it holds is public."""

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """What it plays, with the actions of now."""

    @abstractmethod
    def on(self, problem: Problem) -> Self:
        """A copy for a problem with other actions, to restore a state into that knew them."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not fit in the configuration itself: known before any user."""
        return ()

    @abstractmethod
    def plan(self, epoch: int, length: int, generator: np.random.Generator) -> EpochPlan:
        """Decide an epoch before its first decision, from earlier releases and public draws."""

    @property
    def first_epoch(self) -> int:
        """Length of a first epoch that fits the noise."""
        return 1

    @property
    def growth(self) -> float:
        """What epochs may grow by at most, from one to the next."""
        return inf

    @property
    def longest(self) -> float:
        """Decisions that the next epoch may have at most, by what releases say."""
        return inf

    def length(self, schedule: Schedule, epoch: int, decided: int) -> int:
        """Decisions of an epoch that begins after so many; 0 at the horizon."""
        return int(min(schedule.after(decided, epoch), self.longest))

    def shortest(self, length: int) -> int:
        """As ``length``, or less where a release that is due may cut the next epoch short."""
        return length

    def obsolete(self, epoch: int) -> bool:
        """Whether an epoch under way was planned for a function that has changed since."""
        return False

    def turn(self, generator: np.random.Generator) -> Segment | None:
        """The segment with which the newest epoch goes on after a release of an earlier one.

        None where an epoch keeps to the law it was planned with.
        """
        return None

    def drop(self, epoch: int) -> None:  # noqa: B027 - most learners keep nothing of an epoch
        """An epoch will never be released."""

    def accepts(self, problem: Problem) -> None:
        """Refuse a problem with other actions that this learner could not go on with."""
        raise ConfigurationError(
            "the paper's algorithm rules actions out for good and learns nothing across epochs: "
            "only preset 'practical' replaces actions. Build a new policy"
        )

    def adopt(self, problem: Problem, generator: np.random.Generator) -> None:
        """Go on with other actions from the next plan: what was learnt stays by the kernel."""
        self.accepts(problem)

    @abstractmethod
    def amend(self, problem: Problem) -> None:
        """Go on with the same actions under other limits, rewards or schedules."""

    def keep(self, epoch: int | None) -> None:  # noqa: B027 - most learners keep nothing
        """Of epochs that were under way only this one is left, and its data so far are lost."""

    @abstractmethod
    def learn(self, release: Release, generator: np.random.Generator) -> Lesson:
        """Take in what a closed epoch released."""

    @abstractmethod
    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """The sampling law of the open epoch: ``(n, n_actions)``, rows sum to 1.

        ``available``: sets of actions that it is to keep to, one row each.
        """

    @abstractmethod
    def pool_law(self) -> FloatArray | None:
        """The law of the open epoch for every pool context, or None where that is too large."""

    @abstractmethod
    def estimate(self, contexts: FloatArray) -> FloatArray:
        """The current estimate of ``f``: ``(n, n_actions)``."""

    @abstractmethod
    def active(self, contexts: FloatArray) -> BoolArray:
        """Which actions are still in play: ``(n, n_actions)`` of True and False."""

    @abstractmethod
    def state(self) -> State:
        """Everything needed to go on later, as JSON values and arrays."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go on from :meth:`state`."""
