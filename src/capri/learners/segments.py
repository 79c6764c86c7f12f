"""What an epoch may play, and what its plan expects: the pairs and the segments of epochs.

A segment has a public law, a baseline and a bound. Expectations under it are sums over public
contexts. Rows that stand for the pool come with its weights, rows beside it with weight 0; a law of
contexts makes a support of them.

Coefficients are one block or many. A support is walked through block by block, so that every
formula of a plan and of a release is written once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.play import BehaviourPolicy
from capri.features import Function, Span
from capri.learners.belief import Believed, Block, Expected, Observation
from capri.partition import summed
from capri.spaces import Actions, ContextPool, context_chunks

if TYPE_CHECKING:
    from capri.epoch.problem import Problem
    from capri.learners.arm_messages import ArmSupport, PlayedArms
    from capri.learners.context_law import ContextLaw

# Pairs with probabilities, block by block; and what a segment may play, before anybody says how
# often each context comes.
Supported: TypeAlias = "Support | ArmSupport"
SegmentPlay: TypeAlias = "PlayedPairs | PlayedArms"

# Contexts that stand for a sampler's law, or for a pool too large to walk through.
_SAMPLE_CONTEXTS = 2048
# A pool of up to this many pairs is walked through whole.
_POOL_PAIRS = 1 << 20
# Pairs with positive probability whose features are held at once (150 coordinates: 80 MB).
# Over a pool of no more, expectations under any law are exact.
SUPPORT_PAIRS = 1 << 16
# Coordinates of up to so many numbers are kept from planning to reading: 16 MB.
_KEPT = 1 << 21


@dataclass(frozen=True, eq=False)
class Stage:
    """Public contexts with weights on which an epoch is planned, and the law at each.

    The whole pool where that is feasible (``is_pool``), else a fresh sample for every epoch.
    """

    contexts: FloatArray
    weights: FloatArray
    is_pool: bool
    law: FloatArray | None = None

    @classmethod
    def draw(cls, problem: "Problem", generator: np.random.Generator) -> "Stage":
        """The stage of a coming epoch."""
        contexts = problem.contexts
        if isinstance(contexts, ContextPool):
            if contexts.size * problem.actions.count <= _POOL_PAIRS:
                return cls(contexts.rows, contexts.weights, True)
            rows = generator.choice(contexts.size, size=_SAMPLE_CONTEXTS, p=contexts.weights)
            sample = contexts.rows[rows]
        else:
            sample, _ = contexts.support(generator, _SAMPLE_CONTEXTS)
        return cls(sample, np.full(len(sample), 1.0 / len(sample)), False)

    def law_of(self, behaviour: BehaviourPolicy) -> FloatArray:
        """The law at its contexts: the one that is kept, or computed."""
        return behaviour.expected(self.contexts) if self.law is None else self.law


def predicted(predictor: Function, actions: Actions, contexts: FloatArray) -> FloatArray:
    """Values of all pairs of each context: ``(n, n_actions)``, some contexts at a time."""
    values = np.empty((len(contexts), actions.count))
    for part in context_chunks(len(contexts), actions.count):
        values[part] = predictor(actions.pairs(contexts[part]))
    return values


def keeps(numbers: int) -> bool:
    """Whether so many are worth keeping from planning to reading."""
    return numbers <= _KEPT


def shortened(psi: FloatArray) -> FloatArray:
    """Rows cut to norm 1."""
    return np.asarray(psi / np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None])


# -- what may be played ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Estimated:
    """What is believed of ``f`` at all pairs of a support, block after block.

    ``unknown``: the mean square of what is not known, of the least known block.
    """

    unknown: float
    variance: FloatArray
    estimate: FloatArray
    weights: FloatArray


@dataclass(frozen=True, eq=False)
class Support:
    """Pairs ``(n, d)`` of one block with probabilities that sum to 1, and their coordinates.

    ``row``: the number of each pair's context.
    """

    pairs: FloatArray
    weights: FloatArray
    features: FloatArray
    row: IntArray

    @cached_property
    def differences(self) -> FloatArray:
        """``E[d d^T]``, ``d(c, x) = v(c, x) - E[v(c, .)]`` over the actions played in a context.

        What all actions of a context have in common decides nothing. Where one action is left in
        every context, ``E[v v^T]``.
        """
        rows, place = np.unique(self.row, return_inverse=True)
        apart, weighted = self.features, self.features * self.weights[:, None]
        if len(rows) < len(place):
            mass = np.bincount(place, self.weights)
            apart = apart - (summed(weighted, place, len(rows)) / mass[:, None])[place]
        return np.asarray((apart * self.weights[:, None]).T @ apart)

    def blocks(self) -> Iterator[tuple[Block, FloatArray, FloatArray]]:
        """The one block."""
        yield ..., self.features, self.weights

    def estimated(self, state: Believed) -> Estimated:
        """What a belief says of the pairs."""
        variance = np.sum((self.features @ state.factor) ** 2, axis=1)
        estimate = self.features @ state.mean
        return Estimated(float(self.weights @ variance), variance, estimate, self.weights)

    def left_out(self, basis: Span) -> FloatArray:
        """What the basis leaves out of each pair, as a variance."""
        return basis.residual(self.pairs, self.features)


@dataclass(frozen=True, eq=False)
class PlayedPairs:
    """Pairs of one block with the row of their context and the chance of their action there.

    The first rows are ``contexts`` with the pool's ``weights``, the others those elsewhere.
    ``kept``: the same pairs would be found again, and are worth keeping. ``sampled``: the contexts
    are a sample of those that may come.
    """

    contexts: FloatArray
    weights: FloatArray
    pairs: FloatArray
    features: FloatArray
    row: IntArray
    chance: FloatArray
    kept: bool
    sampled: bool

    @classmethod
    def of(
        cls,
        basis: Span,
        stage: Stage,
        behaviour: BehaviourPolicy,
        elsewhere: FloatArray,
        generator: np.random.Generator,
    ) -> "PlayedPairs":
        """Of the stage's contexts with positive weight; of too many pairs, those of some."""
        contexts, weights, law = stage.contexts, stage.weights, stage.law_of(behaviour)
        present = weights > 0
        if not present.all():
            contexts, weights, law = contexts[present], weights[present], law[present]
        used = np.count_nonzero(law)
        if drawn := used > SUPPORT_PAIRS:
            fewer = max(1, int(len(contexts) * SUPPORT_PAIRS / used))
            chosen = generator.choice(len(contexts), size=fewer, p=weights)
            contexts, law = contexts[chosen], law[chosen]
            weights = np.full(fewer, 1.0 / fewer)
        rows = contexts
        if len(elsewhere):
            rows = np.concatenate([contexts, elsewhere])
            law = np.concatenate([law, behaviour.expected(elsewhere)])
        row, action = np.nonzero(law)
        pairs, features = basis.played(behaviour.actions, rows, row, action)
        kept = not drawn and keeps(features.size)
        sampled = bool(drawn) or not stage.is_pool
        return cls(contexts, weights, pairs, features, row, law[row, action], kept, sampled)

    def support(self, law: "ContextLaw") -> Support:
        """The pairs with their probabilities under a law of contexts."""
        weights = np.concatenate(law.weights(self.contexts, self.weights))
        chances = weights[self.row] * self.chance
        on = chances > 0
        if on.all():
            return Support(self.pairs, chances, self.features, self.row)
        return Support(self.pairs[on], chances[on], self.features[on], self.row[on])


# -- what is expected -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """What is expected of an epoch, as the learner needs it when the release is there.

    ``observations``: what its messages say of each block. ``main_share`` is the share of a
    message's norm that carries ``t psi``, ``noise`` the standard deviation of the privacy noise
    after division by it. ``spread = E[v v^T]`` and ``left_out = E[residual]`` are expectations.
    """

    observations: Mapping[Block, Observation]
    value_bound: float
    residual: bool
    main_share: float
    noise: float
    residual_variance: float
    spread: FloatArray
    left_out: float
    squares: Expected
    # Where the epoch was not what its plan expected: how many answered, and the bound by which
    # squared residuals were divided on average (see learners/reading.py).
    answers: float | None = None
    moment_bound: float | None = None

    @property
    def observation(self) -> Observation:
        """What is said of the only block."""
        return self.observations[...]

    @property
    def participants(self) -> int:
        """Answers that are expected."""
        return max(each.participants for each in self.observations.values())

    @property
    def noise_share(self) -> float:
        """Privacy noise as a share of the variance of the released vector."""
        covariances = [each.covariance for each in self.observations.values()]
        noise = self.noise**2 * sum(len(each) for each in covariances)
        return noise / max(sum(float(np.trace(each)) for each in covariances), 1e-300)

    @property
    def information(self) -> FloatArray:
        """``H^T R^-1 H`` of every block."""
        found = np.zeros_like(self.spread)
        for block, seen in self.observations.items():
            found[block] = seen.design.T @ np.linalg.solve(seen.covariance, seen.design)
        return found


@dataclass(frozen=True, eq=False)
class PlannedSegment:
    """A segment as the learner needs it again: what was played, subtracted and clipped at.

    ``design`` is what the plan expected of the whole epoch, of use as long as no release came
    since: ``learnt`` counts those before it. ``moved``: the actions were replaced since it was
    played, and the basis with them.
    """

    behaviour: BehaviourPolicy
    stage: Stage
    baseline: FloatArray
    value_bound: float
    learnt: int
    design: Design | None = None
    moved: bool = False
    # The information that the epoch will give, where its design is not kept for that.
    promised: FloatArray | None = None
    # What it may play, kept in memory where that is small and would be found the same again.
    played: "SegmentPlay | None" = None

    @property
    def information(self) -> FloatArray | None:
        """What the epoch will tell, as its plan expects it; None where nobody knows."""
        if self.promised is None and self.design is not None:
            return self.design.information
        return self.promised


# The segments of every epoch that is planned and not yet read; only the newest takes decisions.
Pending = dict[int, tuple[PlannedSegment, ...]]


@dataclass(frozen=True, eq=False)
class BlockPart:
    """What is expected of a block in a segment: pairs, ``psi``, and how often each is played.

    ``left_out``: by the basis, as variances.
    """

    block: Block
    features: FloatArray
    psi: FloatArray
    weights: FloatArray
    left_out: FloatArray | float
