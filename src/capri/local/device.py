"""What a device does with its datum: decide, encode, make private. For one user or for many.

A simulation of a million users and the client of one user run these same lines; what one user gets
does not depend on the users beside it, to the last bit.

No value is refused: whether there is a report, and when, would tell of it. Where a context is not a
number, or beyond 1e100, the action is drawn uniformly and the contribution is the zero vector; a
reward that is not a number is a missing one. All of them take the same steps as any other.

A real device asks the operating system for every single random number. A simulation derives the
numbers of user ``i`` from a seed and ``i`` alone, so that a million users drawn at once and one
user in a process of its own are the same user.
"""

import os
import secrets
from abc import ABC, abstractmethod
from copy import copy

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.bounds import Bounds
from capri.epoch.decide import LawTable
from capri.epoch.encode import contributions, features_and_baseline
from capri.local.bundle import Bundle
from capri.local.coordinates import settled
from capri.local.wire import Messages, pack
from capri.privacy.gate import Gate
from capri.privacy.sphere import Words, hashed
from capri.spaces import LARGEST_CONTEXT


class Device:
    """The part of the local model that sees data."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    @property
    def bundle(self) -> Bundle:
        """What it decides and reports by."""
        return self._bundle

    def decide(
        self, contexts: FloatArray, uniform: FloatArray, available: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """An action from the public law for each context, and its probability."""
        usable, rows = _steady_rows(contexts)
        behaviour = self._bundle.behaviour
        bounds = behaviour.bounds or Bounds.none(behaviour.actions.count)
        if available is not None:
            with np.errstate(all="ignore"):
                law = behaviour.probabilities(rows, available)
                default = bounds.default(available, len(rows))
                law = np.where(usable[:, None], law, default)
            return LawTable(law).draw(np.arange(len(rows)), uniform)
        rows, place = _distinct(rows)
        with np.errstate(all="ignore"):  # a warning for some contexts only would tell of them
            law = behaviour.probabilities(rows)
            default = bounds.default(None, 1)
            place = np.where(usable, place, len(law))
            return LawTable(np.concatenate([law, default])).draw(place, uniform)

    def counted(self, contexts: FloatArray, available: BoolArray) -> FloatArray:
        """The contexts, and NaN where the set cannot be kept to: such a visit counts for nothing.

        The same steps for everybody.
        """
        _, rows = _steady_rows(contexts)
        behaviour = self._bundle.behaviour
        bounds = behaviour.bounds or Bounds.none(behaviour.actions.count)
        with np.errstate(all="ignore"):
            return np.where(bounds.served(rows, available)[:, None], contexts, np.nan)

    def encode(self, contexts: FloatArray, actions: IntArray, rewards: FloatArray) -> IntArray:
        """Contributions on the integer grid, of norm at most ``norm_limit``."""
        bundle = self._bundle
        usable, rows = _steady_rows(contexts)
        pairs, place = _distinct(bundle.actions.chosen(rows, actions))
        with np.errstate(all="ignore"):
            segment = bundle.plan.opening
            whitened, baseline = features_and_baseline(bundle.plan, segment, pairs)
            units = contributions(
                bundle.plan,
                segment,
                whitened[place],
                settled(baseline)[place],
                settled(np.where(np.isfinite(rewards), rewards, bundle.missing_reward)),
                scale=bundle.scale,
            )
        return units * usable[:, None]

    def report(
        self,
        contexts: FloatArray,
        actions: IntArray,
        rewards: FloatArray,
        gate: Gate,
    ) -> Messages:
        """One private report for each user, as rows of bytes (Alg. 1, line 14).

        A missing reward is what the bundle says, 0 by default, and so is one that is not a number.
        Only what passed the gate leaves this function.
        """
        bundle, plan = self._bundle, self._bundle.plan
        units = self.encode(contexts, actions, rewards)
        with np.errstate(all="ignore"):  # whatever the caller set, no value may raise
            tokens, numbers = gate.report(units, plan.vector, epoch=plan.epoch)
        return pack(bundle.digest, tokens, numbers)


def usable_rows(contexts: FloatArray) -> BoolArray:
    """Which contexts are numbers within the bound: the others are played by the default law."""
    return np.asarray((np.abs(contexts) <= LARGEST_CONTEXT).all(axis=1))


def _steady_rows(contexts: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Which contexts are usable, and rows to compute with: zeros in the place of the others."""
    usable = usable_rows(contexts)
    rows = np.where(usable[:, None], contexts, 0.0)
    rows += 0.0  # -0.0 becomes 0.0
    return usable, settled(rows)


def _distinct(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Distinct rows, and which of them each row is: users often share contexts."""
    if len(rows) <= 1:
        return rows, np.zeros(len(rows), dtype=np.int64)
    kinds, place = np.unique(rows, axis=0, return_inverse=True)
    return kinds, place.reshape(-1).astype(np.int64)


# -- randomness ------------------------------------------------------------------------------------

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
        bits = np.array([secrets.randbits(53) for _ in range(count)], dtype=np.float64)
        return bits * 2.0**-53

    rounding = action

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


def with_token(draws: DeviceRandomness, token: bytes) -> DeviceRandomness:
    """Draws of one device whose token is that of a ticket: the proof holds for every token."""
    words = np.frombuffer(token, dtype="<u8").astype(np.uint64)
    found = copy(draws)
    found.seeds = lambda count: words.reshape(count, 2)  # type: ignore[method-assign]
    return found


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
