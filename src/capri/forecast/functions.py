"""Random functions of many kinds that a forecast plays: nobody knows which of them the truth is.

All kinds but one are made of the public contexts and actions by the family of kernel "auto"
(:mod:`capri.family`): features ``u(c)`` and ``z(x)``, each with mean 0 and mean square 1, and

    f(c, x) = t_0 g + t_1 z^T a + t_2 u^T b + t_3 u^T M z

with Gaussian coefficients that have the covariance of one candidate kernel on each side. Functions
of kind "known" are those of the kernel that the policy takes for known:

    f = sum_j a_j k(., z_j),   a Gaussian, scaled to  a^T K a = norm bound^2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.checks import one_of
from capri.environments import TabularEnvironment
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.family import Candidates, family_of
from capri.kernels import Auto, random_coefficients
from capri.learners.belief import PRIOR_SECOND_MOMENT
from capri.learners.crowd import Crowd
from capri.learners.options import PracticalOptions
from capri.learners.presets import Options
from capri.spaces import ContextPool, Contexts, context_chunks
from capri.streams import FORECAST

KNOWN = "known"

# Functions reach at most this share of the reward bound: beyond it rewards would be clipped.
_LARGEST = 0.9
# Contexts that stand for a sampler, and the pairs up to which a pool is played as it is.
_STAND_IN = 256
_POOL_PAIRS = 1 << 17
_CENTRES = 30


@dataclass(frozen=True)
class FunctionKind:
    """Shares of the four effects, and which candidate gives their shape.

    ``context`` and ``action`` are places among the candidates, from 0 for the first to 1 for the
    last: contexts are linear at 0, then from rough to smooth; actions from rough to smooth.
    """

    name: str
    constant: float
    action_share: float
    context_share: float
    interaction: float
    context: float
    action: float


_KINDS = (
    FunctionKind("rough", 0.2, 0.2, 0.1, 0.5, context=0.34, action=0.0),
    FunctionKind("mostly actions", 0.2, 0.5, 0.1, 0.2, context=0.67, action=0.0),
    FunctionKind("linear", 0.2, 0.2, 0.1, 0.5, context=0.0, action=0.5),
    FunctionKind("smooth", 0.2, 0.2, 0.1, 0.5, context=1.0, action=1.0),
    FunctionKind("context-free", 0.3, 0.7, 0.0, 0.0, context=0.0, action=0.5),
)
FAMILY = {kind.name: kind for kind in _KINDS}


class RandomFunctions:
    """Functions on the spaces of a problem, by number, the same under the same seed."""

    def __init__(
        self,
        problem: Problem,
        options: Options,
        noise: float,
        seed: int,
        *,
        functions: int,
        kinds: Sequence[str] | None = None,
    ) -> None:
        sequence = np.random.SeedSequence([seed, FORECAST])
        generator = np.random.default_rng(sequence)
        self.problem, self.functions = problem, functions
        asked = isinstance(options, PracticalOptions) and options.learn_crowd
        crowd, count = Crowd.of(problem, None, asked=asked), problem.actions.count
        if crowd.asks:
            self.declared = problem.contexts
            self.pool, found = _pool(crowd.imagined(generator), count, generator)
            self.description = f"{found} made-up people, as nothing is public but ranges"
        else:
            self.pool, self.description = _pool(problem.contexts, count, generator)
            self.declared = self.pool
        self.kinds = _checked_kinds(kinds, known=self.kernel_known)
        norm = options.norm_bound if isinstance(options, PracticalOptions) else None
        self._norm = norm or problem.reward_bound
        self._noise, self._seed = noise * problem.reward_bound, seed
        # The generator chooses among public rows where they are many.
        of_family = np.random.default_rng(sequence.spawn(1)[0])
        self._family = family_of(self.pool, problem.actions, max_rank=1, generator=of_family)

    @property
    def kernel_known(self) -> bool:
        """Whether somebody chose the kernel."""
        return not isinstance(self.problem.kernel, Auto)

    def seed_of(self, number: int) -> int:
        """One seed for users, rewards and noise of a function, whatever the epsilon."""
        return int(np.random.SeedSequence([self._seed, FORECAST, number]).generate_state(1)[0])

    @property
    def others(self) -> tuple[str, ...]:
        """Kinds that are the same whatever kernel is taken for known."""
        return tuple(kind for kind in self.kinds if kind != KNOWN)

    @property
    def of_family(self) -> int:
        """Functions of these: a known kernel has its share of all, and comes last.

        So forecasts of different kernels meet the same functions under the same numbers.
        """
        known = self.functions // len(self.kinds) if KNOWN in self.kinds else 0
        return self.functions - known

    def kind_of(self, number: int) -> str:
        """Kinds take turns."""
        others = self.others
        return others[number % len(others)] if number < self.of_family else KNOWN

    @property
    def shares(self) -> FloatArray:
        """Weight of each function in an overall mean: kinds count alike, "known" for nothing.

        It is no part of the verdict unless it alone was asked for: every kernel is good for its own
        functions, and verdicts are there to be compared.
        """
        return self.shares_of(*self.others or self.kinds)

    def shares_of(self, *kinds: str) -> FloatArray:
        """Weight of each function in a mean over some kinds, which count alike."""
        every = [self.kind_of(number) for number in range(self.functions)]
        weights = np.array([1 / every.count(kind) if kind in kinds else 0.0 for kind in every])
        return np.asarray(weights / weights.sum())

    def environment(self, number: int) -> TabularEnvironment:
        """Function ``number``, of its kind."""
        generator, kind = np.random.default_rng(self.seed_of(number)), self.kind_of(number)
        means = (
            self._of_known_kernel(generator)
            if kind == KNOWN
            else self._of_kind(FAMILY[kind], generator)
        )
        return TabularEnvironment(
            name="forecast",
            contexts=self.pool.rows,
            weights=self.pool.weights,
            # Actions are played by number; their features may differ between contexts.
            actions=np.arange(float(self.problem.actions.count))[:, None],
            means=means,
            reward_bound=self.problem.reward_bound,
            noise=self._noise,
        )

    def _of_known_kernel(self, generator: np.random.Generator) -> FloatArray:
        """``f = sum_j a_j k(., z_j)`` scaled to the norm bound."""
        kernel, actions = self.problem.kernel, self.problem.actions
        rows, index = self.pool.draw(generator, _CENTRES)
        centres = actions.chosen(rows[index], generator.integers(actions.count, size=_CENTRES))
        weights = random_coefficients(kernel, centres, self._norm, generator)
        means = np.empty((self.pool.size, actions.count))
        for part in context_chunks(self.pool.size, actions.count):
            pairs = actions.pairs(self.pool.rows[part])
            flat = pairs.reshape(-1, pairs.shape[-1])
            means[part] = (kernel(flat, centres) @ weights).reshape(pairs.shape[:2])
        return means

    def _of_kind(self, kind: FunctionKind, generator: np.random.Generator) -> FloatArray:
        """``f`` for every context of the pool and every action.

        ``E f^2 = 0.1 norm^2`` under uniform play, as far as ``|f|`` stays below the bound.
        """
        basis, actions = self._family.basis, self.problem.actions
        coefficients = self._coefficients(kind, generator)
        means = np.empty((self.pool.size, actions.count))
        for part in context_chunks(self.pool.size, actions.count):
            own, brought = actions.parts(self.pool.rows[part])
            weights = basis.context(own) @ coefficients
            z = basis.action(brought.reshape(-1, brought.shape[-1]))
            means[part] = np.einsum("cj,caj->ca", weights, z.reshape(*brought.shape[:2], -1))
        size = sqrt(float(self.pool.weights @ (means**2).mean(axis=1)))
        largest = float(np.abs(means).max())
        if largest == 0:
            return means
        bound = _LARGEST * self.problem.reward_bound
        return means * min(sqrt(PRIOR_SECOND_MOMENT) * self._norm / size, bound / largest)

    def _coefficients(self, kind: FunctionKind, generator: np.random.Generator) -> FloatArray:
        """``g``, ``a``, ``b`` and ``M`` as one matrix: the first feature of each side is 1."""
        family, normal = self._family, generator.standard_normal
        contexts, actions = family.basis.context.width, family.basis.action.width
        left = _root(family.contexts, kind.context, contexts)
        right = _root(family.actions, kind.action, actions)
        coefficients = sqrt(kind.interaction) * (left @ normal((contexts, actions)) @ right.T)
        coefficients[0] += sqrt(kind.action_share) * right @ normal(actions)
        coefficients[:, 0] += sqrt(kind.context_share) * left @ normal(contexts)
        coefficients[0, 0] += sqrt(kind.constant) * normal()
        return np.asarray(coefficients)


def _root(candidates: Candidates, place: float, width: int) -> FloatArray:
    """A root of the covariance at a place among the candidates; 0 where there are none."""
    count = len(candidates.names)
    if count == 0:
        return np.zeros((width, width))
    values, vectors = np.linalg.eigh(candidates.covariances[round(place * (count - 1))])
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _checked_kinds(kinds: Sequence[str] | None, *, known: bool) -> tuple[str, ...]:
    """All kinds there are, or those that were asked for."""
    every = (KNOWN, *FAMILY) if known else tuple(FAMILY)
    if kinds is None:
        return every
    asked = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
    if not asked:
        raise ConfigurationError(f"a forecast needs at least one kind: {', '.join(every)}")
    return tuple(one_of("kinds of functions", kind, every) for kind in asked)


def _pool(
    contexts: Contexts, actions: int, generator: np.random.Generator
) -> tuple[ContextPool, str]:
    """The contexts to play, and what to say of them."""
    if not isinstance(contexts, ContextPool):
        rows, _ = contexts.support(generator, _STAND_IN)
        return ContextPool(rows), f"{_STAND_IN} contexts drawn from the sampler stand for it"
    if contexts.size * actions <= _POOL_PAIRS:
        return contexts, f"the pool of {contexts.size:,} contexts"
    rows, index = contexts.draw(generator, max(2, _POOL_PAIRS // actions))
    chosen, counts = np.unique(index, return_counts=True)
    pool = ContextPool(rows[chosen], weights=counts / counts.sum())
    return pool, f"{pool.size:,} contexts stand for the pool of {contexts.size:,}"
