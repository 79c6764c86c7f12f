"""What every rival is: a promise, a reference, and turns of deciding and learning.

A rival plays on finitely many pairs: a pool of contexts times the actions. It decides in *batches*
within which decisions do not depend on rewards (a batch of 1 for the sequential ones) and learns
when the rewards of a batch are in. This class keeps the books; a rival declares its own settings,
whose types say how they are checked, and adds three methods, which see positions in the pool and
never a context itself:

- ``_start()``: get ready; returns the length of the first batch;
- ``_choose(context)``: actions and their propensities, for the next decisions of the batch;
- ``_learn(context, action, reward)``: take in a whole batch; returns the length of the next one.

Rivals exist to be compared with in simulation. Noise of the private ones is floating-point noise
from a seed: it has the right law and protects nobody, and ``guarantee`` says so.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Annotated, ClassVar, Literal, dataclass_transform, final

import numpy as np
from numpy.typing import NDArray

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_numbers
from capri.checks import between, is_whole, positive, whole
from capri.choices import as_actions, as_wanted
from capri.epoch.decisions import SIMULATED, Decision, Decisions, decision_rewards
from capri.epoch.plan import EpochRecord
from capri.epoch.rewards import (
    ACCEPTED,
    DUPLICATE,
    LATE,
    UNKNOWN,
    RewardStatus,
    first_valid,
    warn_of_ignored,
)
from capri.errors import ConfigurationError, DataError, HorizonError
from capri.kernels import Kernel
from capri.privacy.budget import NOTHING, Budget, Promise
from capri.spaces import ContextPool, as_contexts
from capri_lab.own import place_of
from capri_lab.streams import RIVAL


@dataclass_transform(kw_only_default=True, eq_default=False)
class Settings:
    """The base of a player whose annotations are its keyword arguments.

    A subclass is made a dataclass: it declares what it takes and says in :meth:`_begin` what it
    makes of it. What was given may be normalised there; afterwards it cannot be set any more.
    """

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self._begin()
        self._begun = True

    def __setattr__(self, name: str, value: object) -> None:
        if name in getattr(self, "__dataclass_fields__", ()) and "_begun" in vars(self):
            raise FrozenInstanceError(f"{name} is fixed when a policy is built: build another one")
        super().__setattr__(name, value)

    def _begin(self) -> None:
        """Check what was given and get ready to play."""

    @property
    def params(self) -> dict[str, bool | int | float | str | None]:
        """The plain values that determine how it plays, for the columns of a table.

        A budget is its epsilon and delta, a kernel what it prints as. Arrays are left out.
        """
        found: dict[str, bool | int | float | str | None] = {"policy": self.name}
        for name in (each.name for each in fields(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if name == "budget":
                found |= {key: getattr(value, key, None) for key in ("epsilon", "delta")}
            elif isinstance(value, Kernel):
                found[name] = repr(value)
            elif value is None or isinstance(value, bool | int | float | str):
                found[name] = value
        return found


@final
class Batch:
    """Decisions of one batch, as places in the pool and numbers of actions, and their rewards.

    >>> batch = Batch(number=1, first_id=10, length=2)
    >>> batch.issue(np.array([0, 3]), np.array([1, 1]))
    array([10, 11])
    >>> batch.take(np.array([11, 9]), np.array([0.5, 0.5]))
    array([0, 1])
    >>> batch.full, batch.complete, batch.reward
    (True, False, array([0. , 0.5]))
    """

    def __init__(self, *, number: int, first_id: int, length: int) -> None:
        self.number, self.first_id, self.length = number, first_id, length
        self.issued = self._waiting = 0
        self.context: IntArray = np.zeros(length, dtype=np.int64)
        self.action: IntArray = np.zeros(length, dtype=np.int64)
        # A missing reward is 0.
        self.reward: FloatArray = np.zeros(length)
        # What a reward for each decision would meet.
        self._status = np.full(length, ACCEPTED, dtype=np.int8)

    @property
    def full(self) -> bool:
        """All decisions are taken."""
        return self.issued == self.length

    @property
    def complete(self) -> bool:
        """All decisions are taken and all their rewards are in."""
        return self.full and self._waiting == 0

    def issue(self, context: IntArray, action: IntArray) -> IntArray:
        """Note decisions and number them."""
        place = slice(self.issued, self.issued + len(action))
        self.context[place] = context
        self.action[place] = action
        self.issued += len(action)
        self._waiting += len(action)
        return np.arange(place.start, place.stop) + self.first_id

    def take(self, ids: IntArray, rewards: FloatArray) -> IntArray:
        """Note the rewards that are awaited; returns a status for each."""
        statuses = reward_statuses(ids, rewards, self._status[: self.issued], self.first_id)
        accepted = statuses == ACCEPTED
        place = ids[accepted] - self.first_id
        self.reward[place] = rewards[accepted]
        self._status[place] = DUPLICATE
        self._waiting -= len(place)
        return statuses


def chance(name: str, value: object) -> float:
    """A probability that is neither 0 nor 1."""
    return between(name, value, 0, 1, open_ends=True)


def checked_width(name: str, value: object) -> str | float:
    """How wide confidence intervals are: as tuned, as proved, or a number of our own."""
    if value == "practical" or value == "theory":
        return str(value)
    if isinstance(value, str):
        raise ConfigurationError(f"{name} must be 'practical', 'theory' or a number, got {value!r}")
    return positive(name, value)


# Types of settings, each with the check that a rival's values go through when it is built.
Positive = Annotated[float, positive]
Chance = Annotated[float, chance]
Whole = Annotated[int, whole]
Width = Annotated[Literal["practical", "theory"] | float, checked_width]


def chosen_width(width: Width, *, practical: float, theory: float) -> float:
    """The number that a width stands for.

    >>> chosen_width("theory", practical=0.1, theory=3.0)
    3.0
    """
    if width == "practical":
        return practical
    return theory if width == "theory" else float(width)


class Rival(Settings, ABC):
    """A policy of the literature; drive it with :func:`capri.simulate`.

    ``budget=None`` is epsilon -> infinity. ``contexts`` are all that may come.
    """

    # What it promises with a budget: nothing unless it says so. A run without one promises nothing.
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str]
    # What it sees of a pair: its kernel, a feature row, or just the numbers of context and action.
    needs: ClassVar[Literal["kernel", "features", "arms"]]
    # The longest horizon that is sensible on 2,500 pairs and one core: minutes, not hours.
    reach: ClassVar[int]
    # How many features the catalogue gives to a rival that needs some.
    feature_count: ClassVar[int] = 10

    actions: object
    contexts: ContextPool
    horizon: Whole
    simulation_seed: int
    reward_bound: Positive = 1.0
    budget: Budget | None = None

    # -- what a rival adds ------------------------------------------------------------------------

    @abstractmethod
    def _start(self) -> int:
        """Get ready, with settings that were checked; returns the length of the first batch."""

    @abstractmethod
    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        """Actions and propensities for one or more contexts, as positions in the pool."""

    @abstractmethod
    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        """Learn from a whole batch, in the order of its decisions; returns the next length.

        Rewards are clipped to the bound and divided by it; a missing one is 0. The last batch may
        be cut short by the horizon. A length beyond the horizon is cut.
        """

    # -- what all share ---------------------------------------------------------------------------

    @final
    def _begin(self) -> None:
        if not isinstance(self.contexts, ContextPool):
            raise ConfigurationError(
                f"contexts must be a ContextPool, got {type(self.contexts).__name__}: "
                "rivals play on finitely many contexts"
            )
        self._check_budget()
        given = self.actions
        self._actions = as_actions(given)
        for setting in fields(self):
            for check in getattr(setting.type, "__metadata__", ()):
                setattr(self, setting.name, check(setting.name, getattr(self, setting.name)))
        if not is_whole(self.simulation_seed):
            raise ConfigurationError(
                "a rival is for simulation only: simulation_seed must be a whole number, "
                f"got {self.simulation_seed!r}"
            )
        seed = whole("simulation_seed", self.simulation_seed, least=0)
        public, draws, noise = np.random.SeedSequence([seed, RIVAL]).spawn(3)
        # Public randomness (random features), draws of actions, and privacy noise stay apart.
        self._public = np.random.default_rng(public)
        self._draws = np.random.default_rng(draws)
        self._noise = np.random.default_rng(noise)
        self._batch = Batch(number=0, first_id=0, length=0)
        self._open(self._start())

    def _check_budget(self) -> None:
        budget = self.budget
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigurationError(
                f"budget must be a capri.Budget, or None for no noise, got {type(budget).__name__}"
            )
        if budget is not None and self.promise.model == "none":
            raise ConfigurationError(f"{self.name} spends no budget, got {budget}: use budget=None")
        if budget is None:
            # This run's own promise, in front of that of the class.
            vars(self)["promise"] = NOTHING

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.guarantee}; {self._decided} decisions)"

    @property
    def guarantee(self) -> str:
        """In one line, what this run says to its users. Always a simulation."""
        if self.budget is None:
            return "no privacy: runs without noise"
        promise = with_numbers(self.promise, self.budget)
        return f"simulation of {promise}: seeded noise, no privacy claim"

    @final
    @property
    def remaining(self) -> int:
        """Decisions that the next call may ask for; 0 at the horizon.

        Where rewards of a full batch are missing the next decision closes it, so one can be asked
        for: how long the next batch is depends on them.
        """
        batch = self._batch
        left = self.horizon - self._decided
        return min(left, 1 if batch.full else batch.length - batch.issued)

    @final
    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Rivals keep no records of epochs."""
        return ()

    @final
    def act(self, context: object) -> Decision:
        """Decide for one context, given as a row of numbers."""
        row = as_numbers(context)
        return self.act_many(row.reshape(1, -1))[0]

    @final
    def act_many(self, contexts: object) -> Decisions:
        """Decide for at most :attr:`remaining` contexts of the pool."""
        rows, context = self._requested(contexts)
        if len(rows):
            action, propensity = self._chosen(context)
        else:
            action, propensity = np.empty(0, dtype=np.int64), np.empty(0)
        ids = self._batch.issue(context, action)
        return self._decisions(ids, rows, action, propensity)

    @final
    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made.

        For replaying a log; says which were kept. One context after the other, since what a rival
        chooses may depend on how many decisions went before.
        """
        asked = as_contexts(contexts, self.contexts.dimension)
        wanted = as_wanted(action_index, len(asked), self._actions.count)
        rows, context = self._requested(asked)
        action, propensity = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows))
        first = self._decided
        for place in range(len(rows)):
            one = slice(place, place + 1)
            action[one], propensity[one] = self._choose(context[one])
            if action[place] == wanted[place]:
                self._batch.issue(context[one], action[one])
        kept = action == wanted
        ids = np.arange(first, self._decided)
        return self._decisions(ids, rows[kept], action[kept], propensity[kept]), kept

    def _chosen(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        """What the class chooses, or what is wrong with what it returns."""
        found = self._choose(context)
        if not isinstance(found, tuple) or [*map(np.shape, found)] != [context.shape] * 2:
            raise ConfigurationError(
                f"{type(self).__name__}._choose must return actions and their propensities, one of "
                f"each for a decision ({place_of(self._choose)})"
            )
        return found

    def _requested(self, contexts: object) -> tuple[FloatArray, IntArray]:
        """Rows that may be decided for now, and their places in the pool; closes a full batch."""
        rows = as_contexts(contexts, self.contexts.dimension)
        count = len(rows)
        if count > self.remaining:
            raise HorizonError(
                f"{count} decisions were asked for, {self.remaining} are possible now "
                f"({self.horizon - self._decided} of {self.horizon} are left): "
                "ask for at most policy.remaining at once"
            )
        context = self.contexts.locate(rows)
        if (context < 0).any():
            raise DataError("a context is not in the pool: a rival plays on its pool only")
        if self._batch.full and count:
            self._close()
        return rows, context

    def _decisions(
        self, ids: IntArray, rows: FloatArray, action: IntArray, propensity: FloatArray
    ) -> Decisions:
        features = self._actions.features_of(rows, action)
        return Decisions.simulated(
            ids, self._batch.number, action, features, propensity, self._actions.names
        )

    @final
    def update(self, decision: Decision | str, reward: float) -> RewardStatus:
        """Add the reward of one decision; says what became of it."""
        return RewardStatus(self.update_many([decision], [reward])[0])

    @final
    def update_many(
        self, decisions: Decisions | Sequence[Decision | str], rewards: object
    ) -> IntArray:
        """Add many rewards and return :class:`RewardStatus` codes; learns when a batch is full."""
        ids, values = decision_rewards(decisions, rewards, SIMULATED)
        batch = self._batch
        clipped = np.clip(values, -self.reward_bound, self.reward_bound)
        statuses = batch.take(ids, np.where(np.isfinite(values), clipped, np.nan))
        if batch.complete and not statuses.all():  # one was accepted, and it was the last
            self._close()
        warn_of_ignored(statuses, stacklevel=2)
        return statuses

    def _open(self, length: int) -> None:
        """Start a batch; after the last decision of the horizon, an empty one."""
        if length < 1:
            raise AssertionError(f"{self.name} planned a batch of {length} decisions")
        left = self.horizon - self._decided
        self._batch = Batch(
            number=self._batch.number + 1, first_id=self._decided, length=min(int(length), left)
        )

    def _close(self) -> None:
        batch = self._batch
        self._open(self._learn(batch.context, batch.action, batch.reward / self.reward_bound))

    def _uniformly(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        """Any action, each equally likely."""
        count = self._actions.count
        return self._draws.integers(count, size=len(context)), np.full(len(context), 1 / count)

    @property
    def _decided(self) -> int:
        """Decisions so far."""
        return self._batch.first_id + self._batch.issued

    @property
    def _epsilon(self) -> float | None:
        return None if self.budget is None else self.budget.epsilon

    @property
    def _pairs(self) -> FloatArray:
        """All pairs ``(c, x)`` as rows; pair ``context * actions + action``."""
        pairs = self._actions.pairs(self.contexts.rows)
        return pairs.reshape(-1, pairs.shape[-1])


def reward_statuses(
    numbers: IntArray, rewards: FloatArray, awaited: NDArray[np.int8], first: int
) -> IntArray:
    """What each reward meets, row by row; of several for one decision the first valid one counts.

    ``awaited[i]`` is what a reward for decision ``first + i`` would meet; those for decisions
    before it come late.

    >>> numbers, ones = np.array([7, 8, 8, 5, 9]), np.ones(5)
    >>> reward_statuses(numbers, ones, np.array([2, 0], dtype=np.int8), 7).tolist()
    [2, 0, 2, 1, 3]
    """
    if len(numbers) == 1 and 0 <= (place := int(numbers[0]) - first) < len(awaited):
        return first_valid(awaited[place : place + 1].astype(np.int64), numbers, rewards)
    offset = numbers - first
    known = (offset >= 0) & (offset < len(awaited))
    result = np.full(len(numbers), UNKNOWN, dtype=np.int64)
    result[known] = awaited[offset[known]]
    result[(numbers >= 0) & (numbers < first)] = LATE
    return first_valid(result, numbers, rewards)


def with_numbers(promise: Promise, budget: Budget) -> str:
    """A promise in words, with its numbers.

    >>> promise = Promise(model="local", kind="pure", protects="rewards")
    >>> with_numbers(promise, Budget(epsilon=1.0, delta=1e-5))
    '1-local privacy of rewards, per one round'
    """
    numbers = f"{budget.epsilon:g}"
    if promise.kind == "approximate":
        numbers = f"({budget.epsilon:g}, {budget.delta:g})"
    return f"{numbers}-{promise.model} privacy of {promise.protects}, per {promise.unit}"
