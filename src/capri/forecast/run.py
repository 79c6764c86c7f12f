"""Know before any user is touched: play a policy's configuration against random functions.

Everything but ``f`` is public: kernel, spaces, noise, plans. So a policy of the same configuration,
with seeded noise, is played against random functions, and what they lose on average is what to
expect. On functions of its own every kernel is good, and the truth need not be one of them. So the
verdict is over functions of the whole family, rough, linear, context-free and so on, the same for
every kernel; and what a known kernel loses on them is set beside what ``kernel="auto"`` loses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf, isfinite, nan, sqrt
from numbers import Real
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from capri.arrays import FloatArray
from capri.checks import not_negative, whole
from capri.environments import TabularEnvironment
from capri.epoch.decisions import Decisions
from capri.epoch.plan import EpochRecord, unsaid
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardScale
from capri.errors import ConfigurationError
from capri.forecast.functions import KNOWN, RandomFunctions
from capri.forecast.result import ExpectedEpoch, ExpectedRegret, Forecast, KernelCost
from capri.learners.options import PracticalOptions
from capri.learners.presets import checked_horizon
from capri.privacy.budget import Budget, PrivacyModel
from capri.privacy.layout import Norm
from capri.simulation import ClosesEpochs, SimulationResult, simulate

if TYPE_CHECKING:
    from capri.joint.asking import Asking
    from capri.local.simulator import DeviceSimulator

# A policy whose configuration can be played again.
Forecastable: TypeAlias = "Asking | DeviceSimulator"
# Points per curve of a run that is read off at several horizons.
_CURVE_POINTS = 40
# Kernels differ most while little is known: longer runs would cost more time than they tell.
_LONGEST_COMPARISON = 10_000

# Called with the rounds played so far and the rounds of all runs together.
Progress = Callable[[int, int], None]


def forecast(
    policy: Forecastable,
    *,
    horizons: Sequence[int] = (1_000, 10_000, 100_000),
    epsilons: Sequence[float] | None = None,
    functions: int = 12,
    noise: float = 0.1,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    compare: bool = True,
    progress: Progress | None = None,
) -> Forecast:
    """Expected regret of a policy's configuration, by epsilon and horizon.

    The policy itself is not touched. ``epsilons`` replace that of its budget (None: its own;
    infinity: no privacy). Every epsilon meets the same ``functions`` random functions, of which
    the ``kinds`` take turns (None: all). The verdict is over all but kind "known", which are
    shown beside them and have 30 centres ``z_j`` drawn from the context distribution and uniform
    actions; there are none with ``kernel="auto"``. See :mod:`capri.forecast.functions`. Rewards are
    ``f`` plus uniform noise up to ``noise`` times the reward bound. A run without end is read off
    at all horizons; preset "paper", whose constants depend on the horizon, is played once for each.
    Where nothing is public but ranges, made-up people come, who do not fill them evenly, and the
    policy has to learn who they are; with a horizon of its own it, too, is played for each.
    A context sampler is stood for by 256 of its contexts, a pool beyond 131,072 pairs by as many of
    its contexts as have that many pairs.

    ``compare``: play ``kernel="auto"`` as well where a kernel is known, on a function of each kind
    and for at most 10,000 rounds.
    """
    asked = _checked_horizons(horizons)
    budgets = _budgets(policy, epsilons)
    whole("functions", functions, least=2)  # a single one says nothing of the spread
    not_negative("noise", noise)
    whole("seed", seed, least=0)
    if policy.problem.actions.count < 2:
        raise ConfigurationError("with a single action there is nothing to forecast")
    world = RandomFunctions(
        policy.problem, policy.options, float(noise), seed, functions=int(functions), kinds=kinds
    )
    practical = isinstance(policy.options, PracticalOptions)
    # A horizon that is told says how long a curator may take to learn who comes.
    told = getattr(policy, "horizon", None) is not None
    anytime = practical and (world.declared is world.pool or not told)
    lengths = asked[-1:] if anytime else asked
    comparison = _Comparison.of(world, budgets, asked[-1]) if compare and practical else None
    played = len(budgets) * functions * sum(lengths)
    player = _Player(policy, world, progress, played + (comparison.all_rounds if comparison else 0))
    curves: dict[float, dict[int, list[float]]] = {epsilon: {} for epsilon in budgets}
    records: dict[float, list[tuple[EpochRecord, ...]]] = {epsilon: [] for epsilon in budgets}
    uniform = []
    costs: list[KernelCost] = []
    for number in range(functions):
        environment = world.environment(number)
        uniform.append(environment.uniform_regret())
        if uniform[-1] == 0:
            raise ConfigurationError("all actions are equally good: there is no regret to forecast")
        for epsilon, budget in budgets.items():
            for length in lengths:
                horizon = None if anytime else length
                result = player.play(number, environment, length, budget=budget, horizon=horizon)
                for rounds in _checkpoints(asked) if anytime else [length]:
                    mean = float(result.regret[rounds - 1]) / rounds
                    curves[epsilon].setdefault(rounds, []).append(mean)
            # Of preset "paper", the epochs of the longest horizon.
            records[epsilon].append(result.epochs)
            if comparison is not None and comparison.asks(epsilon, number):
                costs.append(comparison.play(player, number, environment, result))
    outlooks = tuple(
        _outlook(epsilon, rounds, regrets, uniform, world.shares)
        for epsilon, curve in curves.items()
        for rounds, regrets in curve.items()
    )
    return Forecast(
        model=policy.problem.trust,
        preset=policy.preset,
        delta=None if policy.problem.budget is None else policy.problem.budget.delta,
        functions=int(functions),
        noise=float(noise),
        seed=seed,
        contexts=world.description,
        delta_buys=_bought(policy.problem, policy.preset),
        uniform_regret_per_round=float(world.shares @ uniform),
        rows=tuple(outlook for outlook in outlooks if outlook.rounds in asked),
        curves=outlooks,
        epochs=tuple(
            outlook
            for epsilon, runs in records.items()
            for outlook in _epoch_outlooks(epsilon, runs, policy.problem)
        ),
        kinds=tuple(
            _outlook(epsilon, rounds, regrets, uniform, world.shares_of(kind), kind)
            for epsilon, curve in curves.items()
            for rounds, regrets in curve.items()
            if rounds in asked
            for kind in dict.fromkeys(map(world.kind_of, range(functions)))
        ),
        costs=(_overall(costs, world), *costs) if costs else (),
    )


class _Player:
    """Plays fresh policies of one configuration, and adds up the rounds of all runs."""

    def __init__(
        self, policy: Forecastable, world: RandomFunctions, progress: Progress | None, total: int
    ) -> None:
        self._policy, self._world = policy, world
        self._progress, self._total, self._before = progress, total, 0

    def play(
        self, number: int, environment: TabularEnvironment, rounds: int, **changes: Any
    ) -> SimulationResult:
        """Play a function with seeded noise, without a prior, which is not of these functions."""
        problem, seed = self._policy.problem, self._world.seed_of(number)
        with unsaid():
            fresh = self._policy.again(
                prior=None, contexts=self._world.declared, simulation_seed=seed, **changes
            )
            users = _NewUsers(fresh, problem.scale, named=problem.limit is not None)
            result = simulate(users, environment, rounds, seed=seed, progress=self._show)
        self._before += rounds
        return result

    def _show(self, rounds: int, _: float) -> None:
        if self._progress is not None:
            self._progress(self._before + rounds, self._total)


class _NewUsers:
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


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The known kernel against "auto": at one epsilon, on one function of each kind."""

    epsilon: float
    budget: Budget | None
    rounds: int
    kinds: Mapping[int, str]

    @classmethod
    def of(
        cls, world: RandomFunctions, budgets: Mapping[float, Budget | None], longest: int
    ) -> "_Comparison | None":
        """At the policy's own epsilon where it is asked about, else at the middle one."""
        if not world.kernel_known:
            return None
        own = world.problem.budget
        epsilon = inf if own is None else own.epsilon
        if epsilon not in budgets:
            epsilon = [*budgets][len(budgets) // 2]
        kinds = [world.kind_of(number) for number in range(world.functions)]
        return cls(
            epsilon=epsilon,
            budget=budgets[epsilon],
            rounds=min(longest, _LONGEST_COMPARISON),
            kinds={kinds.index(kind): kind for kind in dict.fromkeys(kinds)},
        )

    @property
    def all_rounds(self) -> int:
        """Rounds to be played."""
        return self.rounds * len(self.kinds)

    def asks(self, epsilon: float, number: int) -> bool:
        """Whether this function is compared at this epsilon."""
        return epsilon == self.epsilon and number in self.kinds

    def play(
        self,
        player: _Player,
        number: int,
        environment: TabularEnvironment,
        known: SimulationResult,
    ) -> KernelCost:
        """Let "auto" play a function on which the known kernel had this result."""
        auto = player.play(
            number, environment, self.rounds, budget=self.budget, horizon=None, kernel="auto"
        )
        uniform = self.rounds * environment.uniform_regret()
        return KernelCost(
            kind=self.kinds[number],
            epsilon=self.epsilon,
            rounds=self.rounds,
            functions=1,
            known=float(known.regret[self.rounds - 1] / uniform),
            auto=float(auto.regret[-1] / uniform),
        )


def _overall(costs: Sequence[KernelCost], world: RandomFunctions) -> KernelCost:
    """The mean over all kinds that the verdict is over."""
    counted = [each for each in costs if each.kind != KNOWN or not world.others]
    return replace(
        counted[0],
        kind="all",
        functions=len(counted),
        known=_mean(each.known for each in counted),
        auto=_mean(each.auto for each in counted),
    )


def _checked_horizons(horizons: Sequence[int]) -> list[int]:
    """Whole numbers of at least 2, from short to long, each once."""
    if isinstance(horizons, int | np.integer):
        horizons = (int(horizons),)
    checked = sorted({value for one in horizons if (value := checked_horizon(one)) is not None})
    if not checked:
        raise ConfigurationError("a forecast needs at least one horizon")
    return checked


def _budgets(policy: Forecastable, epsilons: Sequence[float] | None) -> dict[float, Budget | None]:
    """The budget of each epsilon; infinity stands for none."""
    own = policy.problem.budget
    if epsilons is None:
        return {inf: None} if own is None else {own.epsilon: own}
    if isinstance(epsilons, Real):
        epsilons = (float(epsilons),)
    if len(epsilons) == 0:
        raise ConfigurationError("a forecast needs at least one epsilon")
    budgets: dict[float, Budget | None] = {}
    for epsilon in epsilons:
        if epsilon == inf:
            budgets[inf] = None
        elif own is None:
            raise ConfigurationError(
                "the policy runs without privacy and has no delta to go with an epsilon: "
                "give it a budget"
            )
        else:
            budgets[float(epsilon)] = Budget(epsilon=epsilon, delta=own.delta)
    return budgets


# What is compared with a pure budget.
_USUAL_DELTA = 1e-5


def _bought(problem: Problem, preset: str) -> str:
    """What a delta buys: dense messages, whose noise is Gaussian; "" where there is no choice.

    With ``r`` Gaussian over Laplace noise, ``m`` directions cost a dense release ``r^2 m^2`` and
    one of ``Q`` cells ``Q m``: cells tell more up to ``r^2`` of them a direction.
    """
    own = problem.budget
    if own is None or problem.model is not PrivacyModel.JOINT or preset != "practical":
        return ""
    budget = replace(own, delta=own.delta or _USUAL_DELTA)
    gaussian = replace(problem, budget=budget).noise_per_bound(1)
    laplace = problem.noise_per_bound(1, norm=Norm.L1)
    told = f"Delta {budget.delta:g} buys" if own.delta else f"A delta of {budget.delta:g} would buy"
    better = f"tell more up to {(gaussian / laplace) ** 2:.2g} cells a direction"
    return (
        f"{told} dense messages, with Gaussian noise of {gaussian:.3g} a coordinate; those of one "
        f"cell need none, have Laplace noise of {laplace:.3g} and "
        f"{better if gaussian > laplace else 'tell less'} (epsilon {own.epsilon:g})."
    )


def _checkpoints(asked: Sequence[int]) -> list[int]:
    """The horizons, and rounds at equal ratios up to the longest."""
    first = max(2, asked[0] // 10)
    between = np.geomspace(first, asked[-1], _CURVE_POINTS).round().astype(int)
    return sorted({*asked, *between.tolist()})


def _outlook(
    epsilon: float,
    rounds: int,
    regrets: Sequence[float],
    uniform: Sequence[float],
    shares: FloatArray,
    kind: str = "all",
) -> ExpectedRegret:
    """Means over functions by their shares ``p``, with standard errors ``sd sqrt(sum p^2)``."""
    counted = shares > 0
    regret, weights = np.array(regrets)[counted], shares[counted]
    ratio, rate = regret / np.array(uniform)[counted], sqrt(float(weights @ weights))
    alone = len(regret) == 1  # which says nothing of the spread
    return ExpectedRegret(
        kind=kind,
        epsilon=epsilon,
        rounds=rounds,
        functions=len(regret),
        regret_per_round=float(weights @ regret),
        regret_standard_error=nan if alone else rate * float(regret.std(ddof=1)),
        ratio=float(weights @ ratio),
        ratio_standard_error=nan if alone else rate * float(ratio.std(ddof=1)),
    )


def _epoch_outlooks(
    epsilon: float, runs: Sequence[tuple[EpochRecord, ...]], problem: Problem
) -> Iterator[ExpectedEpoch]:
    """Means of the records of each epoch, while most runs have one of its number.

    A run that takes its function for changed begins anew with short epochs: it ends there.
    """
    kept = [list(takewhile(lambda each: "drift" not in (each.kinds or ""), run)) for run in runs]
    for number in range(max(map(len, kept), default=0)):
        there = [run for run in kept if len(run) > number]
        if 2 * len(there) < len(runs):
            return
        records = [run[number] for run in there]
        width = _mean(record.width for record in records)
        predicted = _mean(record.predicted_error for record in records)
        share = _mean(_noise_share(record, problem, epsilon) for record in records)
        yield ExpectedEpoch(
            epsilon=epsilon,
            epoch=records[0].epoch,
            length=round(fmean(record.length for record in records)),
            rounds=round(fmean(sum(each.length for each in run[: number + 1]) for run in there)),
            width=width,
            predicted_error=predicted if isfinite(predicted) else None,
            gap=2 * sqrt(2) * predicted if isfinite(predicted) else 4 * width,
            noise_share=share,
            sampling_share=1 - share,
            active_share=_mean(record.active_share for record in records),
            noise_scale=_mean(record.noise_scale for record in records),
        )


def _noise_share(record: EpochRecord, problem: Problem, epsilon: float) -> float:
    """As recorded; where it is not, at least ``sigma^2 / (sigma^2 + B^2)`` per coordinate.

    The sampling covariance of ``sum y psi`` is at most ``B^2 n E[psi psi^T] <= B^2 I``, and the
    noise variance ``sigma^2`` is that of one release or of ``n`` local reports.
    """
    if epsilon == inf:
        return 0.0
    if record.noise_share is not None:
        return record.noise_share
    reports = record.length if problem.model is PrivacyModel.LOCAL else 1
    variance = reports * record.noise_scale**2
    return variance / (variance + problem.reward_bound**2)


def _mean(values: Iterable[float | None]) -> float:
    """The mean, or NaN where a value is missing."""
    return float(np.mean([nan if value is None else value for value in values]))
