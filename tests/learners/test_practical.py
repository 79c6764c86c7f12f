"""Preset "practical" from the outside: it learns, repeats, saves, scales and says no."""

import struct
import zipfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import BUDGET, records, snapshot
from capri import ConfigurationError
from capri.environments import TabularEnvironment, random_rkhs
from capri.kernels import RBF, Linear, Matern
from capri.learners.options import PracticalOptions
from capri.simulation import PeakMemory
from epochs_inside import open_epoch

CONTEXTS = np.linspace(0.0, 1.0, 8)[:, None]
ACTIONS = np.linspace(0.0, 1.0, 5)[:, None]
every_style = pytest.mark.parametrize(
    "style", [{}, {"residual": False}], ids=["residuals", "whole rewards"]
)
UNIFORM = capri.Limits(floor=dict.fromkeys(range(5), 0.2))  # leaves nothing to the law


def make_policy(**changes: Any) -> capri.Capri:
    """Epochs of 60, 90, 135, ... decisions at an epsilon that lets them learn."""
    settings: dict[str, Any] = {
        "kernel": Matern(nu=2.5, lengthscale=0.4),
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": capri.Budget(epsilon=8.0, delta=1e-5),
        "first_epoch": 60,
        "simulation_seed": 5,
    }
    return capri.Capri(**(settings | changes))


def mean_reward(contexts: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return 0.6 * np.sin(4 * contexts.sum(axis=1) - 5 * actions.sum(axis=1))


def play(
    policy: capri.Capri,
    rounds: int | None = None,
    *,
    seed: int = 0,
    rows: np.ndarray = CONTEXTS,
    scale: float = 1.0,
) -> np.ndarray:
    """Play some rounds, by default one epoch; returns the actions taken."""
    rng = np.random.default_rng(seed)
    left = policy.remaining if rounds is None else rounds
    taken = []
    while left:
        count = min(left, policy.remaining)
        contexts = rows[rng.integers(len(rows), size=count)]
        decisions = policy.act_many(contexts)
        noise = rng.uniform(-0.1, 0.1, size=count)
        policy.update_many(decisions, scale * (mean_reward(contexts, decisions.action) + noise))
        policy.close_full_epoch()
        taken.append(decisions.action_index)
        left -= count
    return np.concatenate(taken)


def uniform_sampler(dimension: int) -> capri.ContextSampler:
    return capri.ContextSampler(
        lambda generator, count: generator.random((count, dimension)), dimension
    )


# -- it learns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, 0.3),
        pytest.param({"budget": None}, 0.08, marks=pytest.mark.slow),
    ],
    ids=["default", "no privacy"],
)
def test_regret_is_well_below_that_of_uniform_play(changes: dict[str, Any], limit: float) -> None:
    """Mean over 12 fresh functions at T = 5000; limits are about 1.5 times what was measured
    (0.19, 0.03), five or more standard errors above it."""
    kernel = Matern(nu=2.5, lengthscale=0.3)
    ratios = []
    for seed in range(12):
        environment = random_rkhs(kernel, contexts=20, actions=20, seed=4000 + seed)
        settings: dict[str, Any] = {
            "kernel": kernel,
            "actions": environment.actions,
            "contexts": capri.ContextPool(environment.contexts),
            "budget": BUDGET,
            "horizon": 5000,
            "simulation_seed": seed,
        }
        policy = capri.Capri(**(settings | changes))
        ratios.append(capri.simulate(policy, environment, 5000, seed=seed).ratio)
    assert np.mean(ratios) < limit
    assert np.max(ratios) < 1.0


def test_estimate_comes_nearer_the_truth_from_epoch_to_epoch() -> None:
    """Under uniform play without privacy: the error against the true function, not against noisy
    targets, falls to a tenth, and the predicted error is of its size."""
    policy = make_policy(budget=None, limits=UNIFORM)
    pairs = np.array([[*c, *x] for c in CONTEXTS for x in ACTIONS])
    truth = mean_reward(pairs[:, :1], pairs[:, 1:]).reshape(8, 5)
    errors = []
    for seed in range(9):
        play(policy, seed=seed)
        errors.append(float(np.sqrt(np.mean((policy.estimate(CONTEXTS) - truth) ** 2))))
    assert errors[-1] < 0.1 * errors[0]
    predicted = policy.epochs[-1].predicted_error
    assert predicted is not None
    assert 0.3 < errors[-1] / predicted < 3.0


@pytest.mark.parametrize("dimension", [1, 5, pytest.param(20, marks=pytest.mark.slow)])
def test_continuous_contexts_are_learnt_from(dimension: int) -> None:
    """No context comes twice, and the best action depends on one of its numbers. In the last of
    six epochs the mean reward is within a tenth of the best; chance has mean 0. 3000 rewards of
    deviation below 0.3: a standard error of 0.006."""
    policy = make_policy(
        kernel=RBF(lengthscale=0.5 * np.sqrt(dimension)),
        contexts=uniform_sampler(dimension),
        budget=None,
        first_epoch=400,
    )
    rng = np.random.default_rng(1)
    for _ in range(6):
        contexts = rng.random((policy.remaining, dimension))
        decisions = policy.act_many(contexts)
        values = 2 * (contexts[:, 0] - 0.5) * (decisions.action[:, 0] - 0.5)
        policy.update_many(decisions, values + rng.uniform(-0.1, 0.1, size=len(values)))
        policy.close_epoch()
    assert values.mean() > 0.9 * np.abs(contexts[:, 0] - 0.5).mean()


def test_contexts_outside_the_pool_are_played_and_learnt_from() -> None:
    """The pool is a sample; the contexts that come lie between its 16 rows. What is learnt there
    is right, and their propensities are those of their own law."""
    policy = make_policy(budget=None, contexts=capri.ContextPool(np.linspace(0, 1, 16)))
    between = np.linspace(0.05, 0.95, 31)[:, None]
    for seed in range(7):
        play(policy, seed=seed, rows=between)
    pairs = np.array([[*c, *x] for c in between for x in ACTIONS])
    truth = mean_reward(pairs[:, :1], pairs[:, 1:]).reshape(31, 5)
    best = policy.estimate(between).argmax(axis=1)
    lost = truth.max(axis=1) - truth[np.arange(31), best]
    assert lost.mean() < 0.05 * (truth.max(axis=1) - truth.mean(axis=1)).mean()
    policy.act(between[3])
    law = policy._learning.learner.probabilities(between)
    decisions = policy.act_many(between)
    np.testing.assert_array_equal(decisions.propensity, law[np.arange(31), decisions.action_index])


# -- repeatability --------------------------------------------------------------------------------


@every_style
def test_run_without_horizon_equals_one_with_it_until_the_last_epoch(
    style: dict[str, Any], tmp_path: Path
) -> None:
    """Epochs of 60, 90 and 135, then 202 or, at a horizon of 400, what is left: the first three are
    the same to the last bit, and so are all decisions."""
    endless, ending = make_policy(**style), make_policy(**style, horizon=400)
    for seed in range(3):
        np.testing.assert_array_equal(play(endless, seed=seed), play(ending, seed=seed))
    assert records(endless) == records(ending)
    first, second = (snapshot(policy, tmp_path) for policy in (endless, ending))
    assert first[0].pop("horizon") is None
    assert second[0].pop("horizon") == 400
    assert first == second
    assert (endless.remaining, ending.remaining) == (202, 115)


@every_style
def test_saved_simulation_continues_bit_for_bit(style: dict[str, Any], tmp_path: Path) -> None:
    """At a boundary and in the middle of an epoch, rewards missing, twice over."""
    policy = make_policy(**style)
    play(policy, seed=1)
    for rounds in (90, 50, 60):  # boundary, inside the third epoch, inside it again
        path = tmp_path / "policy.capri"
        policy.save(path)
        loaded = capri.Capri.load(path)
        assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)
        for each in (policy, loaded):
            play(each, rounds, seed=rounds)
            each.act_many(CONTEXTS[:3])  # decisions whose rewards stay open
        assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)
        np.testing.assert_array_equal(loaded.estimate(CONTEXTS), policy.estimate(CONTEXTS))
        np.testing.assert_array_equal(loaded.active(CONTEXTS), policy.active(CONTEXTS))
        policy = loaded
    assert policy.epochs[-1].epoch == 2


def test_pool_of_any_size_continues_bit_for_bit(tmp_path: Path) -> None:
    """Seven weights of 1/7 do not sum to 1 in floating point."""
    rows = np.linspace(0, 1, 7)[:, None]
    policy = make_policy(contexts=capri.ContextPool(rows))
    play(policy, seed=1)
    policy.save(tmp_path / "policy.capri")
    loaded = capri.Capri.load(tmp_path / "policy.capri")
    for each in (policy, loaded):
        play(each, 400, seed=2)
    assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"contexts": uniform_sampler(1)},
        {"contexts": uniform_sampler(1), "limits": UNIFORM},
        {"residual": False, "norm_bound": 0.7},
        {"contributions_per_user": None, "budget": None},
    ],
    ids=["sampler", "sampler and floors", "whole rewards", "no privacy"],
)
def test_other_choices_continue_bit_for_bit_too(changes: dict[str, Any], tmp_path: Path) -> None:
    policy = make_policy(**changes)
    play(policy, 100, seed=1)
    path = tmp_path / "policy.capri"
    policy.save(path)
    contexts = changes.get("contexts")
    loaded = capri.Capri.load(path, contexts=contexts)
    for each in (policy, loaded):
        play(each, 400, seed=2)
    assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)
    assert len(policy.epochs) >= 4


@every_style
def test_one_by_one_equals_batches_bit_for_bit(style: dict[str, Any], tmp_path: Path) -> None:
    """Decisions, rewards in another order, and every release after them; in the pool and out."""
    many, single = make_policy(**style), make_policy(**style)
    rng = np.random.default_rng(3)
    rows = np.concatenate([CONTEXTS, rng.random((5, 1))])
    for _ in range(3):
        contexts = rows[rng.integers(len(rows), size=many.remaining)]
        decisions = many.act_many(contexts)
        rewards = mean_reward(contexts, decisions.action)
        many.update_many(decisions, rewards)
        alone = [single.act(context) for context in contexts]
        assert [each.action_index for each in alone] == decisions.action_index.tolist()
        assert [each.propensity for each in alone] == decisions.propensity.tolist()
        for place in rng.permutation(len(alone)):
            single.update(alone[place], float(rewards[place]))
        for policy in (many, single):
            policy.close_epoch()
        assert snapshot(single, tmp_path) == snapshot(many, tmp_path)


def test_seed_fixes_the_run_and_another_changes_it(tmp_path: Path) -> None:
    runs = []
    for seed in (5, 5, 6):
        policy = make_policy(simulation_seed=seed)
        play(policy, 600)
        runs.append(snapshot(policy, tmp_path))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# -- invariances ----------------------------------------------------------------------------------


@every_style
@pytest.mark.parametrize("factor", [4.0, 1 / 1024])
def test_other_units_of_reward_change_the_estimates_alone(
    style: dict[str, Any], factor: float
) -> None:
    """Rewards and their bound times a power of two: the same actions, estimates times it."""
    plain, scaled = make_policy(**style), make_policy(**style, reward_bound=factor)
    for seed in range(5):
        np.testing.assert_array_equal(play(plain, seed=seed), play(scaled, seed=seed, scale=factor))
        np.testing.assert_allclose(
            scaled.estimate(CONTEXTS), factor * plain.estimate(CONTEXTS), rtol=1e-9, atol=1e-12
        )
        np.testing.assert_array_equal(scaled.active(CONTEXTS), plain.active(CONTEXTS))
    expected = factor * plain.epochs[-1].width
    assert scaled.epochs[-1].width == pytest.approx(expected, rel=1e-9)


class Chosen:
    """Stands for the generator of actions: makes a uniform law choose given actions."""

    def __init__(self) -> None:
        self.next: np.ndarray = np.empty(0)

    def random(self, count: int) -> np.ndarray:
        assert len(self.next) == count
        return (self.next + 0.5) / len(ACTIONS)


def estimates_under_uniform_play(
    *,
    actions: np.ndarray,
    pool: capri.ContextPool,
    order: Iterable[int] = range(5),
) -> np.ndarray:
    """Three epochs of the same users and physical actions, whatever the numbering."""
    position = np.argsort(list(order))
    policy = make_policy(
        actions=actions,
        contexts=pool,
        budget=None,
        limits=UNIFORM,
        rank_tolerance=1e-6,
    )
    policy._streams._actions = chosen = Chosen()  # type: ignore[assignment]
    rng = np.random.default_rng(7)
    for _ in range(3):
        count = policy.remaining
        contexts, physical = CONTEXTS[rng.integers(8, size=count)], rng.integers(5, size=count)
        chosen.next = position[physical]
        decisions = policy.act_many(contexts)
        np.testing.assert_array_equal(decisions.action, ACTIONS[physical])
        policy.update_many(decisions, mean_reward(contexts, decisions.action))
        policy.close_epoch()
    return policy.estimate(CONTEXTS)


def test_numbering_of_actions_and_pool_rows_does_not_matter() -> None:
    """The basis may turn, the estimate may not. Also rows of weight zero change nothing."""
    straight = estimates_under_uniform_play(actions=ACTIONS, pool=capri.ContextPool(CONTEXTS))
    assert np.abs(straight).max() > 0.3
    order = [3, 0, 4, 2, 1]
    other = estimates_under_uniform_play(
        actions=ACTIONS[order], pool=capri.ContextPool(CONTEXTS), order=order
    )
    np.testing.assert_allclose(other, straight[:, order], atol=1e-6)
    rows = [6, 2, 0, 1, 7, 5, 4, 3]
    other = estimates_under_uniform_play(actions=ACTIONS, pool=capri.ContextPool(CONTEXTS[rows]))
    np.testing.assert_allclose(other, straight, atol=1e-6)
    more = np.concatenate([CONTEXTS, [[0.123], [0.77]]])
    weights = np.array([1 / 8] * 8 + [0.0, 0.0])
    other = estimates_under_uniform_play(
        actions=ACTIONS, pool=capri.ContextPool(more, weights=weights)
    )
    np.testing.assert_allclose(other, straight, atol=1e-6)


# -- odd spaces -----------------------------------------------------------------------------------


@every_style
def test_context_of_weight_zero_is_served_all_the_same(style: dict[str, Any]) -> None:
    weights = np.array([0.25, 0.0, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125])
    policy = make_policy(**style, contexts=capri.ContextPool(CONTEXTS, weights=weights))
    for seed in range(3):
        play(policy, seed=seed)  # among them the context that was never expected
    decision = policy.act(CONTEXTS[1])
    assert 0 < decision.propensity <= 1
    assert np.isfinite(policy.estimate(CONTEXTS)).all()


@every_style
def test_single_action_is_always_played(style: dict[str, Any]) -> None:
    policy = make_policy(**style, actions=[[0.3]])
    for seed in range(4):
        assert (play(policy, seed=seed) == 0).all()
    assert policy.act(CONTEXTS[0]).propensity == 1.0
    assert policy.active(CONTEXTS).all()
    assert np.isfinite(policy.epochs[-1].width)


@every_style
def test_single_context_finds_its_best_action(style: dict[str, Any]) -> None:
    """Rewards of -0.6 to 0.6 without privacy: after ten epochs the estimate's best is the best."""
    policy = make_policy(**style, contexts=capri.ContextPool([[0.5]]), budget=None)
    rows = np.array([[0.5]])
    for seed in range(8):
        play(policy, seed=seed, rows=rows)
    truth = mean_reward(np.repeat(rows, 5, axis=0), ACTIONS)
    assert int(policy.estimate(rows)[0].argmax()) == int(truth.argmax())


@every_style
@pytest.mark.parametrize("budget", [None, capri.Budget(epsilon=8.0, delta=1e-5)])
def test_kernel_of_low_rank_is_no_obstacle(
    style: dict[str, Any], budget: capri.Budget | None
) -> None:
    """``k(w, w') = <w, w'> / 2`` has rank 2 on 40 pairs, one of which is the origin."""
    policy = make_policy(**style, kernel=Linear(variance=0.5), budget=budget, norm_bound=2.0)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        contexts = CONTEXTS[rng.integers(8, size=policy.remaining)]
        decisions = policy.act_many(contexts)
        policy.update_many(decisions, 0.6 * decisions.action[:, 0] - 0.3 * contexts[:, 0])
        policy.close_epoch()
    assert policy.plan().features.basis.rank <= 2
    estimate = policy.estimate(CONTEXTS)
    truth = 0.6 * ACTIONS[:, 0] - 0.3 * CONTEXTS
    assert np.abs(estimate - truth).max() < (0.03 if budget is None else 0.5)


def test_duplicate_actions_and_contexts_are_no_obstacle() -> None:
    rows = np.repeat(CONTEXTS, 2, axis=0)
    policy = make_policy(actions=np.repeat(ACTIONS, 2, axis=0), contexts=capri.ContextPool(rows))
    for seed in range(4):
        play(policy, seed=seed)
    estimate = policy.estimate(rows)
    np.testing.assert_allclose(estimate[:, ::2], estimate[:, 1::2], atol=1e-9)
    np.testing.assert_allclose(estimate[::2], estimate[1::2], atol=1e-9)


@pytest.mark.slow
def test_a_million_pairs_are_planned_within_memory() -> None:
    """2,000 contexts (d = 4) x 500 actions (d = 3): features of all pairs would take 1.2 GB."""
    rng = np.random.default_rng(0)
    contexts, actions = rng.random((2000, 4)), rng.random((500, 3))
    with PeakMemory() as memory:
        policy = make_policy(
            kernel=Matern(nu=2.5, lengthscale=1.0),
            actions=actions,
            contexts=capri.ContextPool(contexts),
            budget=BUDGET,
            first_epoch=300,
        )
        for seed in range(3):
            play(policy, seed=seed, rows=contexts)
    assert len(policy.epochs) == 3
    assert memory.peak_bytes < 1.0e9


# -- secrets --------------------------------------------------------------------------------------

PLANTED = [0.123456789012345, 0.987654321098765, 0.314159265358979, 0.271828182845905]


def all_bytes(path: Path) -> bytes:
    """The file, each part of it, and each array of the arrays."""
    found = path.read_bytes()
    with zipfile.ZipFile(path) as bundle:
        for name in bundle.namelist():
            part = bundle.read(name)
            found += part
            if name.endswith(".npz"):
                with zipfile.ZipFile(BytesIO(part)) as arrays:
                    found += b"".join(arrays.read(each) for each in arrays.namelist())
    return found


@every_style
def test_private_run_stores_nothing_secret(style: dict[str, Any], tmp_path: Path) -> None:
    """Planted contexts and rewards of a closed and of an open epoch, and the open sum, are looked
    for in the raw file as binary numbers and as text."""
    policy = make_policy(**style, simulation_seed=None, budget=BUDGET)
    for count in (60, 40):
        contexts = np.array(PLANTED * (count // 4))[:, None]
        decisions = policy.act_many(contexts)
        rewarded = list(decisions)[:60] if count == 60 else list(decisions)[:30]
        policy.update_many(rewarded, contexts[: len(rewarded), 0])
    accumulator = open_epoch(policy).total
    assert np.abs(accumulator).max() > 0
    path = tmp_path / "private.capri"
    policy.save(path)
    stored = all_bytes(path)
    assert struct.pack("<d", CONTEXTS[1, 0]) in stored, "premise: public numbers are found"
    for value in PLANTED:
        assert struct.pack("<d", value) not in stored
        assert repr(value).encode() not in stored
        assert repr(value)[:12].encode() not in stored
    assert accumulator.tobytes() not in stored
    # Cells that nobody played are 0, and round numbers are found in every file by chance.
    for unit in accumulator[accumulator % 2**16 != 0]:
        assert struct.pack("<q", int(unit)) not in stored
        assert str(int(unit)).encode() not in stored
    assert b"open.contexts" not in stored
    assert b"open.accumulator" not in stored


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thompson_scale": 0.0}, "thompson_scale must be positive and finite, got 0.0"),
        ({"thompson_scale": "1"}, "thompson_scale must be positive and finite, got '1'"),
        ({"clip_scale": float("nan")}, "clip_scale must be positive and finite, got nan"),
        ({"rank_tolerance": True}, "rank_tolerance must be positive and finite, got True"),
        ({"norm_bound": -2.0}, "norm_bound must be positive and finite, got -2.0"),
        ({"smoothness": 5.0}, "smoothness must lie between 0 and 4, got 5.0"),
        ({"smoothness": float("nan")}, "smoothness must lie between 0 and 4, got nan"),
        ({"failure_probability": 1.0}, "failure_probability must lie strictly between 0 and 1"),
        ({"moment_share": 0.0}, "moment_share must be positive and finite, got 0.0"),
        ({"moment_share": 0.9}, "moment_share must lie between 0 and 0.5, got 0.9"),
        ({"growth": 1.0}, "growth must be above 1, got 1.0"),
        ({"growth": float("inf")}, "growth must be positive and finite, got inf"),
        ({"draws": 0}, "draws must be a whole number of 1 or more, got 0"),
        ({"draws": 2.5}, "draws must be a whole number of 1 or more, got 2.5"),
        ({"max_rank": True}, "max_rank must be a whole number of 1 or more, got True"),
        ({"first_epoch": 0}, "first_epoch must be a whole number of 1 or more, got 0"),
        ({"tail_share": 0.7}, "tail_share must lie between 0 and 0.5, got 0.7"),
        ({"exploration": "uniform"}, "unknown option exploration; preset 'practical' takes "),
        ({"tau": 2.0}, "unknown option tau; preset 'practical' takes thompson_scale, draws, "),
    ],
)
def test_bad_options_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_policy(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"smoothness": "0.5"},
        {"smoothness": None},
        {"failure_probability": "0.05"},
        {"failure_probability": None},
        {"moment_share": "0.2"},
        {"moment_share": None},
        {"growth": "1.5"},
        {"growth": None},
        {"residual": "no"},
        {"residual": None},
    ],
    ids=str,
)
def test_options_of_the_wrong_type_are_refused_by_name(changes: dict[str, Any]) -> None:
    name = next(iter(changes))
    with pytest.raises(ConfigurationError, match=name):
        make_policy(**changes)


@pytest.mark.parametrize(
    ("preset", "option"),
    [
        ("practical", {"calibration": "paper"}),
        ("practical", {"features": "dense"}),
        ("paper", {"draws": 64}),
        ("paper", {"growth": 1.5}),
        ("paper", {"residual": True}),
    ],
)
def test_options_of_the_other_preset_are_refused(preset: str, option: dict[str, Any]) -> None:
    name = next(iter(option))
    settings: dict[str, Any] = {
        "kernel": Matern(),
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": BUDGET,
        "horizon": 100,
        "preset": preset,
    }
    with pytest.raises(
        ConfigurationError, match=f"unknown option {name}; preset '{preset}' takes "
    ):
        capri.Capri(**settings, **option)


def test_defaults_are_the_ones_documented() -> None:
    options = PracticalOptions()
    assert (options.thompson_scale, options.draws, options.residual) == (0.7, 64, True)


def test_preset_is_the_default_and_needs_no_horizon() -> None:
    policy = capri.Capri(
        kernel=Matern(), actions=ACTIONS, contexts=capri.ContextPool(CONTEXTS), budget=BUDGET
    )
    assert policy.horizon is None
    assert policy.remaining > 0
    assert policy.preset == "practical"


def environment_of_peaks(rate: float, seed: int) -> TabularEnvironment:
    """Rewards that are rare and large: a click of 1 with a small probability."""
    kernel = Matern(nu=2.5, lengthscale=0.3)
    base = random_rkhs(kernel, contexts=12, actions=12, seed=seed)
    means = rate * (1 + base.means / np.abs(base.means).max())
    return TabularEnvironment(
        name="clicks",
        contexts=base.contexts,
        weights=base.weights,
        actions=base.actions,
        means=means,
        reward_bound=1.0,
        noise=0.0,
    )


def test_rare_large_rewards_do_not_fool_the_clipping() -> None:
    """Clicks of probability 0 to 0.2: residual clipping cuts them off and must notice. The mean
    ratio over six problems stays below that of uniform play."""
    ratios = []
    for seed in range(6):
        environment = environment_of_peaks(0.1, seed)
        policy = capri.Capri(
            kernel=Matern(nu=2.5, lengthscale=0.3),
            actions=environment.actions,
            contexts=capri.ContextPool(environment.contexts),
            budget=capri.Budget(epsilon=8.0, delta=1e-5),
            horizon=12_000,
            simulation_seed=seed,
        )
        rng = np.random.default_rng(seed)
        lost = 0.0
        while policy.remaining:
            context = environment.draw_contexts(rng, policy.remaining)
            decisions = policy.act_many(environment.contexts[context])
            mean = environment.mean(context, decisions.action_index)
            policy.update_many(decisions, (rng.random(len(mean)) < mean).astype(float))
            lost += float(np.sum(environment.best(context) - mean))
        ratios.append(lost / 12_000 / environment.uniform_regret())
    assert np.mean(ratios) < 0.8
