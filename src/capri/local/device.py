"""What a device does with its datum: decide, encode, make private. For one user or for many.

A simulation of a million users and the client of one user run these same lines; what one user gets
does not depend on the users beside it, to the last bit.
"""

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decide import LawTable
from capri.epoch.encode import contributions, features_and_baseline
from capri.epoch.plan import EpochPlan
from capri.local.bundle import Bundle
from capri.local.wire import Messages, pack
from capri.privacy.gate import Gate, ReportMechanism


class Device:
    """The part of the local model that sees data."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def decide(self, contexts: FloatArray, uniform: FloatArray) -> tuple[IntArray, FloatArray]:
        """An action from the public law for each context, and its probability."""
        rows, place = _distinct(contexts)
        with np.errstate(all="ignore"):  # a warning for some contexts only would tell of them
            return LawTable(self._bundle.conduct.probabilities(rows)).draw(place, uniform)

    def encode(self, contexts: FloatArray, actions: IntArray, rewards: FloatArray) -> IntArray:
        """Contributions on the integer grid, of norm at most ``grid.norm_limit``."""
        bundle = self._bundle
        pairs, place = _distinct(bundle.actions.chosen(contexts, actions))
        with np.errstate(all="ignore"):
            whitened, baseline = features_and_baseline(bundle.plan, pairs)
            return contributions(
                bundle.plan,
                whitened[place],
                baseline[place],
                rewards,
                reward_bound=bundle.reward_bound,
            )

    def report(
        self,
        contexts: FloatArray,
        actions: IntArray,
        rewards: FloatArray,
        gate: Gate,
    ) -> Messages:
        """One private report for each user, as rows of bytes (Alg. 1, line 14).

        A missing reward is a reward of 0. Only what passed the gate leaves this function.
        """
        bundle = self._bundle
        (tokens, payload), _ = gate.release(
            report_mechanism(bundle.plan),
            self.encode(contexts, actions, rewards),
            epoch=bundle.plan.epoch,
            participants=len(rewards),
        )
        return pack(bundle.randomizer, bundle.digest, tokens, payload)


def report_mechanism(plan: EpochPlan) -> ReportMechanism:
    """How one report passes the gate of a device."""
    return ReportMechanism(grid=plan.grid, rank=plan.dimension, sphere=plan.sphere)


def _distinct(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Distinct rows, and which of them each row is: users often share contexts."""
    if len(rows) <= 1:
        return rows, np.zeros(len(rows), dtype=np.int64)
    kinds, place = np.unique(rows, axis=0, return_inverse=True)
    return kinds, place.reshape(-1).astype(np.int64)
