"""What the policy would be worth where another system decides (mode "shadow").

The other system plays ``a`` with probability ``p``; the policy would have with
``pi(a | c)``. With ``w = min(pi(a | c) / p, W)`` the mean of ``w y`` estimates what the policy
would earn (inverse propensity scores, clipped at the public bound ``W``: never above what it is
worth for rewards of 0 or more). A visit with reward ``c + y``, ``|y| <= B`` around the middle ``c``
of its range, sends ``s = w / W``, ``r = y / B`` and their product: split over four corners where
Laplace noise is to be had (:mod:`capri.privacy.histogram`), and else

    (2/3) [ s r,  s - 1/2,  r ]

whose norm is at most 1 whatever the values are; ``w (c + y) = w y + c w``. The sum over the visits
of an epoch passes the gate by itself, with the whole budget: a visit is in this sum or in that of
the learner, never in both.
"""

from dataclasses import asdict, dataclass
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.privacy.histogram import CornerLayout, corner_layout
from capri.privacy.layout import Norm
from capri.privacy.ledger import SHADOW, ReleaseEvent
from capri.privacy.vector import VectorLayout, vector_layout

if TYPE_CHECKING:
    from capri.epoch.problem import Problem
    from capri.privacy.gate import Gate

# The public bound W on a weight.
WEIGHT_BOUND = 10.0
_COORDINATES = 3
# What brings the longest vector, s = r = 1, to norm 1.
_SHARE = 2 / 3


@dataclass(frozen=True)
class ShadowRecord:
    """What an epoch released of its shadow visits. All of it is public.

    ``worth``: what the policy would have earned a visit, by clipped inverse propensity scores;
    ``earned``: what the other system did. ``weight``: the mean weight, near 1 where little is
    clipped and propensities are right. Each with the deviation of the noise that it carries.
    """

    epoch: int
    visits: int
    worth: float
    worth_noise: float
    earned: float
    earned_noise: float
    weight: float
    weight_noise: float
    weight_bound: float = WEIGHT_BOUND

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


class ShadowSum:
    """The secret sum of an epoch's shadow visits, on its way to the gate."""

    def __init__(self, problem: "Problem", norm: Norm, epoch: int, capacity: int) -> None:
        """``norm``: that of the epoch's plan, one noise an epoch. ``capacity``: its most visits."""
        self._epoch, self._scale = epoch, problem.scale
        self.layout: CornerLayout | VectorLayout
        if norm is Norm.L1:
            self.layout = corner_layout(
                length=capacity, budget=problem.budget, contributions=problem.contributions
            )
        else:
            self.layout = vector_layout(
                value_bound=1.0,
                rank=_COORDINATES,
                length=capacity,
                budget=problem.budget,
                composition=problem.composition,
            )
        self.visits = 0
        self.units = np.zeros(self.layout.coordinates, dtype=np.int64)

    def __repr__(self) -> str:
        return f"ShadowSum(epoch={self._epoch})"

    def add(self, weights: FloatArray, rewards: FloatArray) -> None:
        """Messages of visits; no reward counts as the middle of the range."""
        self.visits += len(weights)
        self.units += self.messages(weights, rewards).sum(axis=0)

    def messages(self, weights: FloatArray, rewards: FloatArray) -> IntArray:
        """The message of each visit, in units of the grid."""
        with np.errstate(all="ignore"):  # a warning would tell of a visit
            share = np.clip(weights, 0.0, WEIGHT_BOUND) / WEIGHT_BOUND
            reward = np.nan_to_num(self._scale.learnt(rewards), nan=0.0) / self._scale.bound
            if isinstance(self.layout, CornerLayout):
                return self.layout.messages(share, reward)
            message = _SHARE * np.stack([share * reward, share - 0.5, reward], axis=1)
            return self.layout.bounded(message)

    def _read(self, numbers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means of ``s r``, ``s`` and ``r``, and the deviations of their noise."""
        if isinstance(self.layout, CornerLayout):
            sums, deviations = self.layout.read(numbers)
            return sums / self.visits, deviations / self.visits
        scale = 1 / (_SHARE * self.visits)
        noise = np.full(_COORDINATES, self.layout.deviation("main"))
        return numbers * scale + [0.0, 0.5, 0.0], noise * scale

    def release(self, gate: "Gate") -> tuple[ShadowRecord, ReleaseEvent | None]:
        """Pass the gate."""
        sums, event = gate.release(
            self.units, self.layout, epoch=self._epoch, participants=self.visits, purpose=SHADOW
        )
        means, noises = self._read(sums)
        worth, weight, earned = means.tolist()
        product, share, reward = noises.tolist()
        largest, bound, centre = WEIGHT_BOUND, self._scale.bound, self._scale.centre
        return ShadowRecord(
            epoch=self._epoch,
            visits=self.visits,
            worth=largest * (worth * bound + weight * centre),
            worth_noise=largest * hypot(product * bound, share * centre),
            earned=earned * bound + centre,
            earned_noise=reward * bound,
            weight=weight * largest,
            weight_noise=share * largest,
        ), event
