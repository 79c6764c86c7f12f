"""When rewards count: how long they are awaited, what several or none mean, what became of each."""

import warnings
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, StrEnum
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capri.arrays import FloatArray, IntArray
from capri.checks import is_number, one_of, whole
from capri.epoch.scale import RewardScale
from capri.errors import ConfigurationError, RewardIgnoredWarning

AS_ESTIMATED = "as-estimated"
_LONGEST = timedelta(days=36_500)
# Rewards of one decision that count, where each has a key. How often they come is private, so what
# is kept of them and the work they make is bounded, whoever sends them.
MOST_REWARDS = 32


class RewardRule(StrEnum):
    """What several rewards for one decision make together, until the wait is over."""

    FIRST = "first"
    LAST = "last"
    SUM = "sum"
    MAX = "max"

    def combined(self, before: float, value: float) -> float:
        """One more reward; NaN stands for none so far. What comes out is clipped when encoded.

        >>> RewardRule.SUM.combined(0.25, 0.5), RewardRule.MAX.combined(float("nan"), -1.0)
        (0.75, -1.0)
        """
        if before != before or self is RewardRule.LAST:
            return value
        if self is RewardRule.SUM:
            return before + value
        return max(before, value) if self is RewardRule.MAX else before

    @property
    def keyed(self) -> bool:
        """Whether a reward needs a key: the first one is known by its decision."""
        return self is not RewardRule.FIRST


@dataclass(frozen=True, kw_only=True)
class RewardTerms:
    """The public rules for rewards. None of them looks at a value.

    ``wait``: decisions after its last one, or a time, for which an epoch stays open for rewards
    while later epochs play. ``missing``: what a reward that never comes counts as: a number, or
    None for what the last estimate expected. ``rule``: how several rewards for one decision are
    combined. ``epoch_time``: an epoch also ends when this much time has passed since it began.
    """

    wait: int | timedelta = 0
    missing: float | None = 0.0
    rule: RewardRule = RewardRule.FIRST
    epoch_time: timedelta | None = None

    @property
    def overlapping(self) -> bool:
        """Whether epochs stay open for rewards while later ones play."""
        return bool(self.wait)

    @property
    def timed(self) -> bool:
        """Whether a public clock is needed."""
        return isinstance(self.wait, timedelta) or self.epoch_time is not None

    @property
    def measured(self) -> bool:
        """Whether missing rewards are counted in the message instead of standing for a number."""
        return self.missing is None

    @property
    def stand_in(self) -> float:
        """The number a missing reward counts as; NaN where it has a form of its own."""
        return nan if self.missing is None else self.missing

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        wait = self.wait
        return {
            "wait": {"seconds": wait.total_seconds()} if isinstance(wait, timedelta) else wait,
            "missing": self.missing,
            "rule": str(self.rule),
            "epoch_seconds": None if self.epoch_time is None else self.epoch_time.total_seconds(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RewardTerms":
        """The inverse of :meth:`to_dict`."""
        wait, seconds = values["wait"], values["epoch_seconds"]
        return cls(
            wait=timedelta(seconds=wait["seconds"]) if isinstance(wait, dict) else wait,
            missing=values["missing"],
            rule=RewardRule(values["rule"]),
            epoch_time=None if seconds is None else timedelta(seconds=seconds),
        )

    def arguments(self) -> dict[str, Any]:
        """What a policy is built with to have these terms."""
        return {
            "reward_wait": self.wait,
            "missing_reward": AS_ESTIMATED if self.missing is None else self.missing,
            "reward_rule": str(self.rule),
            "epoch_time": self.epoch_time,
        }


def checked_terms(
    *,
    reward_wait: int | timedelta,
    missing_reward: float | str,
    reward_rule: str,
    epoch_time: timedelta | None,
    scale: RewardScale,
) -> RewardTerms:
    """The terms, or an error that says what is allowed."""
    if isinstance(reward_wait, timedelta):
        if not timedelta(0) <= reward_wait <= _LONGEST:
            raise ConfigurationError(
                f"reward_wait must not be negative or above {_LONGEST.days} days, got {reward_wait}"
            )
    else:
        reward_wait = whole("reward_wait", reward_wait, least=0)
    if epoch_time is not None and (
        not isinstance(epoch_time, timedelta) or not timedelta(0) < epoch_time <= _LONGEST
    ):
        raise ConfigurationError(
            f"epoch_time must be a positive datetime.timedelta or None, got {epoch_time!r}"
        )
    missing: float | None = None
    if not (isinstance(missing_reward, str) and missing_reward == AS_ESTIMATED):
        if not is_number(missing_reward):
            raise ConfigurationError(
                f"missing_reward must be a number or {AS_ESTIMATED!r}, got {missing_reward!r}"
            )
        missing = float(missing_reward)
        if not scale.low <= missing <= scale.high:
            raise ConfigurationError(
                f"missing_reward must lie in the range of rewards, [{scale.low:g}, "
                f"{scale.high:g}], got {missing_reward!r}: say what a reward that never comes "
                f"counts as, a number or {AS_ESTIMATED!r}"
            )
    one_of("reward_rule", reward_rule, tuple(RewardRule))
    return RewardTerms(
        wait=reward_wait, missing=missing, rule=RewardRule(reward_rule), epoch_time=epoch_time
    )


def settled(rewards: FloatArray, terms: RewardTerms) -> FloatArray:
    """Combined rewards at the close: a missing one is what it stands for."""
    return np.where(np.isnan(rewards), terms.stand_in, rewards)


class RewardStatus(IntEnum):
    """What became of a reward."""

    ACCEPTED = 0
    LATE = 1  # its epoch is closed
    DUPLICATE = 2  # a reward for this decision came before
    UNKNOWN = 3  # no such decision was made here
    INVALID = 4  # not a number: the reward counts as missing
    UNCOUNTED = 5  # the visit counts for nothing (see its status), or enough rewards came for it

    def __str__(self) -> str:
        return self.name.lower()


# Plain numbers: looking up a member of an enumeration costs as much as encoding a reward.
ACCEPTED, LATE, DUPLICATE, UNKNOWN, INVALID, UNCOUNTED = (int(status) for status in RewardStatus)


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


def first_valid(standing: IntArray, numbers: IntArray, rewards: FloatArray) -> IntArray:
    """What each reward meets where ``standing`` is what a first one would.

    >>> first_valid(np.zeros(3, dtype=int), np.array([4, 4, 5]), np.array([0.5, 1.0, np.nan]))
    array([0, 2, 4])
    """
    result = standing.copy()
    if len(numbers) == 1:
        if result[0] == ACCEPTED and not isfinite(rewards[0]):
            result[0] = INVALID
        return result
    result[(result == ACCEPTED) & ~np.isfinite(rewards)] = INVALID
    valid = np.flatnonzero(result == ACCEPTED)
    if len(valid) > 1:
        _, earliest = np.unique(numbers[valid], return_index=True)
        repeated = np.ones(len(valid), dtype=np.bool_)
        repeated[earliest] = False
        result[valid[repeated]] = DUPLICATE
    return result


def warn_of_ignored(statuses: IntArray, stacklevel: int) -> None:
    """In a simulation, a :class:`RewardIgnoredWarning` if a reward changed nothing.

    A private run never warns: what became of whose reward is for its caller alone, and a warning
    ends in a log.
    """
    if statuses.any():
        ignored = sorted({str(RewardStatus(code)) for code in np.unique(statuses) if code})
        warnings.warn(
            f"ignored {' and '.join(ignored)} rewards: they changed nothing",
            RewardIgnoredWarning,
            stacklevel=stacklevel + 1,
        )
