"""What an attacker works out before a run: what each visit would add to a release, and whom to be.

Plans are public, hence so is what any visit contributes to the released vector. Whoever knows all
users but one subtracts the others, and knows where to look for the one that is left.
"""

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.audit.proof import Sighting
from capri.epoch.encode import contributions, features_and_baseline
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.shadow import ShadowSum
from capri.privacy.layout import Norm
from capri.spaces import context_chunks

_PROBES = 256
# Contexts whose two worlds lie this close to the farthest count as equal: among them the one of
# largest norm before clipping is taken, in case clipping is lost.
_GRADES = 50
# What an attacker sees beside the noise leaves no doubt.
_CERTAIN = 100.0


@dataclass(frozen=True, eq=False)
class Visit:
    """A context and the reward that follows it; None for a reward that never comes.

    ``given``: what else ``act`` is told, such as the actions that are available.
    """

    context: FloatArray
    reward: float | None
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether the context is a row of numbers."""
        return bool((np.abs(self.context) <= 1e100).all())


class Reader:
    """Reads the release of one epoch with its plan at hand, in units of the noise.

    ``segment``: the part of the epoch in which the visits came, the first where none is given.
    """

    def __init__(self, plan: EpochPlan, problem: Problem, segment: Segment | None = None) -> None:
        self.plan = plan
        self._problem = problem
        self.segment = segment or plan.opening
        self._known: dict[tuple[bytes, float, int], FloatArray] = {}

    @property
    def deviations(self) -> FloatArray:
        """The noise of each coordinate."""
        return self.plan.layout.deviations

    @property
    def norm(self) -> Norm:
        """In which messages are compared: what kind of noise hides them."""
        return self.plan.layout.norm

    @property
    def nothing(self) -> FloatArray:
        """What a visit adds that does not count."""
        return np.zeros(len(self.deviations))

    def share(self, visit: Visit, action: int) -> FloatArray:
        """What a visit adds: nothing where it does not count, a stand-in where no reward came."""
        if not visit.counts:
            return self.nothing
        reward = visit.reward
        value = self._problem.rewards.stand_in
        if reward is not None and np.isfinite(reward):
            value = float(reward)
        key = (visit.context.tobytes(), value, action)
        if key not in self._known:
            actions = self._problem.actions
            pairs = actions.chosen(visit.context[None], np.array([action]))
            self._known[key] = self.shares(pairs, value)[0]
        return self._known[key]

    def shares(self, pairs: FloatArray, reward: float) -> FloatArray:
        """What each pair would add with this reward."""
        units = contributions(
            self.plan,
            self.segment,
            *features_and_baseline(self.plan, self.segment, pairs),
            np.full(len(pairs), reward),
            scale=self._problem.scale,
        )
        return np.asarray(self.plan.layout.numbers(units) / self.deviations)

    def mean_share(self, visit: Visit, law: FloatArray) -> FloatArray:
        """What a visit adds on average over the action it is given."""
        return np.asarray(sum(p * self.share(visit, a) for a, p in enumerate(law)))

    def worst(
        self, candidates: FloatArray, law: FloatArray, low: float, high: float
    ) -> tuple[FloatArray, float]:
        """The context at which two rewards lie farthest apart, on average over its law; how far."""
        count = self._problem.actions.count
        far, norms = np.empty(len(candidates)), np.empty(len(candidates))
        for part in context_chunks(len(candidates), count):
            pairs = self._problem.actions.pairs(candidates[part])
            flat = pairs.reshape(-1, pairs.shape[-1])
            apart = self.shares(flat, high) - self.shares(flat, low)
            lengths = np.linalg.norm(apart, axis=1).reshape(-1, count)
            far[part] = (lengths * law[part]).sum(axis=1)
            whitened = np.linalg.norm(self.plan.features.whitened(flat), axis=1)
            norms[part] = whitened.reshape(-1, count).max(axis=1)
        harm = np.floor(_GRADES * far / max(far.max(), 1e-300) + 1e-6) + norms / (1 + norms)
        place = int(harm.argmax())
        return np.asarray(candidates[place]), float(far[place])


class ShadowReader(Reader):
    """Reads what an epoch releases of visits for which another system chose."""

    def __init__(self, plan: EpochPlan, problem: Problem, law: FloatArray) -> None:
        """``law`` of the policy at the one context from which everybody comes."""
        super().__init__(plan, problem)
        self._sum = ShadowSum(problem, plan.layout.norm, plan.epoch, plan.capacity)
        self._law = law

    @property
    def deviations(self) -> FloatArray:
        """The same noise for all coordinates."""
        return self._sum.layout.deviations

    @property
    def norm(self) -> Norm:
        """Of shadow messages."""
        return self._sum.layout.norm

    def share(self, visit: Visit, action: int) -> FloatArray:
        """What a visit adds: by what was chosen and how probable that was."""
        weight = self._law[visit.given["chosen"]] / visit.given["chosen_propensity"]
        units = self._sum.messages(np.array([weight]), np.array([visit.reward], dtype=float))
        return np.asarray(self._sum.layout.numbers(units[0]) / self.deviations)


def outside(rows: FloatArray) -> FloatArray:
    """Contexts in and around the box of a pool, none of them in it."""
    generator = np.random.default_rng(0)
    low, high = rows.min(axis=0), rows.max(axis=0)
    return np.asarray(low + (high - low) * generator.uniform(-0.2, 1.2, (_PROBES, rows.shape[1])))


@dataclass(frozen=True, eq=False)
class Piece:
    """One released vector without the others' shares, and what the target adds in either world.

    All in deviations of the noise, which is Gaussian, or Laplace where the ``norm`` is L1.
    """

    seen: FloatArray
    low: FloatArray
    high: FloatArray
    norm: Norm = Norm.L2

    @property
    def apart(self) -> FloatArray:
        """From the low world to the high one."""
        return self.high - self.low

    @property
    def length(self) -> float:
        """How far the worlds lie apart: this piece's ``mu``, or its epsilon in L1.

        Laplace noise of deviation 1 has the scale ``1 / sqrt 2``.
        """
        if self.norm is Norm.L1:
            return sqrt(2) * float(np.abs(self.apart).sum())
        return float(np.linalg.norm(self.apart))

    @property
    def statistic(self) -> float:
        """The logarithm of the likelihood ratio.

        ``(x - midpoint) . (high - low)`` in Gaussian noise, ``sqrt 2 (|x - low| - |x - high|)`` in
        Laplace noise.
        """
        if self.norm is Norm.L1:
            low, high = np.abs(self.seen - self.low), np.abs(self.seen - self.high)
            return sqrt(2) * float((low - high).sum())
        return float((self.seen - (self.low + self.high) / 2) @ self.apart)

    @property
    def projection(self) -> FloatArray:
        """The statistic in units of the noise, as a row."""
        return np.array([self.statistic / max(self.length, 1e-300)])

    def less(self, noise: FloatArray) -> "Piece":
        """``(x - x') / sqrt 2`` in the coordinates of both: noise of the same width again."""
        size = min(len(noise), len(self.seen))
        parts = self.seen[:size] - noise[:size], self.low[:size], self.high[:size]
        seen, low, high = (part / sqrt(2) for part in parts)
        return Piece(seen, low, high, self.norm)

    def resized(self, seen: FloatArray) -> "Piece":
        """The same worlds looked for in another vector, of whatever length."""
        fitting = np.zeros(len(self.seen))
        size = min(len(seen), len(fitting))
        fitting[:size] = seen[:size]
        return replace(self, seen=fitting)


@dataclass(frozen=True, eq=False)
class Play:
    """What came of one run: its pieces, what the attacker tells runs apart by, and a further row
    for whoever looks without knowing where."""

    pieces: list[Piece]
    group: int = 0
    extra: FloatArray = field(default_factory=lambda: np.empty(0))

    def sighting(self, *, as_usual: bool = True, whole: bool = False) -> Sighting:
        """All releases together: ``sum of statistics / sqrt(sum of mu^2)``, a unit normal.

        Or, where all noise that hides the target is Laplace, the share of its epsilon, from -1 to
        1, that the releases tell. ``as_usual``: nothing that is not random differs from other runs;
        else there is no doubt. ``whole``: show the vectors, which needs the same plan in every run,
        else projections.
        """
        telling = [piece for piece in self.pieces if piece.length > 0]
        pure = bool(telling) and all(piece.norm is Norm.L1 for piece in telling)
        if pure:
            scale = sum(piece.length for piece in telling)
        else:
            scale = sqrt(sum(piece.length**2 for piece in telling))
        statistic = sum(piece.statistic for piece in telling) / max(scale, 1e-300)
        rows = [piece.seen if whole else piece.projection for piece in self.pieces]
        row = np.concatenate([*rows, self.extra, [0.0 if as_usual else _CERTAIN]])
        return Sighting(statistic if as_usual else np.inf, row, self.group, pure)
