"""Notices where they must be heard, and silence where all is well."""

import warnings
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import capri
from capri.environments import TabularEnvironment, public_pool, random_rkhs
from capri.epoch.plan import Notice, say, unheard, unsaid
from capri.features import spectral_basis
from capri.kernels import RBF, Columns, ContextAction, Kernel, Matern, stretched
from capri.learners import words
from capri.learners.belief import PRIOR_SCALES
from capri.learners.boundary import public_pairs
from capri.local.simulator import DeviceSimulator

MATERN = Matern(nu=2.5, lengthscale=0.3)
BUDGET = capri.Budget(epsilon=1.0, delta=1e-5)


def world(seed: int, kernel: Kernel = MATERN, **changes: Any) -> TabularEnvironment:
    return random_rkhs(kernel, seed=seed, **changes)


def told(environment: TabularEnvironment, kernel: Kernel, **changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": kernel,
        "actions": environment.actions,
        "contexts": public_pool(environment),
        "budget": BUDGET,
        "simulation_seed": 1,
    }
    return capri.Capri(**(settings | changes))


def kinds(policy: Any) -> list[str]:
    return [notice.kind for notice in policy.notices]


def heard(seed: int, factor: float, rounds: int = 10_000, **changes: Any) -> list[str]:
    """The kinds of notices of a run whose lengthscale is off by a factor."""
    environment = world(seed)
    kernel = stretched(MATERN, factor)
    assert kernel is not None
    with unsaid():
        policy = told(environment, kernel, horizon=rounds, simulation_seed=seed, **changes)
        capri.simulate(policy, environment, rounds, seed=seed)
    return kinds(policy)


# -- before any user ------------------------------------------------------------------------------


def wide_pool(schema: capri.Schema | None = None) -> capri.ContextPool:
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.random(40), 50 * generator.random(40)])
    return capri.ContextPool(rows, schema=schema)


def test_columns_on_unlike_scales_are_named() -> None:
    with pytest.warns(capri.KernelWarning, match="^scales: .* context column 1, .* column 0"):
        policy = capri.Capri(
            kernel=RBF(1.0), actions=2, contexts=wide_pool(), budget=BUDGET, simulation_seed=0
        )
    (notice,) = policy.notices
    assert 40 < notice.numbers["ratio"] < 60


def test_columns_are_called_as_their_schema_calls_them() -> None:
    table = [{"age": age, "income": income} for age, income in wide_pool().rows]
    schema = capri.Schema([capri.Numeric("age", 0, 1000), capri.Numeric("income", 0, 50)])
    with pytest.warns(capri.KernelWarning, match="'income'.*'age'"):
        capri.Capri(
            kernel=RBF(1.0),
            actions=[[0.0], [0.001]],
            contexts=capri.ContextPool(table, schema=schema),
            budget=BUDGET,
            simulation_seed=0,
        )


@pytest.mark.parametrize(
    "kernel",
    [
        RBF((1.0, 50.0, 1.0, 1.0)),
        Columns(RBF(), (0, 2, 3)) * Columns(RBF(20.0), (1,)),
        ContextAction(RBF((1.0, 50.0)), RBF(), 2),
    ],
)
def test_a_lengthscale_per_column_is_no_cause(kernel: Kernel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", capri.KernelWarning)
        policy = capri.Capri(
            kernel=kernel, actions=2, contexts=wide_pool(), budget=BUDGET, simulation_seed=0
        )
    assert policy.notices == ()


def test_rare_indicators_and_constant_columns_are_no_cause() -> None:
    rows = np.zeros((400, 3))
    rows[0, 0], rows[:, 1], rows[:, 2] = 1.0, 7.0, np.linspace(0, 1, 400)
    policy = capri.Capri(
        kernel=RBF(1.0),
        actions=[[0.0], [1.0]],
        contexts=capri.ContextPool(rows),
        budget=BUDGET,
        simulation_seed=0,
    )
    assert policy.notices == ()


def test_a_rank_that_binds_is_said_aloud() -> None:
    environment = world(0)
    with pytest.warns(capri.KernelWarning, match="^rank: max_rank = 10 coordinates leave out 0"):
        policy = told(environment, MATERN, max_rank=10)
    (notice,) = policy.notices
    pairs = public_pairs(policy.problem)
    basis, _ = spectral_basis(MATERN, pairs, tolerance=1e-3, max_rank=10)
    best = basis.residual(pairs, basis.coordinates(pairs)).mean()
    assert notice.numbers["left_out"] == pytest.approx(best, rel=0.2)
    assert told(environment, MATERN).notices == ()
    assert told(environment, MATERN, max_rank=10, rank_tolerance=0.9).notices == ()


def test_other_actions_are_looked_at_again() -> None:
    policy = capri.Capri(
        kernel=RBF(1.0),
        actions=[[0.0], [1.0]],
        contexts=capri.ContextPool([[0.0], [1.0]]),
        budget=BUDGET,
        first_epoch=50,
        simulation_seed=0,
    )
    policy.replace_actions([[0.0], [100.0]])
    assert policy.notices == ()
    with pytest.warns(capri.KernelWarning, match="^scales"):  # in force from the next epoch on
        policy.act([0.0])
    assert kinds(policy) == ["scales"]


# -- after releases -------------------------------------------------------------------------------


def test_prior_scales_at_either_end_are_told() -> None:
    assert words.prior_scale(1.0, 1.0) is None
    low, high = (words.prior_scale(scale, 1.0) for scale in (PRIOR_SCALES[0], PRIOR_SCALES[-1]))
    assert low is not None
    assert high is not None
    assert "reward_bound" in low.text
    assert "lengthscale" in high.text


@pytest.mark.parametrize("seed", [30, 31])
def test_a_lengthscale_four_times_too_long_is_heard(seed: int) -> None:
    """Of 100 other functions 98 were heard, and one at the right lengthscale."""
    assert "misfit" in heard(seed, 4.0)
    assert heard(seed, 1.0) == []


def test_notices_are_said_once_and_kept(tmp_path: Path) -> None:
    environment = world(30)
    policy = told(environment, Matern(nu=2.5, lengthscale=1.2), horizon=8000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = capri.simulate(policy, environment, 8000, seed=30)
    said = [str(each.message) for each in caught if each.category is capri.KernelWarning]
    recorded = [notice for record in result.epochs for notice in record.notices]
    assert "misfit" in kinds(policy)
    assert said == [str(notice) for notice in recorded]
    assert policy.notices == tuple(recorded)
    assert "misfit" in repr(policy.epochs)
    path = tmp_path / "policy.capri"
    policy.save(path)
    loaded = capri.Capri.load(path)
    assert loaded.notices == policy.notices
    assert loaded.epochs == policy.epochs
    assert loaded._learning.learner.known.fit == policy._learning.learner.known.fit  # type: ignore[attr-defined]


def test_the_line_of_the_caller_is_blamed() -> None:
    with pytest.warns(capri.KernelWarning) as caught:
        told(world(0), MATERN, max_rank=10)
    assert caught[0].filename == __file__


def test_a_notice_of_a_thread_of_ours_points_into_this_package() -> None:
    """Nobody's line led there; the standard library's would say nothing."""
    notice = Notice(kind="rank", text="a word")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = Thread(target=say, args=([notice],))
        thread.start()
        thread.join()
    (warning,) = caught
    assert "threading" not in warning.filename
    assert warning.filename.startswith(str(Path(capri.__file__).parent))


def test_a_warning_made_an_error_costs_nothing_else() -> None:
    """The release is learnt from and recorded; the next call goes on."""
    environment = world(30)

    def played(action: str) -> tuple[capri.Capri, int]:
        policy, raised = told(environment, Matern(nu=2.5, lengthscale=1.2), horizon=4000), 0
        generator = np.random.default_rng(3)
        with warnings.catch_warnings():
            warnings.simplefilter(action, capri.KernelWarning)  # type: ignore[arg-type]
            for _ in range(5):
                context = environment.draw_contexts(generator, policy.remaining)
                decisions = policy.act_many(environment.contexts[context])
                rewards = environment.rewards(generator, context, decisions.action_index)
                policy.update_many(decisions, rewards)
                try:
                    policy.close_epoch()
                except capri.KernelWarning:
                    raised += 1
        return policy, raised

    (quiet, none), (loud, raised) = played("ignore"), played("error")
    assert (none, raised > 0) == (0, True)
    rows = environment.contexts
    np.testing.assert_array_equal(quiet.estimate(rows), loud.estimate(rows))
    assert quiet.notices == loud.notices


def test_forecasts_warn_of_nothing() -> None:
    with unsaid():
        policy = told(world(0), MATERN, max_rank=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", capri.KernelWarning)
        policy.forecast(horizons=[500], functions=2)


def test_stores_keep_notices(tmp_path: Path) -> None:
    environment = world(30)
    address = f"sqlite:///{tmp_path / 'policy.db'}"
    settings: dict[str, Any] = {"horizon": 4000, "store": address}
    with unsaid():
        policy = told(environment, Matern(nu=2.5, lengthscale=1.2), **settings)
        capri.simulate(policy, environment, 3000, seed=30)
        again = told(environment, Matern(nu=2.5, lengthscale=1.2), **settings)
    assert policy.notices
    assert again.notices == policy.notices
    again.close()
    policy.close()


def test_aggregators_have_notices() -> None:
    environment = world(0)
    with pytest.warns(capri.KernelWarning, match="^rank"):
        fleet = DeviceSimulator.build(
            budget=capri.Budget(epsilon=4.0),
            simulation_seed=1,
            kernel=MATERN,
            actions=environment.actions,
            contexts=public_pool(environment),
            max_rank=5,
        )
    assert kinds(fleet) == ["rank"]


def test_a_kind_is_heard_once() -> None:
    first, second, other = (Notice(kind=kind, text=kind) for kind in ("a", "a", "b"))
    assert unheard([first, second, other], [other]) == (first,)
    assert hash(first) == hash(second)


# -- the pool -------------------------------------------------------------------------------------


def silent_run(
    contexts: np.ndarray, silence: Any, budget: capri.Budget | None = BUDGET, rounds: int = 4000
) -> capri.Capri:
    """Users from some contexts, some of them silent, of a policy that expects [0, 1]."""
    pool = np.linspace(0, 1, 20)[:, None]
    with unsaid():
        policy = capri.Capri(
            kernel=MATERN,
            actions=np.linspace(0, 1, 5)[:, None],
            contexts=capri.ContextPool(pool),
            budget=budget,
            missing_reward="as-estimated",
            horizon=rounds,
            simulation_seed=2,
        )
        generator, played = np.random.default_rng(5), 0
        while played < rounds:
            count = policy.remaining
            rows = contexts[generator.integers(len(contexts), size=count)]
            decisions = policy.act_many(rows)
            answered = generator.random(count) > silence(rows[:, 0], decisions.action[:, 0])
            rewards = 0.3 * np.sin(3 * rows[:, 0])
            there = [decisions[int(place)] for place in np.flatnonzero(answered)]
            policy.update_many(there, rewards[answered])
            played += count
        policy.close_full_epoch()
    return policy


@pytest.mark.parametrize(
    "silence",
    [
        lambda c, x: np.full_like(c, 0.5),
        lambda c, x: 1.0 * (c > 0.5),
        lambda c, x: 1.0 * (x > 0.4),
        lambda c, x: np.clip(2 * c * x, 0, 1),
    ],
)
@pytest.mark.parametrize("budget", [BUDGET, None])
def test_silence_of_any_pattern_is_not_the_pools_fault(
    silence: Any, budget: capri.Budget | None
) -> None:
    assert "pool" not in kinds(silent_run(np.linspace(0, 1, 20)[:, None], silence, budget))


@pytest.mark.parametrize("budget", [BUDGET, None])
def test_users_from_elsewhere_are_noticed(budget: capri.Budget | None) -> None:
    policy = silent_run(np.linspace(2, 3, 20)[:, None], lambda c, x: np.full_like(c, 0.5), budget)
    assert "pool" in kinds(policy)


# -- in full --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [10_000, 100_000])
def test_misfit_is_heard_in_nine_of_ten_wrong_runs(rounds: int) -> None:
    found = sum("misfit" in heard(seed, 4.0, rounds) for seed in range(60_000, 60_030))
    assert found >= 24  # 98 of 100 were heard: fewer than 24 of 30 is chance below 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"budget": None}])
def test_right_kernels_are_left_alone(changes: dict[str, Any]) -> None:
    found = [heard(seed, 1.0, **changes) for seed in range(60_000, 60_050)]
    assert sum("misfit" in each for each in found) <= 2
    assert sum(bool(each) for each in found) <= 3
