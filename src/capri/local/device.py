"""What a device does with its datum: decide, encode, make private. For one user or for many.

A simulation of a million users and the client of one user run these same lines; what one user gets
does not depend on the users beside it, to the last bit.

No value is refused: whether there is a report, and when, would tell of it. Where a context is not a
number, or beyond 1e100, the action is drawn uniformly and the contribution is the zero vector; a
reward that is not a number is a missing one. All of them take the same steps as any other.
"""

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.bounds import Bounds
from capri.epoch.decide import LawTable
from capri.epoch.encode import contributions, features_and_baseline
from capri.local.bundle import Bundle
from capri.local.coordinates import settled
from capri.local.wire import Messages, pack
from capri.privacy.gate import Gate
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
        conduct = self._bundle.conduct
        bounds = conduct.bounds or Bounds.none(conduct.actions.count)
        if available is not None:
            with np.errstate(all="ignore"):
                law = conduct.probabilities(rows, available)
                default = bounds.default(available, len(rows))
                law = np.where(usable[:, None], law, default)
            return LawTable(law).draw(np.arange(len(rows)), uniform)
        rows, place = _distinct(rows)
        with np.errstate(all="ignore"):  # a warning for some contexts only would tell of them
            law = conduct.probabilities(rows)
            default = bounds.default(None, 1)
            place = np.where(usable, place, len(law))
            return LawTable(np.concatenate([law, default])).draw(place, uniform)

    def counted(self, contexts: FloatArray, available: BoolArray) -> FloatArray:
        """The contexts, and NaN where the set cannot be kept to: such a visit counts for nothing.

        The same steps for everybody.
        """
        _, rows = _steady_rows(contexts)
        conduct = self._bundle.conduct
        bounds = conduct.bounds or Bounds.none(conduct.actions.count)
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
