"""A forecast agrees with what then happens, and costs the policy nothing."""

import json
import math
import pickle
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import play_epoch, small_policy, snapshot
from capri.environments import TabularEnvironment
from capri.errors import ConfigurationError
from capri.forecast.functions import FAMILY, RandomFunctions
from capri.forecast.result import ExpectedRegret
from capri.local.simulator import DeviceSimulator
from capri_lab.datasets import environment_by_name

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
SPACES = np.random.default_rng(5).random((20, 1))
CONTEXTS, ACTIONS = SPACES[:12], SPACES[12:]
BUDGET = capri.Budget(epsilon=1.0, delta=1e-5)
QUICK: dict[str, Any] = {"horizons": (300, 900), "functions": 2}


def configured(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": BUDGET,
    }
    return capri.Capri(**(settings | changes))


def fresh_function(seed: int) -> TabularEnvironment:
    """As in the theory, drawn without the code under test: 30 centres anywhere in the square."""
    generator = np.random.default_rng([seed, 77])
    centres, weights = generator.random((30, 2)), generator.standard_normal(30)
    weights /= math.sqrt(weights @ KERNEL(centres, centres) @ weights)
    pairs = np.array([[*context, *action] for context in CONTEXTS for action in ACTIONS])
    return TabularEnvironment(
        name="fresh",
        contexts=CONTEXTS,
        weights=np.full(12, 1 / 12),
        actions=ACTIONS,
        means=(KERNEL(pairs, centres) @ weights).reshape(12, 8),
        reward_bound=1.0,
        noise=0.1,
    )


@pytest.mark.slow
def test_forecast_and_simulation_agree_within_20_percent() -> None:
    """On other functions, users and noise.

    Regret varies between functions by about a third of its mean, so the difference of two means
    of 140 functions has a standard error of 4 %. A false alarm at 20 % has probability 6e-7, or
    2e-5 if the truth differs by 3 %, which is what 400 runs leave room for.
    """
    rounds, functions = 2000, 140
    policy = configured()
    expected = policy.forecast(
        horizons=(rounds,), functions=functions, seed=1, kinds=["known"], compare=False
    ).rows[0]
    simulated = np.array(
        [
            capri.simulate(
                configured(horizon=rounds, simulation_seed=9000 + number),
                fresh_function(number),
                rounds,
                seed=5000 + number,
            ).regret_per_round
            for number in range(functions)
        ]
    )
    spread = math.hypot(
        expected.regret_standard_error, simulated.std(ddof=1) / math.sqrt(functions)
    )
    assert spread < 0.045 * simulated.mean()  # else the test below would alarm by chance
    assert abs(expected.regret_per_round / simulated.mean() - 1) < 0.2
    assert 0.1 < expected.ratio < 0.6  # neither learnt at once nor hopeless: a real forecast


def test_the_policy_is_not_touched(tmp_path: Path) -> None:
    policy = small_policy(preset="practical", horizon=None)
    play_epoch(policy)
    policy.act_many([[0.0], [0.3]])  # decisions that still wait for their rewards
    before = snapshot(policy, tmp_path)
    policy.forecast(horizons=(200,), functions=2)
    assert snapshot(policy, tmp_path) == before


def test_a_private_policy_draws_and_releases_nothing() -> None:
    policy = configured()
    streams = [policy._streams.public, policy._streams.actions]
    before = [stream.bit_generator.state for stream in streams]
    policy.forecast(horizons=(400,), functions=2)
    assert [stream.bit_generator.state for stream in streams] == before
    assert policy.private
    assert policy.epochs == ()
    assert policy.ledger.events == ()


def test_forecast_repeats_under_its_seed() -> None:
    first, again = (configured().forecast(**QUICK, seed=4) for _ in range(2))
    assert first == again
    assert configured().forecast(**QUICK, seed=5).rows != first.rows


def test_shorter_horizons_are_read_off_the_same_run() -> None:
    """The last epoch of a run to 300 is longer than what is played of it, so nothing changes."""
    together = configured().forecast(horizons=(300, 900), functions=2)
    alone = configured().forecast(horizons=(300,), functions=2)
    assert together.at(1.0, 300) == alone.at(1.0, 300)
    rounds = [point.rounds for point in together.curve_of(1.0)]
    assert rounds == sorted(set(rounds))
    assert {300, 900} <= set(rounds)


def test_preset_paper_is_played_once_per_horizon() -> None:
    policy = configured(preset="paper", horizon=900)
    together = policy.forecast(horizons=(900, 300), functions=2)
    assert together.horizons == (300, 900)
    for horizon in (300, 900):
        alone = policy.forecast(horizons=(horizon,), functions=2)
        assert together.at(1.0, horizon) == alone.at(1.0, horizon)
    assert [epoch.length for epoch in together.epochs] == [30, 60, 120, 240, 450]
    for epoch in together.epochs:
        assert epoch.predicted_error is None
        assert epoch.gap == 4 * epoch.width
        variance = epoch.noise_scale**2
        assert epoch.noise_share == pytest.approx(variance / (variance + 1), rel=0.02)
    assert together.rows[-1].grade == "hopeless"


def test_epochs_are_those_of_the_policy() -> None:
    found = configured().forecast(horizons=(1000,), functions=3, epsilons=(1.0, 4.0))
    for epsilon in (1.0, 4.0):
        epochs = found.epochs_of(epsilon)
        policy = configured(budget=capri.Budget(epsilon=epsilon, delta=1e-5))
        lengths = [policy._learning._schedule.length(epoch.epoch) for epoch in epochs]
        assert [epoch.length for epoch in epochs] == lengths
        assert [epoch.rounds for epoch in epochs] == np.cumsum(lengths).tolist()
        assert epochs[-1].rounds <= 1000
        for epoch in epochs:
            assert epoch.gap == pytest.approx(2 * math.sqrt(2) * epoch.predicted_error)
            assert epoch.noise_share + epoch.sampling_share == pytest.approx(1)
            assert 0 < epoch.noise_share < 1
            assert 0 < epoch.active_share <= 1
    # The noise of the first epoch is fixed before any function is drawn.
    first = [found.epochs_of(epsilon)[0].noise_scale for epsilon in (1.0, 4.0)]
    assert first == pytest.approx([math.sqrt(8), math.sqrt(8) / 4], rel=1e-3)


def test_more_privacy_costs_more() -> None:
    found = configured().forecast(
        horizons=(1500,), functions=4, epsilons=(0.02, 1.0, math.inf), seed=2
    )
    hopeless, learning, free = (found.at(epsilon, 1500) for epsilon in found.epsilons)
    assert hopeless.ratio > 0.9 > learning.ratio > free.ratio
    assert hopeless.verdict == f"hopeless: no better than uniform play ({hopeless.figure})"
    assert found.epochs_of(0.02) == ()  # its first epoch is longer than the horizon
    assert all(epoch.noise_share == 0 for epoch in found.epochs_of(math.inf))


@pytest.mark.parametrize(
    ("ratio", "grade"),
    [(0.0, "good"), (0.2, "good"), (0.21, "learns"), (0.5, "learns"), (0.6, "learns slowly"),
     (0.9, "learns slowly"), (0.91, "hopeless"), (1.3, "hopeless")],
)  # fmt: skip
def test_grades(ratio: float, grade: str) -> None:
    outlook = ExpectedRegret(
        epsilon=1.0,
        rounds=10,
        functions=2,
        regret_per_round=0.1,
        regret_standard_error=0.0,
        ratio=ratio,
        ratio_standard_error=0.0,
    )
    assert outlook.grade == grade
    assert outlook.verdict.startswith(f"{grade}: ")


def test_regret_and_ratio_are_those_of_the_functions() -> None:
    """Ratios are averaged function by function, so their mean is not the ratio of the means."""
    found = configured(first_epoch=300).forecast(**QUICK)
    row = found.at(1.0, 300)
    assert row.ratio == pytest.approx(
        row.regret_per_round / found.uniform_regret_per_round, rel=0.3
    )
    assert row.ratio_standard_error > 0
    # Before the first epoch closes, play is uniform: 300 rounds of two functions, five standard
    # errors of about 4 % each.
    assert found.curve_of(1.0)[0].rounds == 30
    assert row.ratio == pytest.approx(1.0, abs=0.2)


def test_own_budget_is_the_default() -> None:
    assert configured().forecast(**QUICK).epsilons == (1.0,)
    free = configured(budget=None).forecast(**QUICK)
    assert free.epsilons == (math.inf,)
    assert free.delta is None
    assert "no privacy" in str(free)


def test_a_sampler_is_stood_for_and_it_is_said() -> None:
    sampler = capri.ContextSampler(lambda generator, count: generator.random((count, 2)), 2)
    found = configured(contexts=sampler).forecast(**QUICK)
    assert found.contexts == "256 contexts drawn from the sampler stand for it"
    assert 0 < found.at(1.0, 900).ratio < 1.2


def test_a_large_pool_is_stood_for_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capri.forecast.functions._POOL_PAIRS", 48)
    pool = capri.ContextPool(CONTEXTS, weights=[0.5, 0.5, *[0.0] * 10])
    found = configured(contexts=pool).forecast(**QUICK)
    assert found.contexts == "2 contexts stand for the pool of 12"


def test_contexts_with_their_own_actions() -> None:
    rows = np.random.default_rng(3).random((20, 1 + 4))
    policy = configured(
        actions=capri.VaryingActions(count=4, dimension=1), contexts=capri.ContextPool(rows)
    )
    assert policy.forecast(**QUICK).at(1.0, 900).regret_per_round > 0


def test_users_who_come_back_cost_noise() -> None:
    once = configured().forecast(horizons=(900,), functions=2)
    often = configured(contributions_per_user=4).forecast(horizons=(900,), functions=2)
    ratio = often.epochs[0].noise_scale / once.epochs[0].noise_scale
    # Four contributions: four times the Laplace noise of a cell.
    assert ratio == pytest.approx(4.0, rel=1e-4)


# A range around 0 is learnt as it is; any other has a level of its own, which is learnt, too.
AROUND_ZERO: list[dict[str, Any]] = [
    {"reward_range": (-0.5, 0.5)},
    {"reward_range": (-3e4, 3e4)},
]
ELSEWHERE: list[dict[str, Any]] = [
    {"reward_range": (10.0, 11.0)},
    {"reward_range": (-7e4, 3e4)},
    {"reward_range": (-1e-3, 0.0)},
    {"reward_range": (0.0, 3600.0), "reward_transform": "log1p"},
    {"reward_range": (1.0, 99.0), "reward_transform": "sqrt"},
]


@pytest.mark.parametrize(
    ("scale", "like"),
    [(scale, {"reward_bound": 1.0}) for scale in AROUND_ZERO]
    + [(scale, {"reward_range": (0.0, 1.0)}) for scale in ELSEWHERE],
    ids=str,
)
def test_forecast_is_the_same_wherever_rewards_lie(
    scale: dict[str, Any], like: dict[str, Any]
) -> None:
    """Users, noise and decisions of the same seeds are the same, and so is all that is told."""
    changed, plain = (configured(missing_reward="as-estimated", **each) for each in (scale, like))
    wider = changed.problem.reward_bound / plain.problem.reward_bound
    told, expected = (policy.forecast(**QUICK, compare=False) for policy in (changed, plain))
    assert expected.rows[-1].ratio < 0.8  # something is learnt
    for row, same in zip(expected.rows, told.rows, strict=True):
        assert same.ratio == pytest.approx(row.ratio, rel=1e-9)
        assert same.regret_per_round == pytest.approx(wider * row.regret_per_round, rel=1e-9)
        assert same.verdict == row.verdict
    for epoch, same in zip(expected.epochs, told.epochs, strict=True):
        assert same.width == pytest.approx(wider * epoch.width, rel=1e-6)
        assert same.noise_share == pytest.approx(epoch.noise_share, rel=1e-6)


@pytest.mark.slow
def test_default_kernel_has_one_verdict_wherever_rewards_lie() -> None:
    """Signs of eigenvectors turn with the last digit, so draws differ and their law does not.

    Every number here is seeded: ratios of .288 and .283, each a mean of ten functions, far from the
    ends of their verdict, .2 and .5, since last digits differ between processors.
    """
    rows = []
    for scale in ({"reward_range": (-0.5, 0.5)}, {"reward_range": (10.0, 11.0)}):
        policy = configured(kernel="auto", missing_reward="as-estimated", **scale)
        found = policy.forecast(horizons=(300, 3_000), functions=10, compare=False)
        rows.append(found.rows[-1])
        widths = [epoch.width / policy.problem.reward_bound for epoch in found.epochs]
        assert 0.1 < widths[0] < 0.4  # of the same functions, whatever their unit
        assert widths == sorted(widths, reverse=True)
    first, shifted = rows
    assert first.grade == shifted.grade == "learns"
    assert abs(first.ratio - shifted.ratio) < 0.1


def test_a_shift_leaves_the_verdict_of_the_default_kernel() -> None:
    rows = []
    for scale in ((0.0, 1.0), (10.0, 11.0), (-900.0, -899.0)):
        policy = configured(kernel="auto", missing_reward="as-estimated", reward_range=scale)
        rows.append(policy.forecast(**QUICK, compare=False).rows[-1])
    assert max(row.ratio for row in rows) - min(row.ratio for row in rows) < 0.02
    assert all(re.search(r"\(0\.\d+ \+- 0\.\d+\)$", row.verdict) for row in rows)


def test_devices_are_forecast_the_same_wherever_rewards_lie() -> None:
    def of(scale: tuple[float, float]) -> ExpectedRegret:
        server = capri.LocalCapri(
            kernel=KERNEL,
            actions=ACTIONS,
            contexts=capri.ContextPool(CONTEXTS),
            budget=capri.Budget(epsilon=8.0),
            reward_range=scale,
            missing_reward=scale[1],
        )
        users = DeviceSimulator(server, server.device_budget, simulation_seed=0)
        return users.forecast(**QUICK).rows[-1]

    plain, shifted = of((0.0, 1.0)), of((10.0, 11.0))
    assert plain.ratio < 0.8
    assert shifted.ratio == pytest.approx(plain.ratio, rel=1e-9)


def test_progress_counts_all_rounds() -> None:
    told: list[tuple[int, int]] = []
    configured().forecast(
        horizons=(500,),
        functions=2,
        epsilons=(1.0, 4.0),
        progress=lambda done, total: told.append((done, total)),
    )
    # Two functions at two epsilons, and the duel of both functions at one of them.
    assert {total for _, total in told} == {3000}
    assert told[-1] == (3000, 3000)
    assert all(before[0] < after[0] for before, after in pairwise(told))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizons": ()}, "at least one horizon"),
        ({"horizons": (1,)}, "horizon must be a whole number of 2 or more, got 1"),
        ({"horizons": (10.5,)}, "horizon must be a whole number of 2 or more, got 10.5"),
        ({"epsilons": ()}, "at least one epsilon"),
        ({"epsilons": (0.0,)}, "epsilon must be positive and finite, got 0.0"),
        ({"epsilons": (math.nan,)}, "epsilon must be positive and finite, got nan"),
        ({"functions": 1}, "functions must be a whole number of 2 or more, got 1"),
        ({"functions": 2.5}, "functions must be a whole number of 2 or more, got 2.5"),
        ({"noise": -0.1}, "noise must be zero or more and finite, got -0.1"),
        ({"noise": math.inf}, "noise must be zero or more and finite, got inf"),
        ({"seed": -1}, "seed must be a whole number of 0 or more, got -1"),
    ],
)
def test_bad_questions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configured().forecast(**changes)


def test_questions_that_have_no_answer() -> None:
    with pytest.raises(ConfigurationError, match="has no delta to go with an epsilon"):
        configured(budget=None).forecast(epsilons=(1.0,))
    with pytest.raises(ConfigurationError, match="single action"):
        configured(actions=[[0.5]]).forecast()
    with pytest.raises(ConfigurationError, match="all actions are equally good"):
        configured(actions=[[0.5], [0.5]]).forecast()
    found = configured().forecast(**QUICK)
    with pytest.raises(ConfigurationError, match="holds epsilon 1 and horizons 300, 900"):
        found.at(2.0, 300)


def test_result_is_small_and_plain() -> None:
    found = configured().forecast(horizons=(300, 20_000), functions=2)
    assert len(pickle.dumps(found)) < 50_000
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["rows"][0]["verdict"] == found.rows[0].verdict
    assert plain["epochs"][0]["gap"] == found.epochs[0].gap
    assert plain["model"] == "joint"
    text = str(found)
    assert "epsilon 1" in text
    assert f"{found.rows[1].ratio:.3f}" in text
    figure = found.plot()
    assert [axes.get_xscale() for axes in figure.axes] == ["log"] * 3


# -- the whole family ------------------------------------------------------------------------------


def worlds(policy: capri.Capri, functions: int = 12, **changes: Any) -> RandomFunctions:
    return RandomFunctions(policy.problem, policy.options, 0.1, 3, functions=functions, **changes)


def tables(kind: str, count: int, **changes: Any) -> list[np.ndarray]:
    world = worlds(configured(**changes), kinds=[kind])
    return [world.environment(number).means for number in range(count)]


SQUARE = capri.ContextPool(np.random.default_rng(6).random((60, 1)))


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("bound", [1.0, 20.0])
def test_functions_have_a_plausible_size(kind: str, bound: float) -> None:
    for means in tables(kind, 4, reward_bound=bound):
        assert np.abs(means).max() <= 0.9 * bound * (1 + 1e-12)
        size = math.sqrt(float((means**2).mean())) / bound
        assert size <= math.sqrt(0.1) * (1 + 1e-12)
        assert size == pytest.approx(math.sqrt(0.1)) or np.abs(means).max() > 0.89 * bound


def test_kinds_are_what_they_are_called() -> None:
    drawn = {kind: tables(kind, 8, contexts=SQUARE) for kind in FAMILY}
    free = drawn["context-free"][0]
    np.testing.assert_allclose(free, np.broadcast_to(free[0], free.shape), atol=1e-12)
    assert np.ptp(free[0]) > 0.05
    line = np.concatenate([np.ones((60, 1)), SQUARE.rows], axis=1)

    def bend(means: np.ndarray) -> float:
        """What a line in the context leaves of a function, as a share of what contexts explain."""
        left = means - line @ np.linalg.lstsq(line, means, rcond=None)[0]
        return float((left**2).sum() / ((means - means.mean(axis=0)) ** 2).sum())

    def of_actions(means: np.ndarray) -> float:
        return float(means.mean(axis=0).var() / (means - means.mean()).var())

    bends = {kind: np.mean([*map(bend, drawn[kind])]) for kind in ("linear", "smooth", "rough")}
    assert bends["linear"] < 0.01 < bends["smooth"] < bends["rough"]
    mostly, rough = (np.mean([*map(of_actions, drawn[k])]) for k in ("mostly actions", "rough"))
    assert mostly > rough + 0.1


def test_every_kernel_meets_the_same_functions() -> None:
    """Else verdicts could not be compared."""
    other = capri.kernels.RBF(lengthscale=2.0)
    every = [worlds(configured(kernel=kernel)) for kernel in (KERNEL, other, "auto")]
    known, _, unknown = every
    assert known.of_family == 10
    assert unknown.of_family == 12
    for number in range(10):
        first, *rest = (world.environment(number).means for world in every)
        for means in rest:
            np.testing.assert_array_equal(means, first)
    assert [known.kind_of(number) for number in (10, 11)] == ["known", "known"]
    assert "known" not in unknown.kinds


def test_the_verdict_counts_kinds_alike_and_leaves_the_known_kernel_out() -> None:
    found = configured().forecast(horizons=(300, 900), functions=8, compare=False, seed=2)
    assert found.costs == ()
    assert found.advice == "No known kernel was compared with kernel='auto'."
    assert found.advice not in str(found)
    for horizon in found.horizons:
        kinds = found.kinds_at(1.0, horizon)
        assert [each.kind for each in kinds] == [*FAMILY, "known"]
        assert [each.functions for each in kinds] == [2, 2, 1, 1, 1, 1]
        mean = np.mean([each.ratio for each in kinds[:-1]])
        assert found.at(1.0, horizon).ratio == pytest.approx(mean)
        assert [math.isnan(each.ratio_standard_error) for each in kinds] == [False] * 2 + [True] * 4


@pytest.mark.slow
def test_a_wrong_kernel_is_called_wrong() -> None:
    """On its own functions it is good, which is all that a forecast used to say."""
    wrong = capri.kernels.Matern(nu=2.5, lengthscale=3.0)
    asked: dict[str, Any] = {"horizons": (4000,), "functions": 6, "seed": 1}
    bad, good = (
        configured(kernel=kernel, contexts=SQUARE).forecast(**asked) for kernel in (wrong, KERNEL)
    )
    own = bad.kinds_at(1.0, 4000)[-1]
    assert own.kind == "known"
    assert bad.at(1.0, 4000).ratio > good.at(1.0, 4000).ratio + 0.03
    assert bad.costs[0].kind == "all"
    assert bad.costs[0].cost > 1.3 > good.costs[0].cost
    assert bad.advice.endswith("Leave the kernel out unless you know it.")
    assert bad.advice in str(bad)


def test_kernels_are_compared_on_the_same_functions_users_and_noise() -> None:
    policy = configured()
    found = policy.forecast(horizons=(600,), functions=2, epsilons=(1.0, 4.0), seed=3)
    every, *kinds = found.costs
    assert [each.kind for each in kinds] == ["rough", "mostly actions"]
    assert every.epsilon == 1.0
    assert every.known == pytest.approx(np.mean([each.known for each in kinds]))
    assert kinds[0].known == pytest.approx(found.kinds_at(1.0, 600)[0].ratio)
    world = worlds(policy, 2)
    auto = capri.simulate(
        policy.again(kernel="auto", simulation_seed=world.seed_of(0)),
        world.environment(0),
        600,
        seed=world.seed_of(0),
    )
    assert kinds[0].auto == pytest.approx(auto.ratio)
    assert configured(kernel="auto").forecast(**QUICK).costs == ()


def test_kinds_that_are_asked_for() -> None:
    found = configured().forecast(**QUICK, kinds=("linear", "context-free"), compare=False)
    assert {each.kind for each in found.kinds} == {"linear", "context-free"}
    with pytest.raises(ConfigurationError, match="kinds of functions must be one of 'known'"):
        configured().forecast(**QUICK, kinds=["wild"])
    with pytest.raises(ConfigurationError, match="kinds of functions must be one of 'rough'"):
        configured(kernel="auto").forecast(**QUICK, kinds=["known"])
    with pytest.raises(ConfigurationError, match="at least one kind"):
        configured().forecast(**QUICK, kinds=[])


def test_devices_are_forecast_with_the_noise_they_make() -> None:
    """The sphere's reports carry less noise than the paper's of the same model."""
    settings: dict[str, Any] = {
        "kernel": KERNEL, "actions": ACTIONS, "contexts": capri.ContextPool(CONTEXTS),
    }  # fmt: skip
    fleet = DeviceSimulator.build(budget=capri.Budget(epsilon=2.0), simulation_seed=1, **settings)
    digest = fleet.aggregator.digest
    asked: dict[str, Any] = {"horizons": (2000,), "functions": 5, "compare": False}
    device = fleet.forecast(**asked)
    assert device.model == "local"
    assert fleet.aggregator.digest == digest
    assert fleet.epochs == ()
    budget = capri.Budget(epsilon=2.0, delta=1e-5)
    paper = configured(model="local", preset="paper", budget=budget, horizon=2000)
    assert device.at(2.0, 2000).ratio < paper.forecast(**asked).at(2.0, 2000).ratio
    with pytest.raises(ConfigurationError, match="give finite epsilons"):
        fleet.forecast(horizons=(100,), epsilons=(math.inf,))


@pytest.mark.slow
def test_verdicts_rank_kernels_as_real_play_does() -> None:
    """Diabetes dosing at 1e4 rounds: 0.513 with the old quickstart's kernel, 0.504 with "auto".

    The forecasts are 0.146 and 0.135, on the same 50 functions; every seed is fixed. Of ten
    functions, or of the five on which kernels are compared, chance is larger than the difference.
    """
    pytest.importorskip("sklearn")
    world = environment_by_name("diabetes", raw=True)
    ranges = np.concatenate([np.ptp(world.pool.rows, axis=0), np.ptp(world.actions, axis=0)])
    quickstart = capri.kernels.Matern(nu=2.5, lengthscale=0.5 * ranges)
    kinds = ("rough", "mostly actions", "linear", "smooth", "context-free")
    ratios = {}
    for name, kernel in (("quickstart", quickstart), ("auto", "auto")):
        policy = capri.Capri(
            kernel=kernel,
            actions=world.actions,
            contexts=world.pool,
            reward_bound=world.reward_bound,
            budget=BUDGET,
            simulation_seed=0,
        )
        expected = policy.forecast(horizons=(10_000,), functions=50, compare=False, kinds=kinds)
        real = capri.simulate(policy, world, 10_000, seed=0)
        ratios[name] = expected.rows[0].ratio, real.ratio
    assert ratios["quickstart"][0] > ratios["auto"][0] + 0.005
    assert ratios["quickstart"][1] > ratios["auto"][1] + 0.003


@pytest.mark.parametrize("horizon", [None, 3_000])
def test_nothing_public_but_ranges_takes_its_time(horizon: int | None) -> None:
    """Made-up people come; until it is known who they are, play is uniform."""
    policy = capri.Capri(
        actions=[[0.0], [1.0], [2.0]],
        contexts=capri.ContextPool.from_ranges([(-1, 1), (0, 9)], size=32),
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        horizon=horizon,
    )
    asked = policy.plan().length
    found = policy.forecast(horizons=[asked, 3_000], functions=2, compare=False, seed=30)
    assert "made-up people" in found.contexts
    assert next(each for each in found.epochs if each.epoch == 1).length == asked
    early, late = found.rows
    if horizon is None:  # else the first horizon is too short to ask anybody
        assert early.ratio == pytest.approx(1.0, abs=0.15)
    assert late.ratio < 0.95
