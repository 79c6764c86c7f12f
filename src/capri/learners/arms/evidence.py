"""The kernel of arms by evidence: weights for what is common and for what is an arm's own.

``S = sum_k t_k P_k`` and ``D = sum_k t'_k P_k`` with ``P_k`` the constant and each candidate kernel
of contexts. The weights maximise the log evidence of all releases plus the log of a normal prior on
their logarithms. Context-free play is the corner where only the constants are left.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np
from scipy.optimize import minimize

from capri.arrays import FloatArray
from capri.family import Candidates
from capri.family.family import ACTION, CONSTANT, CONTEXT, INTERACTION
from capri.learners.arms.posterior import ArmPosterior, Solution, solve
from capri.learners.belief import PRIOR_SECOND_MOMENT, Belief
from capri.learners.room import LEVEL_DEVIATION, room_of, size_reach

# Deviation of each log weight from its expectation, and of all of them together.
_SPREAD, _COMMON = 1.5, 1.5
_STEPS = 25
# Added to every prior variance, as a share of the mean one, so that there is a root.
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class ArmPrior:
    """Candidates for the common part and for the own part of every arm."""

    candidates: Candidates
    norm_bound: float
    level_bound: float | None = None  # B, where rewards have a range and hence a level
    reach: float = 1.0

    @cached_property
    def parts(self) -> FloatArray:
        """``P_k``: the constant, then the kernels."""
        return np.roll(self.candidates.and_constant, 1, axis=0)

    @cached_property
    def expected(self) -> FloatArray:
        """Logarithms of the expected weights, common ones first."""
        shares = self.candidates.shares
        both = [CONSTANT, *(CONTEXT * shares), ACTION, *(INTERACTION * shares)]
        expected = np.log(
            np.array(both) * PRIOR_SECOND_MOMENT * (self.reach * self.norm_bound) ** 2
        )
        if self.level_bound is not None:
            expected[0] = 2 * log(LEVEL_DEVIATION * self.level_bound)
        return np.asarray(expected)

    def covariances(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``S`` and ``D`` under these log weights."""
        count, eye = len(self.parts), np.eye(self.parts.shape[1])
        t = np.exp(np.clip(x, -30.0, 10.0)).reshape(2, count)
        # Of the expected size, not of this one: it must not move with the weights.
        least = _LEAST * float(np.exp(self.expected).sum()) / len(eye)
        found = np.tensordot(t, self.parts, 1) + least * eye
        return found[0], found[1]

    def root(self, state: ArmPosterior) -> FloatArray:
        """Of the prior of every arm, under the weights of the posterior."""
        root = np.linalg.cholesky(sum(self.covariances(state.weights)))
        return np.broadcast_to(root, (len(state.mean), *root.shape))

    def of_shares(self, scale: float) -> FloatArray:
        """Variances of a function with values between 0 and 1, such as a rate."""
        expected = np.diag(sum(self.covariances(self.expected)))
        return np.asarray(PRIOR_SECOND_MOMENT * scale**2 * expected / expected.sum())

    def again(self, belief: Belief, weights: FloatArray) -> ArmPosterior:
        """The posterior under these log weights."""
        found = solve(belief.information, belief.vector, *self.covariances(weights))
        return ArmPosterior(mean=found.mean, own=found.own, carried=found.carried, weights=weights)

    def infer(self, belief: Belief, near: ArmPosterior | None = None) -> ArmPosterior:
        """Under the weights of largest evidence; ``near``: the posterior before, to start at.

        Within what the releases leave room for (learners/room.py).
        """
        reach = size_reach(belief, self.norm_bound)
        if self.level_bound is not None and belief.ends:
            found = replace(self, reach=reach)._found(belief, near)
            # The constant is the first coordinate of every arm.
            level = found.mean[:, 0]
            deviation = float(np.sqrt(found.covariance[:, 0, 0]).mean())
            reach = min(reach, room_of(float(level.mean()), deviation, self.level_bound))
        return (self if reach == self.reach else replace(self, reach=reach))._found(belief, near)

    def _found(self, belief: Belief, near: ArmPosterior | None) -> ArmPosterior:
        weights, evidence = self.expected, 0.0
        if belief.epochs and belief.information.any():
            start = weights if near is None else near.weights
            weights, evidence = self._preferred(belief, start)
        return replace(self.again(belief, weights), evidence=evidence)

    def loss(
        self, x: FloatArray, information: FloatArray, vector: FloatArray
    ) -> tuple[float, FloatArray]:
        """Minus log evidence and log prior of the weights, and its gradient."""
        found = solve(information, vector, *self.covariances(x))
        away = x - self.expected
        pull = self._precision @ away
        return 0.5 * float(away @ pull) - found.evidence, pull - self._slope(x, found)

    def _slope(self, x: FloatArray, found: Solution) -> FloatArray:
        """``t_k / 2 <P_k, slope>`` for every weight."""
        common, own = found.slopes()
        inner = np.concatenate(
            [np.tensordot(self.parts, common, 2), np.tensordot(self.parts, own, 2)]
        )
        return np.asarray(0.5 * np.exp(np.clip(x, -30.0, 10.0)) * inner)

    @cached_property
    def _precision(self) -> FloatArray:
        count = len(self.expected)
        return np.asarray(np.linalg.inv(_SPREAD**2 * np.eye(count) + _COMMON**2))

    def _preferred(self, belief: Belief, start: FloatArray) -> tuple[FloatArray, float]:
        """The better end of two ascents. Arms that were never played say nothing of weights."""
        seen = belief.information.any(axis=(1, 2))
        known = belief.information[seen], belief.vector[seen]
        starts = [start] if np.array_equal(start, self.expected) else [start, self.expected]
        found = [
            minimize(
                self.loss, x, args=known, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}
            )
            for x in starts
        ]
        best = min(found, key=lambda each: float(each.fun))
        return np.asarray(best.x), -float(best.fun)
