"""What every rival is: a promise, a reference, and turns of deciding and learning.

A rival plays on finitely many pairs: a pool of contexts times the actions. It decides in *batches*
within which decisions do not depend on rewards (a batch of 1 for the sequential ones) and learns
when the rewards of a batch are in. This class keeps the books; a rival adds two methods, which see
positions in the pool and never a context itself:

- ``_choose(context)``: actions and their propensities, for the next decisions of the batch;
- ``_learn(context, action, reward)``: take in a whole batch; returns the length of the next one.

Rivals exist to be compared with in simulation. Noise of the private ones is floating-point noise
from a seed: it has the right law and protects nobody, and ``guarantee`` says so.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.decide import Decision, Decisions, RewardStatus, decision_ids
from capri.epoch.plan import EpochRecord
from capri.errors import (
    ConfigurationError,
    DataError,
    HorizonError,
    RewardIgnoredWarning,
    ShapeError,
)
from capri.privacy.budget import Budget
from capri.spaces import (
    Actions,
    ContextPool,
    FixedActions,
    as_contexts,
    as_numbers,
    as_wanted,
)
from capri.streams import RIVAL


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a policy promises to a user. Only equal promises may be compared without a word.

    ``model`` is who is trusted, ``unit`` what one user is, ``protects`` which of their data,
    ``kind`` whether a delta is involved.

    >>> print(Promise(model="joint", kind="approximate", protects="contexts and rewards"))
    joint, approximate, one round, contexts and rewards
    """

    model: Literal["none", "perfect", "joint", "local", "shuffle", "central"]
    kind: Literal["none", "pure", "approximate"]
    protects: str = "contexts and rewards"
    unit: str = "one round"

    def __str__(self) -> str:
        if self.model == "none":
            return "none"
        if self.model == "perfect":
            return "perfect: no data are used"
        return f"{self.model}, {self.kind}, {self.unit}, {self.protects}"


NOTHING = Promise(model="none", kind="none", protects="nothing")
PERFECT = Promise(model="perfect", kind="pure")


class Rival(ABC):
    """A policy of the literature; drive it with :func:`capri.simulate`."""

    # What the shell and tables call it.
    name: ClassVar[str]
    promise: ClassVar[Promise]
    reference: ClassVar[str]
    # What it sees of a pair: its kernel, a feature row, or just the numbers of context and action.
    needs: ClassVar[Literal["kernel", "features", "arms"]]
    # The longest horizon that is sensible on 2,500 pairs and one core: minutes, not hours.
    reach: ClassVar[int]
    # How many features the catalogue gives to a rival that needs some.
    feature_count: ClassVar[int] = 10

    def __init__(
        self,
        *,
        actions: object,
        contexts: ContextPool,
        horizon: int,
        simulation_seed: int,
        reward_bound: float = 1.0,
        budget: Budget | None = None,
        first_batch: int = 1,
    ) -> None:
        """``budget=None`` is epsilon -> infinity; ``first_batch`` the length of the first batch."""
        if not isinstance(contexts, ContextPool):
            raise ConfigurationError(
                f"contexts must be a ContextPool, got {type(contexts).__name__}: "
                "rivals play on finitely many contexts"
            )
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigurationError(
                f"budget must be a capri.Budget, or None for no noise, got {type(budget).__name__}"
            )
        if budget is not None and self.promise.model in ("none", "perfect"):
            raise ConfigurationError(f"{self.name} spends no budget, got {budget}: use budget=None")
        self._actions = actions if isinstance(actions, Actions) else FixedActions(actions)  # type: ignore[arg-type]
        self._pool = contexts
        self._horizon = whole("horizon", horizon)
        self._bound = positive("reward_bound", reward_bound)
        self._budget = budget
        if isinstance(simulation_seed, bool) or not isinstance(simulation_seed, int | np.integer):
            raise ConfigurationError(
                "a rival is for simulation only: simulation_seed must be a whole number, "
                f"got {simulation_seed!r}"
            )
        if simulation_seed < 0:
            raise ConfigurationError(f"simulation_seed must be 0 or more, got {simulation_seed}")
        public, draws, noise = np.random.SeedSequence([int(simulation_seed), RIVAL]).spawn(3)
        # Public randomness (random features), draws of actions, and privacy noise stay apart.
        self._public = np.random.default_rng(public)
        self._draws = np.random.default_rng(draws)
        self._noise = np.random.default_rng(noise)
        self._decided = 0
        self._batches = 0
        self._context = self._action = np.empty(0, dtype=np.int64)
        self._reward = np.empty(0)
        self._rewarded = np.empty(0, dtype=np.bool_)
        self._open(first_batch)

    # -- what a rival adds ------------------------------------------------------------------------

    @abstractmethod
    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        """Actions and propensities for one or more contexts, as positions in the pool."""

    @abstractmethod
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        """Learn from a whole batch, in the order of its decisions; returns the next length.

        Rewards are clipped to the bound; a missing one is 0. The last batch may be cut short by the
        horizon. A length beyond the horizon is cut.
        """

    # -- what all share ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.guarantee}; {self._decided} decisions)"

    @property
    def guarantee(self) -> str:
        """In one line, what this run says to its users. Always a simulation."""
        if self.promise.model == "perfect":
            return "perfect privacy: contexts and rewards are never used"
        if self._budget is None or self.promise.model == "none":
            return "no privacy: runs without noise"
        return f"simulation of {spell(self.promise, self._budget)}: seeded noise, no privacy claim"

    @final
    @property
    def remaining(self) -> int:
        """Decisions that the next call may ask for; 0 at the horizon.

        Where rewards of a full batch are missing the next decision closes it, so one can be asked
        for: how long the next batch is depends on them.
        """
        left = self._horizon - self._decided
        return min(left, self._length - self._issued if self._issued < self._length else 1)

    @final
    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Rivals keep no records of epochs."""
        return ()

    @final
    def act(self, context: object) -> Decision:
        """Decide for one context, given as a row of numbers."""
        row = as_numbers(context, "a context must be a row of finite numbers")
        return self.act_many(row.reshape(1, -1))[0]

    @final
    def act_many(self, contexts: object) -> Decisions:
        """Decide for at most :attr:`remaining` contexts of the pool."""
        rows, context = self._requested(contexts)
        if len(rows):
            action, propensity = self._choose(context)
        else:
            action, propensity = np.empty(0, dtype=np.int64), np.empty(0)
        return self._note(rows, context, action, propensity)

    @final
    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made.

        For replaying a log; says which were kept. One context after the other, since what a rival
        chooses may depend on how many decisions went before.
        """
        asked = as_contexts(contexts, self._pool.dimension)
        wanted = as_wanted(action_index, len(asked), self._actions.count)
        rows, context = self._requested(asked)
        noted = [self._note(rows[:0], context[:0], context[:0], np.empty(0))]
        kept = np.zeros(len(rows), dtype=np.bool_)
        for place in range(len(rows)):
            one = slice(place, place + 1)
            action, propensity = self._choose(context[one])
            kept[place] = action[0] == wanted[place]
            if kept[place]:
                noted.append(self._note(rows[one], context[one], action, propensity))
        return Decisions(
            np.concatenate([each.id for each in noted]),
            self._batches,
            np.concatenate([each.action_index for each in noted]),
            np.concatenate([each.action for each in noted]),
            np.concatenate([each.propensity for each in noted]),
        ), kept

    def _requested(self, contexts: object) -> tuple[FloatArray, IntArray]:
        """Rows that may be decided for now, and their places in the pool; closes a full batch."""
        rows = as_contexts(contexts, self._pool.dimension)
        count = len(rows)
        if count > self.remaining:
            raise HorizonError(
                f"{count} decisions were asked for, {self.remaining} are possible now "
                f"({self._horizon - self._decided} of {self._horizon} are left): "
                "ask for at most policy.remaining at once"
            )
        context = self._pool.locate(rows)
        if (context < 0).any():
            raise DataError("a context is not in the pool: a rival plays on its pool only")
        if self._issued == self._length and count:
            self._close()
        return rows, context

    def _note(
        self, rows: FloatArray, context: IntArray, action: IntArray, propensity: FloatArray
    ) -> Decisions:
        """Decisions of the open batch, numbered."""
        first, count = self._issued, len(rows)
        place = slice(first, first + count)
        self._context[place] = context
        self._action[place] = action
        self._issued += count
        self._decided += count
        self._waiting += count
        return Decisions(
            np.arange(self._first_id + first, self._first_id + first + count),
            self._batches,
            action,
            self._actions.features_of(rows, action),
            propensity,
        )

    @final
    def update(self, decision: Decision | int, reward: float) -> RewardStatus:
        """Add the reward of one decision; says what became of it."""
        return RewardStatus(self.update_many([decision], [reward])[0])

    @final
    def update_many(
        self, decisions: Decisions | Sequence[Decision | int], rewards: object
    ) -> IntArray:
        """Add many rewards and return :class:`RewardStatus` codes; learns when a batch is full."""
        ids = decision_ids(decisions)
        values = as_numbers(rewards, "a reward must be a finite number")
        if values.shape != ids.shape:
            raise ShapeError(f"one reward per decision is needed: {len(ids)}, got {values.shape}")
        if not np.isfinite(values).all():
            raise DataError("a reward must be a finite number, got NaN or infinity")
        statuses = self._statuses(ids)
        ignored = statuses.any()
        if ignored:
            accepted = statuses == RewardStatus.ACCEPTED
            ids, values = ids[accepted], values[accepted]
        place = ids - self._first_id
        self._reward[place] = np.clip(values, -self._bound, self._bound)
        self._rewarded[place] = True
        self._waiting -= len(ids)
        if self._waiting == 0 and self._issued == self._length and len(ids):
            self._close()
        if ignored:
            names = sorted({str(RewardStatus(code)) for code in np.unique(statuses) if code})
            warnings.warn(
                f"ignored {' and '.join(names)} rewards: they changed nothing",
                RewardIgnoredWarning,
                stacklevel=2,
            )
        return statuses

    def _statuses(self, ids: IntArray) -> IntArray:
        """What each reward meets; of several for one decision the first counts."""
        place = ids - self._first_id
        known = (place >= 0) & (place < self._issued)
        if known.all():
            result = np.where(self._rewarded[place], RewardStatus.DUPLICATE, RewardStatus.ACCEPTED)
        else:
            result = np.full(len(ids), int(RewardStatus.UNKNOWN))
            result[(ids >= 0) & (place < 0)] = RewardStatus.LATE
            result[known] = np.where(
                self._rewarded[place[known]], RewardStatus.DUPLICATE, RewardStatus.ACCEPTED
            )
        if len(ids) > 1:
            _, earliest = np.unique(ids, return_index=True)
            repeated = np.ones(len(ids), dtype=np.bool_)
            repeated[earliest] = False
            result[repeated & (result == RewardStatus.ACCEPTED)] = RewardStatus.DUPLICATE
        return result.astype(np.int64)

    def _open(self, length: int) -> None:
        """Start a batch; after the last decision of the horizon, an empty one."""
        left = self._horizon - self._decided
        if length < 1:
            raise AssertionError(f"{self.name} planned a batch of {length} decisions")
        self._length = min(int(length), left)
        self._batches += 1
        self._first_id = self._decided
        self._issued = self._waiting = 0
        if self._length == len(self._reward) == 1:
            # Sequential play: the same places again, without new arrays.
            self._reward[0] = 0.0
            self._rewarded[0] = False
            return
        self._context = np.zeros(self._length, dtype=np.int64)
        self._action = np.zeros(self._length, dtype=np.int64)
        self._reward = np.zeros(self._length)
        self._rewarded = np.zeros(self._length, dtype=np.bool_)

    def _close(self) -> None:
        self._open(self._learn(self._context, self._action, self._reward))

    @property
    def _pairs(self) -> FloatArray:
        """All pairs ``(c, x)`` as rows; pair ``context * actions + action``."""
        pairs = self._actions.pairs(self._pool.rows)
        return pairs.reshape(-1, pairs.shape[-1])


def spell(promise: Promise, budget: Budget) -> str:
    """The promise in words, with its numbers.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> spell(Promise(model="local", kind="pure", protects="rewards"), budget)
    '1-local privacy of rewards, per one round'
    """
    numbers = f"{budget.epsilon:g}"
    if promise.kind == "approximate":
        numbers = f"({budget.epsilon:g}, {budget.delta:g})"
    return f"{numbers}-{promise.model} privacy of {promise.protects}, per {promise.unit}"


def whole(name: str, value: object, least: int = 1) -> int:
    """A whole number of at least ``least``, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of {least} or more, got {value!r}")
    return int(value)


def positive(name: str, value: object) -> float:
    """A positive finite number, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigurationError(f"{name} must be positive and finite, got {value!r}")
    if not 0.0 < value < math.inf:
        raise ConfigurationError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def in_unit_interval(name: str, value: object) -> float:
    """A number strictly between 0 and 1, or an error that names it."""
    number = positive(name, value)
    if number >= 1.0:
        raise ConfigurationError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return number


Width = Literal["practical", "theory"] | float


def checked_width(name: str, value: object) -> Width:
    """How wide confidence intervals are: as tuned, as proved, or a number of our own."""
    if value == "practical" or value == "theory":
        return "practical" if value == "practical" else "theory"
    if isinstance(value, str):
        raise ConfigurationError(f"{name} must be 'practical', 'theory' or a number, got {value!r}")
    return positive(name, value)
