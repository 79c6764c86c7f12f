"""Where a device's randomness comes from.

A real device asks the operating system for every single number. A simulation derives the numbers of
user ``i`` from a seed and ``i`` alone, so that a million users drawn at once and one user in a
process of its own are the same user.
"""

import os
import secrets
from abc import ABC, abstractmethod

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.privacy.directions import Words, hashed

# What a number is drawn for: keeps the draws of one user apart.
_ACTION, _SEED, _ROUNDING, _COIN, _PICK = range(5)


class DeviceRandomness(ABC):
    """Independent draws for ``count`` devices."""

    private: bool

    @abstractmethod
    def action(self, count: int) -> FloatArray:
        """Uniform in ``[0, 1)``: chooses an action from its law."""

    @abstractmethod
    def seeds(self, count: int) -> Words:
        """128 uniform bits each, ``(count, 2)``: the one-time token, and what it stands for."""

    @abstractmethod
    def rounding(self, count: int) -> FloatArray:
        """Uniform in ``[0, 1)``: rounds a vector to the sphere. Privacy does not rest on it."""

    @abstractmethod
    def coin(self, count: int, chance: int) -> BoolArray:
        """True with probability ``chance / 2^63``, exactly."""

    @abstractmethod
    def below(self, limits: IntArray) -> IntArray:
        """A whole number from 0 to ``limit - 1`` each, exactly uniform."""


class SystemRandomness(DeviceRandomness):
    """The operating system's generator, nothing else."""

    private = True

    def action(self, count: int) -> FloatArray:
        """53 bits each."""
        return self._bits(count) * 2.0**-53

    def rounding(self, count: int) -> FloatArray:
        """53 bits each."""
        return self._bits(count) * 2.0**-53

    @staticmethod
    def _bits(count: int) -> FloatArray:
        return np.array([secrets.randbits(53) for _ in range(count)], dtype=np.float64)

    def seeds(self, count: int) -> Words:
        """16 bytes each."""
        return (
            np.frombuffer(os.urandom(16 * count), dtype="<u8").reshape(count, 2).astype(np.uint64)
        )

    def coin(self, count: int, chance: int) -> BoolArray:
        """63 bits against the chance."""
        return np.array([secrets.randbits(63) < chance for _ in range(count)], dtype=np.bool_)

    def below(self, limits: IntArray) -> IntArray:
        """By rejection, hence without bias."""
        return np.array([secrets.randbelow(int(limit)) for limit in limits], dtype=np.int64)


class SimulatedRandomness(DeviceRandomness):
    """Numbers that anybody can reproduce from ``seed`` and the users' numbers. Protects nobody."""

    private = False

    def __init__(self, seed: int, users: IntArray) -> None:
        self._seed = np.array([seed], dtype=np.uint64)
        self._users = np.asarray(users).astype(np.uint64)

    def _words(self, purpose: int, counter: IntArray | None = None) -> Words:
        """64 bits per user, purpose and counter."""
        if counter is None:
            return hashed(self._seed, self._users, np.array([purpose]), np.zeros(1, dtype=np.int64))
        return hashed(
            self._seed[:, None], self._users[:, None], np.array([[purpose]]), counter[None]
        )

    def _uniform(self, purpose: int) -> FloatArray:
        return np.asarray((self._words(purpose) >> np.uint64(11)) * np.float64(2.0**-53))

    def action(self, count: int) -> FloatArray:
        """One per user."""
        return self._uniform(_ACTION)

    def rounding(self, count: int) -> FloatArray:
        """One per user."""
        return self._uniform(_ROUNDING)

    def seeds(self, count: int) -> Words:
        """Two words per user."""
        return self._words(_SEED, np.arange(2))

    def coin(self, count: int, chance: int) -> BoolArray:
        """63 bits against the chance."""
        return np.asarray((self._words(_COIN) >> np.uint64(1)) < np.uint64(chance))

    def below(self, limits: IntArray) -> IntArray:
        """By scaling: a bias of 2^-50 does not matter here."""
        return np.floor(self._uniform(_PICK) * limits).astype(np.int64)
