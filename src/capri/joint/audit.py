"""Attack the real pipeline and see how much privacy loss can be proved.

An audit plays the worst neighbouring pair many times through the code that serves users: the pair
of largest whitened norm, with a reward far above the bound in one world and far below it in the
other. From how well the two worlds can be told apart it derives a lower bound on the privacy loss
that holds with the stated confidence. A bound above the claim proves a bug; a bound close below it
shows that the test has teeth and that little noise is wasted.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.encode import Encoder
from capri.epoch.plan import EpochPlan
from capri.errors import BudgetError, ConfigurationError
from capri.joint.policy import Capri
from capri.privacy.attack import (
    EXCESS,
    AttackResult,
    AuditResult,
    check_trials,
    chosen_attacks,
    clopper_pearson_upper,
    in_child,
    prove,
    proven_mu,
)
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.promise import PrivacyModel
from capri.spaces import context_chunks

__all__ = ["AttackResult", "AuditResult", "audit_policy", "clopper_pearson_upper", "proven_mu"]

_PROBES = 256
# The attacked context is treated as one that no table holds, whether or not the pool does.
_OUTSIDE = np.array([-1])
_ATTACKS = ("release", "difference", "fork")


def audit_policy(
    policy: Capri,
    *,
    trials: int = 20_000,
    confidence: float = 0.999,
    attacks: Sequence[str] = _ATTACKS,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Attack a fresh private policy; ``trials`` runs in each of the two worlds.

    Three attacks, each with its threshold fixed in advance at the midpoint: *release* reads what
    the gate gives for the attacked epoch (asking twice, and rewarding three times); *difference*
    subtracts the release of a second epoch, in case noise is reused; *fork* subtracts the release
    of a sibling process. The confidence holds for all of them together.
    ``progress`` is told how many runs are done, and how many there are.
    """
    if not policy.private:
        raise ConfigurationError(
            "only a private run can be audited: give the policy a budget and no simulation_seed"
        )
    check_trials(trials, confidence)
    chosen = chosen_attacks(attacks, _ATTACKS)
    if policy.pending:
        raise ConfigurationError(
            "an epoch of this policy is under way, and auditing it could release it: "
            "audit a policy of the same configuration that serves nobody"
        )
    target = _Target(policy)
    return prove(
        {name: getattr(target, name) for name in chosen},
        model=str(policy.model),
        budget=policy.ledger.budget,
        trials=trials,
        confidence=confidence,
        progress=progress,
    )


class _Target:
    """The pipeline under attack: one plan, the worst pair, and fresh epochs on demand."""

    def __init__(self, policy: Capri) -> None:
        self._policy = policy
        self._problem = policy.problem
        plan = policy.plan()
        self._context, self._action = self._worst_pair(plan)
        # Local: the report itself is public, so the attacked one stands alone. Joint: a bystander
        # whose reward never comes shares the epoch.
        local = self._problem.model is PrivacyModel.LOCAL
        self._length = 1 if local else 2
        self._plans = [replace(plan, length=self._length, epoch=epoch) for epoch in (1, 2)]
        # The attacker knows the plan, hence what either reward would add to the sum: the direction
        # to look in and the midpoint to compare with.
        low, none, high = (self._contribution(plan, sign) for sign in (-1.0, 0.0, 1.0))
        self._direction = (high - low) / np.linalg.norm(high - low)
        self._missing = float(none @ self._direction)
        self._midpoint = float((high + low) / 2 @ self._direction)

    def _contribution(self, plan: EpochPlan, sign: float) -> FloatArray:
        """What a reward adds to the released vector, in units of the noise."""
        units = Encoder(plan, self._problem).total(
            self._context, _OUTSIDE, self._action, sign * self._reward
        )
        return np.asarray(units * plan.grid.step / plan.noise_scale)

    @property
    def _reward(self) -> FloatArray:
        return np.array([EXCESS * self._problem.reward_bound])

    def _worst_pair(self, plan: EpochPlan) -> tuple[FloatArray, IntArray]:
        """The pair whose contributions lie farthest apart, in the pool or near it.

        Among pairs within 2 % of the farthest, the one of largest norm before clipping.
        """
        problem = self._problem
        generator = np.random.default_rng(0)
        rows, _ = problem.contexts.support(generator, _PROBES)
        low, high = rows.min(axis=0), rows.max(axis=0)
        probes = low + (high - low) * generator.uniform(-0.2, 1.2, (_PROBES, rows.shape[1]))
        candidates = np.concatenate([rows, probes])
        best, place = -1.0, (0, 0)
        for part in context_chunks(len(candidates), problem.actions.count):
            pairs = problem.actions.pairs(candidates[part])
            harm = self._harm(plan, pairs.reshape(-1, pairs.shape[-1])).reshape(pairs.shape[:2])
            where = np.unravel_index(int(harm.argmax()), harm.shape)
            if harm[where] > best:
                best, place = float(harm[where]), (part.start + int(where[0]), int(where[1]))
        return candidates[place[0]][None], np.array([place[1]])

    def _harm(self, plan: EpochPlan, pairs: FloatArray) -> FloatArray:
        """Distance between the two contributions in 50 grades, plus the norm within a grade."""
        norms = np.linalg.norm(plan.features.whitened(pairs), axis=1)
        baseline = np.zeros(len(pairs)) if plan.baseline is None else plan.baseline(pairs)
        ends = np.clip(
            np.array([[-1.0], [1.0]]) * self._problem.reward_bound - baseline,
            -plan.value_bound,
            plan.value_bound,
        )
        reach = (ends[1] - ends[0]) / (2 * plan.value_bound)
        distance = np.minimum(norms / plan.clip_norm, 1.0) * reach
        return np.asarray(np.floor(50 * distance + 1e-6) + norms / (1 + norms))

    def _gate(self) -> Gate:
        ledger = self._policy.ledger
        fresh = Ledger(ledger.budget, composition=self._problem.composition)
        return Gate(noise_source(None), fresh)

    def _play(self, gate: Gate, epoch: int, sign: float | None) -> FloatArray:
        """One epoch with the attacker's reward (or none); everything it gives away, averaged."""
        state = OpenEpoch(self._plans[epoch - 1], 0, self._problem, gate)
        everyone = np.repeat(self._context, self._length, axis=0)
        ids = state.issue(
            everyone, np.repeat(_OUTSIDE, self._length), np.repeat(self._action, self._length)
        )[:1]
        if sign is not None:
            # All but the first are duplicates and must be ignored, in one batch or one by one.
            state.reward(np.repeat(ids, 2), np.repeat(sign * self._reward, 2))
            state.reward(ids, sign * self._reward)
        seen = [state.release().vector]
        with suppress(BudgetError):  # the second release must be refused
            seen.append(state.release().vector)
        return np.asarray(np.mean(seen, axis=0))

    def _statistic(self, vector: FloatArray, midpoint: float) -> float:
        return float(vector @ self._direction) / self._plans[0].noise_scale - midpoint

    def release(self, sign: float) -> float:
        """What the release of the attacked epoch tells."""
        others = (self._length - 1) * self._missing
        return self._statistic(self._play(self._gate(), 1, sign), self._midpoint + others)

    def difference(self, sign: float) -> float:
        """What two consecutive releases of one gate tell."""
        gate = self._gate()
        return self._apart(self._play(gate, 1, sign), self._play(gate, 2, None))

    def fork(self, sign: float) -> float:
        """What two sibling processes tell."""
        first = in_child(lambda: self._play(self._gate(), 1, sign))
        return self._apart(first, in_child(lambda: self._play(self._gate(), 1, None)))

    def _apart(self, first: FloatArray, second: FloatArray) -> float:
        return self._statistic(first - second, self._midpoint - self._missing) / sqrt(2)
