"""The configuration of a policy against random functions of many kinds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from capri.arrays import FloatArray
from capri.checks import one_of
from capri.environments import TabularEnvironment
from capri.epoch.decide import Decisions
from capri.epoch.plan import EpochRecord
from capri.epoch.problem import Problem
from capri.epoch.scale import RewardScale
from capri.errors import ConfigurationError
from capri.forecast.kinds import FAMILY, TOLD, FamilyFunctions
from capri.kernels import Auto, random_coefficients
from capri.learners.options import PracticalOptions
from capri.learners.presets import Options
from capri.privacy.budget import Budget
from capri.simulation import ClosesEpochs
from capri.spaces import ContextPool, Contexts, context_chunks
from capri.streams import FORECAST

# Contexts that stand for a sampler, and the pairs up to which a pool is played as it is.
_STAND_IN = 256
_POOL_PAIRS = 1 << 17
_CENTRES = 30


class Forecastable(Protocol):
    """A policy whose configuration can be played again; see :class:`capri.Capri`."""

    @property
    def problem(self) -> Problem:
        """What it was built for."""

    @property
    def preset(self) -> str:
        """The preset it was built from."""

    @property
    def options(self) -> Options:
        """The choices of its preset."""

    def again(self, **changes: Any) -> Any:
        """A fresh policy of the same configuration."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomFunctions:
    """The spaces of a policy, random functions on them, and fresh policies to play there."""

    configured: Forecastable
    pool: ContextPool
    norm: float
    noise: float
    seed: int
    description: str
    kinds: tuple[str, ...]
    family: FamilyFunctions
    functions: int

    @classmethod
    def of(
        cls,
        policy: Forecastable,
        noise: float,
        seed: int,
        *,
        functions: int,
        kinds: Sequence[str] | None = None,
    ) -> "RandomFunctions":
        """For the configuration of a policy, which is read and not changed."""
        problem, options = policy.problem, policy.options
        sequence = np.random.SeedSequence([seed, FORECAST])
        generator = np.random.default_rng(sequence)
        pool, description = _pool(problem.contexts, problem.actions.count, generator)
        norm = options.norm_bound if isinstance(options, PracticalOptions) else None
        return cls(
            configured=policy,
            pool=pool,
            norm=norm or problem.reward_bound,
            noise=noise * problem.reward_bound,
            seed=seed,
            description=description,
            kinds=_checked_kinds(kinds, told=not isinstance(problem.kernel, Auto)),
            family=FamilyFunctions.of(
                pool, problem.actions, np.random.default_rng(sequence.spawn(1)[0])
            ),
            functions=functions,
        )

    @property
    def told(self) -> bool:
        """Whether somebody chose the kernel."""
        return not isinstance(self.problem.kernel, Auto)

    @property
    def problem(self) -> Problem:
        """What the policy was built for."""
        return self.configured.problem

    def seed_of(self, number: int) -> int:
        """One seed for users, rewards and noise of a function, whatever the epsilon."""
        return int(np.random.SeedSequence([self.seed, FORECAST, number]).generate_state(1)[0])

    def policy(
        self, budget: Budget | None, horizon: int | None, number: int, **changes: Any
    ) -> "NewUsers":
        """A fresh policy of the same configuration, with seeded noise.

        Without what it was told beforehand, which is not of these functions.
        """
        fresh = self.configured.again(
            prior=None,
            budget=budget,
            horizon=horizon,
            contexts=self.pool,
            simulation_seed=self.seed_of(number),
            **changes,
        )
        return NewUsers(fresh, self.problem.scale, named=self.problem.limit is not None)

    @property
    def others(self) -> tuple[str, ...]:
        """Kinds that are the same whatever kernel is told."""
        return tuple(kind for kind in self.kinds if kind != TOLD)

    @property
    def of_family(self) -> int:
        """Functions of these: a told kernel has its share of all, and comes last.

        So forecasts of different kernels meet the same functions under the same numbers.
        """
        told = self.functions // len(self.kinds) if TOLD in self.kinds else 0
        return self.functions - told

    def kind_of(self, number: int) -> str:
        """Kinds take turns."""
        others = self.others
        return others[number % len(others)] if number < self.of_family else TOLD

    @property
    def shares(self) -> FloatArray:
        """Weight of each function in an overall mean: kinds count alike, the told one for nothing.

        It is no part of the verdict unless it alone was asked for: every kernel is good for its own
        functions, and verdicts are there to be compared.
        """
        kinds = [self.kind_of(number) for number in range(self.functions)]
        counts = {kind: kinds.count(kind) for kind in self.others or self.kinds}
        weights = np.array([1 / counts[kind] if kind in counts else 0.0 for kind in kinds])
        return np.asarray(weights / weights.sum())

    def environment(self, number: int) -> TabularEnvironment:
        """Function ``number``, of its kind."""
        generator, kind = np.random.default_rng(self.seed_of(number)), self.kind_of(number)
        if kind == TOLD:
            means = self._of_told_kernel(generator)
        else:
            means = self.family.draw(FAMILY[kind], self.norm, self.problem.reward_bound, generator)
        return TabularEnvironment(
            name="forecast",
            contexts=self.pool.rows,
            weights=self.pool.weights,
            # Actions are played by number; their features may differ between contexts.
            actions=np.arange(float(self.problem.actions.count))[:, None],
            means=means,
            reward_bound=self.problem.reward_bound,
            noise=self.noise,
        )

    def _of_told_kernel(self, generator: np.random.Generator) -> FloatArray:
        """``f = sum_j a_j k(., z_j)`` scaled to the norm bound."""
        kernel, actions = self.problem.kernel, self.problem.actions
        rows, index = self.pool.draw(generator, _CENTRES)
        centres = actions.chosen(rows[index], generator.integers(actions.count, size=_CENTRES))
        weights = random_coefficients(kernel, centres, self.norm, generator)
        means = np.empty((self.pool.size, actions.count))
        for part in context_chunks(self.pool.size, actions.count):
            pairs = actions.pairs(self.pool.rows[part])
            flat = pairs.reshape(-1, pairs.shape[-1])
            means[part] = (kernel(flat, centres) @ weights).reshape(pairs.shape[:2])
        return means


def _checked_kinds(kinds: Sequence[str] | None, *, told: bool) -> tuple[str, ...]:
    """All kinds there are, or those that were asked for."""
    known = (TOLD, *FAMILY) if told else tuple(FAMILY)
    if kinds is None:
        return known
    asked = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
    if not asked:
        raise ConfigurationError(f"a forecast needs at least one kind: {', '.join(known)}")
    return tuple(one_of("kinds of functions", kind, known) for kind in asked)


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


class NewUsers:
    """A policy that meets a new user in every round, with an id where ids are asked for.

    Functions are drawn of what is learnt, ``y`` within ``[-B, B]``. Users send rewards in the
    policy's own units, so that a forecast is the same wherever the range of rewards lies.
    """

    def __init__(self, policy: Any, scale: RewardScale, *, named: bool) -> None:
        self._policy, self._scale, self._named, self._seen = policy, scale, named, 0

    @property
    def remaining(self) -> int:
        """Decisions that may be asked for at once."""
        return int(self._policy.remaining)

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Records of closed epochs."""
        return tuple(self._policy.epochs)

    def act_many(self, contexts: object) -> Decisions:
        """Decide, each context being that of a user never seen before."""
        names = {}
        if self._named:
            names["users"] = range(self._seen, self._seen + len(np.asarray(contexts)))
            self._seen = names["users"].stop
        decisions: Decisions = self._policy.act_many(contexts, **names)
        return decisions

    def update_many(self, decisions: Decisions, rewards: object) -> None:
        """Pass the rewards on, which are values ``y``, in the policy's own units."""
        self._policy.update_many(decisions, self._scale.sent(np.asarray(rewards)))

    def close_full_epoch(self) -> None:
        """Pass the end of the run on, to whoever closes epochs."""
        if isinstance(self._policy, ClosesEpochs):
            self._policy.close_full_epoch()
