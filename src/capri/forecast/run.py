"""Know before any user is touched: play a policy's configuration against random functions.

Everything but ``f`` is public: kernel, spaces, noise, plans. So a policy of the same configuration,
with seeded noise, is played against random functions, and what they lose on average is what to
expect. On functions of its own every kernel is good, and the truth need not be one of them. So the
verdict is over functions of the whole family, rough, linear, context-free and so on, the same for
every kernel; and what a told kernel loses on them is set beside what ``kernel="auto"`` loses.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf, isfinite, nan, sqrt
from numbers import Real

import numpy as np

from capri.arrays import FloatArray
from capri.checks import not_negative, whole
from capri.epoch.notice import unsaid
from capri.epoch.plan import EpochRecord
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.forecast.duel import Duel
from capri.forecast.result import ExpectedEpoch, ExpectedKind, ExpectedRegret, Forecast
from capri.forecast.ticker import Progress, Ticker
from capri.forecast.worlds import Forecastable, RandomFunctions
from capri.learners.options import PracticalOptions
from capri.learners.presets import checked_horizon
from capri.privacy.budget import Budget
from capri.privacy.promise import PrivacyModel
from capri.simulation import simulate

# Points per curve of a run that is read off at several horizons.
_CURVE_POINTS = 40


def forecast(
    policy: Forecastable,
    *,
    horizons: Sequence[int] = (1_000, 10_000, 100_000),
    epsilons: Sequence[float] | None = None,
    functions: int = 10,
    noise: float = 0.1,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    compare: bool = True,
    progress: Progress | None = None,
) -> Forecast:
    """Expected regret of a policy's configuration, by epsilon and horizon.

    The policy itself is not touched. ``epsilons`` replace that of its budget (None: its own;
    infinity: no privacy). Every epsilon meets the same ``functions`` random functions, of which
    the ``kinds`` take turns (None: all). The verdict is over all but kind "told", which are
    shown beside them:

        f = sum_j a_j k(., z_j),   a Gaussian, scaled to  a^T K a = norm bound^2,

    with 30 centres ``z_j`` drawn from the context law and uniform actions; there are none with
    ``kernel="auto"``. For the others see :mod:`capri.forecast.kinds`. Rewards are ``f`` plus
    uniform noise up to ``noise`` times the reward bound. A run without end is read off at all
    horizons; preset "paper", whose constants depend on the horizon, is played once for each. A
    context sampler is stood for by 256 of its contexts, a pool beyond 131,072 pairs by as many of
    its contexts as have that many pairs.

    ``compare``: play ``kernel="auto"`` as well where a kernel was told, on a function of each kind
    and for at most 10,000 rounds.
    """
    asked = _checked_horizons(horizons)
    budgets = _budgets(policy, epsilons)
    whole("functions", functions, least=2)  # a single one says nothing of the spread
    not_negative("noise", noise)
    whole("seed", seed, least=0)
    if policy.problem.actions.count < 2:
        raise ConfigurationError("with a single action there is nothing to forecast")
    world = RandomFunctions.of(policy, float(noise), seed, functions=int(functions), kinds=kinds)
    anytime = isinstance(policy.options, PracticalOptions)
    lengths = asked[-1:] if anytime else asked
    duel = Duel.of(world, budgets, asked[-1]) if compare and anytime else None
    played = len(budgets) * functions * sum(lengths)
    ticker = Ticker(progress, played + (0 if duel is None else duel.all_rounds))
    curves: dict[float, dict[int, list[float]]] = {epsilon: {} for epsilon in budgets}
    records: dict[float, list[tuple[EpochRecord, ...]]] = {epsilon: [] for epsilon in budgets}
    uniform = []
    for number in range(functions):
        environment = world.environment(number)
        uniform.append(environment.uniform_regret())
        if uniform[-1] == 0:
            raise ConfigurationError("all actions are equally good: there is no regret to forecast")
        for epsilon, budget in budgets.items():
            for length in lengths:
                with unsaid():
                    contender = world.policy(budget, None if anytime else length, number)
                    result = simulate(
                        contender, environment, length, seed=world.seed_of(number), progress=ticker
                    )
                ticker.next_run(length)
                for rounds in _checkpoints(asked) if anytime else [length]:
                    mean = float(result.regret[rounds - 1]) / rounds
                    curves[epsilon].setdefault(rounds, []).append(mean)
                if duel is not None:
                    duel.play(epsilon, number, environment, result.regret, ticker)
            # Of preset "paper", the epochs of the longest horizon.
            records[epsilon].append(result.epochs)
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
        uniform_regret_per_round=float(world.shares @ uniform),
        rows=tuple(outlook for outlook in outlooks if outlook.rounds in asked),
        curves=outlooks,
        epochs=tuple(
            outlook
            for epsilon, runs in records.items()
            for outlook in _epoch_outlooks(epsilon, runs, policy.problem)
        ),
        kinds=tuple(
            _of_kind(epsilon, rounds, kind, regrets, uniform, world)
            for epsilon, curve in curves.items()
            for rounds, regrets in curve.items()
            if rounds in asked
            for kind in dict.fromkeys(map(world.kind_of, range(functions)))
        ),
        costs=() if duel is None else duel.costs(),
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
) -> ExpectedRegret:
    """Means over functions by their shares ``p``, with standard errors ``sd sqrt(sum p^2)``."""
    counted = shares > 0
    regret, weights = np.array(regrets)[counted], shares[counted]
    ratio, rate = regret / np.array(uniform)[counted], sqrt(float(weights @ weights))
    return ExpectedRegret(
        epsilon=epsilon,
        rounds=rounds,
        regret_per_round=float(weights @ regret),
        regret_standard_error=rate * float(regret.std(ddof=1)),
        ratio=float(weights @ ratio),
        ratio_standard_error=rate * float(ratio.std(ddof=1)),
    )


def _of_kind(
    epsilon: float,
    rounds: int,
    kind: str,
    regrets: Sequence[float],
    uniform: Sequence[float],
    world: RandomFunctions,
) -> ExpectedKind:
    """The mean over the functions of one kind."""
    mine = [number for number in range(len(regrets)) if world.kind_of(number) == kind]
    ratio = np.array(regrets)[mine] / np.array(uniform)[mine]
    return ExpectedKind(
        kind=kind,
        epsilon=epsilon,
        rounds=rounds,
        functions=len(mine),
        ratio=float(ratio.mean()),
        ratio_standard_error=float(ratio.std(ddof=1)) / sqrt(len(mine)) if len(mine) > 1 else None,
    )


def _epoch_outlooks(
    epsilon: float, runs: Sequence[tuple[EpochRecord, ...]], problem: Problem
) -> Iterator[ExpectedEpoch]:
    """Means of the records of each epoch, over the runs that kept to the usual lengths.

    A run that takes its function for changed begins anew with short epochs, hence has more of them.
    """
    usual = [record.length for record in min(runs, key=len)]
    kept = [run for run in runs if [record.length for record in run] == usual]
    for records, end in zip(zip(*kept, strict=True), accumulate(usual), strict=True):
        width = _mean(record.width for record in records)
        predicted = _mean(record.predicted_error for record in records)
        share = _mean(_noise_share(record, problem, epsilon) for record in records)
        yield ExpectedEpoch(
            epsilon=epsilon,
            epoch=records[0].epoch,
            length=records[0].length,
            rounds=end,
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
