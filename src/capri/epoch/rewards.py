"""Rewards: what is learnt of one, how long they are awaited, what several or none mean.

From what callers send to the number that is learnt, and back, there is a public map. A reward is
clipped to ``[low, high]``, passed through a public increasing transform ``h``, and centred:

    y = h(clip(reward, low, high)) - c,     c = (h(low) + h(high)) / 2
    |y| <= B = (h(high) - h(low)) / 2

The sensitivity of a release goes with ``B``, so the range used is the range needed: 0 and 1 as
``reward_range=(0, 1)`` have ``B = 1/2``, as ``reward_bound=1`` twice that. Nothing here looks at
more than one reward, and none raises: clipping comes first, and ``h`` is defined on the range.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum, StrEnum
from math import isfinite, log1p, nan, sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import between, is_number, one_of, positive, whole
from capri.errors import ConfigurationError, RewardIgnoredWarning

# Transforms by name: on numbers, on arrays, the least reward that has one, and the way back.
_TRANSFORMS: dict[
    str, tuple[Callable[[float], float], Callable[..., Any], float, Callable[..., Any]]
] = {
    "log1p": (log1p, np.log1p, 0.0, np.expm1),
    "sqrt": (sqrt, np.sqrt, 0.0, np.square),
}
# Tails of residuals are measured up to so many times the bound at which they are clipped.
LARGEST_EXCESS = 16.0


@dataclass(frozen=True)
class RewardScale:
    """The range of rewards in the caller's units, and the transform by which they are learnt.

    >>> RewardScale(0.0, 1.0).bound, RewardScale(0.0, 1.0).centre
    (0.5, 0.5)
    >>> RewardScale(0.0, 99.0, "sqrt").learnt(np.array([49.0, -5.0, 1e9])).round(2)
    array([ 2.03, -4.97,  4.97])
    """

    low: float
    high: float
    transform: str | None = None
    # B: half the width of the range. What is subtracted before a reward is encoded, and added to
    # estimates. Whether rewards are learnt as they are, so that reward_bound says it all.
    bound: float = field(init=False, repr=False, compare=False)
    centre: float = field(init=False, repr=False, compare=False)
    symmetric: bool = field(init=False, repr=False, compare=False)

    @classmethod
    def within(cls, bound: float) -> "RewardScale":
        """Rewards of at most this absolute value, learnt as they are."""
        return cls(-bound, bound)

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if self.transform is not None:
            function = _TRANSFORMS[self.transform][0]
            low, high = function(low), function(high)
        plain = self.low == -self.high and self.transform is None
        for name, value in (
            ("bound", high / 2 - low / 2),
            ("centre", low / 2 + high / 2),
            ("symmetric", plain),
        ):
            object.__setattr__(self, name, value)

    def learnt(self, rewards: FloatArray) -> FloatArray:
        """``y`` of each reward, within ``[-B, B]``; NaN, which is no reward, stays."""
        if not self.symmetric:
            rewards = self.centred(rewards)
        return np.asarray(np.minimum(np.maximum(rewards, -self.bound), self.bound))

    def centred(self, rewards: FloatArray) -> FloatArray:
        """``y`` of each reward but for rounding: for a scale that is not symmetric."""
        rewards = np.minimum(np.maximum(rewards, self.low), self.high)
        if self.transform is not None:
            rewards = _TRANSFORMS[self.transform][1](rewards)
        return np.asarray(rewards - self.centre)

    def sent(self, values: FloatArray) -> FloatArray:
        """Rewards that are learnt as these ``y``: ``h^-1(y + c)``, the inverse of :meth:`learnt`.

        >>> RewardScale(10.0, 11.0).sent(np.array([-0.5, 0.0, 0.5]))
        array([10. , 10.5, 11. ])
        """
        values = self.told(values)
        return values if self.transform is None else _TRANSFORMS[self.transform][3](values)

    def told(self, values: FloatArray) -> FloatArray:
        """Estimates of ``y`` in the units of (transformed) rewards."""
        return values if self.symmetric else np.asarray(values + self.centre)

    def at(self, share: FloatArray | float) -> Any:
        """Rewards by where they lie: -1 is ``low``, 0 the middle, 1 ``high``; beyond is allowed."""
        return (self.low / 2 + self.high / 2) + (self.high / 2 - self.low / 2) * share

    def arguments(self) -> dict[str, Any]:
        """What a policy is built with to have this scale."""
        if self.symmetric:
            return {"reward_bound": self.high}
        return {"reward_range": (self.low, self.high), "reward_transform": self.transform}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file, nothing where ``reward_bound`` says it all."""
        if self.symmetric:
            return {}
        return {"reward_range": [self.low, self.high], "reward_transform": self.transform}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RewardScale":
        """The inverse of :meth:`to_dict`, beside ``reward_bound``; files may have neither range."""
        if values.get("reward_range") is None:
            return cls.within(float(values["reward_bound"]))
        low, high = values["reward_range"]
        return checked_scale(None, (low, high), values.get("reward_transform"))

    def __str__(self) -> str:
        inside = f"[{self.low:g}, {self.high:g}]"
        return inside if self.transform is None else f"{self.transform} of {inside}"


def tail_bound(reward_bound: float, value_bound: float) -> float:
    """What a clipped residual may exceed its bound by and still be measured in full.

    The noise on the measure goes with it, so a reward bound that is far too large must not set it.
    """
    return min(reward_bound, LARGEST_EXCESS * value_bound)


def rescaled(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings with some changed: another bound replaces a range, and another range a bound."""
    if not _NAMES.isdisjoint(changes):
        settings = {name: value for name, value in settings.items() if name not in _NAMES}
    return settings | changes


_NAMES = frozenset({"reward_bound", "reward_range", "reward_transform"})


def checked_scale(
    reward_bound: float | None,
    reward_range: object = None,
    reward_transform: str | None = None,
) -> RewardScale:
    """The scale, or an error that says what is allowed."""
    if reward_transform is not None:
        one_of("reward_transform", reward_transform, tuple(_TRANSFORMS))
        if reward_range is None:
            raise ConfigurationError(
                f"reward_transform={reward_transform!r} needs the range of rewards before it: give "
                "reward_range=(low, high), as in (0, 3600) for durations of up to an hour"
            )
    if reward_range is None:
        bound = positive("reward_bound", 1.0 if reward_bound is None else reward_bound)
        return RewardScale.within(float(between("reward_bound", bound, 1e-50, 1e50)))
    if reward_bound is not None:
        raise ConfigurationError(
            f"give reward_range or reward_bound, not both: reward_bound={reward_bound} is "
            f"reward_range=({-reward_bound}, {reward_bound}), got {reward_range!r}"
        )
    low, high = _ends(reward_range)
    if reward_transform is not None and low < _TRANSFORMS[reward_transform][2]:
        raise ConfigurationError(
            f"reward_transform={reward_transform!r} needs rewards of "
            f"{_TRANSFORMS[reward_transform][2]:g} or more, got reward_range=({low}, {high})"
        )
    scale = RewardScale(low, high, reward_transform)
    if not scale.bound > 1e-9 * abs(scale.centre):
        raise ConfigurationError(
            f"reward_range=({low}, {high}) is too narrow for where it lies: rewards could not be "
            "told apart. Send them less what they have in common"
        )
    return scale


def _ends(reward_range: object) -> tuple[float, float]:
    """The two ends of a range, checked."""
    ends = tuple(reward_range) if isinstance(reward_range, tuple | list) else ()
    if len(ends) != 2 or not all(is_number(end) and isfinite(end) for end in ends):
        raise ConfigurationError(
            f"reward_range must be two numbers (low, high), as in (0, 1), got {reward_range!r}"
        )
    low, high = (float(end) for end in ends)
    if not low < high:
        raise ConfigurationError(f"reward_range needs low < high, got ({low}, {high})")
    for end in (low, high):
        between("the ends of reward_range", end, -1e50, 1e50)
    if high - low < 1e-50:
        raise ConfigurationError(f"reward_range is narrower than 1e-50: ({low}, {high})")
    return low, high


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


def first_valid(first: IntArray, numbers: IntArray, rewards: FloatArray) -> IntArray:
    """What each reward meets where ``first`` is what a first one would.

    >>> first_valid(np.zeros(3, dtype=int), np.array([4, 4, 5]), np.array([0.5, 1.0, np.nan]))
    array([0, 2, 4])
    """
    result = first.copy()
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
