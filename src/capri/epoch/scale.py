"""From what callers send as a reward to the number that is learnt, and back: a public map.

A reward is clipped to ``[low, high]``, passed through a public increasing transform ``h``, and
centred:

    y = h(clip(reward, low, high)) - c,     c = (h(low) + h(high)) / 2
    |y| <= B = (h(high) - h(low)) / 2

The sensitivity of a release goes with ``B``, so the range used is the range needed: 0 and 1 as
``reward_range=(0, 1)`` have ``B = 1/2``, as ``reward_bound=1`` twice that. Nothing here looks at
more than one reward, and none raises: clipping comes first, and ``h`` is defined on the range.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite, log1p, sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.checks import between, is_number, one_of, positive
from capri.errors import ConfigurationError

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
