"""What every rival must do: to add a rival, register it in the catalogue."""

import inspect
import json
import warnings
from typing import Any

import numpy as np
import pytest

import capri
from capri import Budget, DataError, HorizonError, RewardIgnoredWarning, RewardStatus, ShapeError
from capri.environments import random_rkhs
from capri_lab.rivals import RIVAL_NAMES, Promise, Rival, promise_of, reach_of, rival
from capri_lab.rivals.catalogue import BY_NAME

KERNEL = capri.kernels.RBF(lengthscale=0.3)
ENVIRONMENT = random_rkhs(KERNEL, contexts=6, actions=5, seed=3)
HORIZON = 160
BUDGET = Budget(epsilon=2.0, delta=1e-5)

every_rival = pytest.mark.parametrize("name", BY_NAME)


def make(name: str, seed: int = 0, horizon: int = HORIZON, **options: Any) -> Rival:
    policy = rival(
        name,
        ENVIRONMENT,
        kernel=KERNEL,
        horizon=horizon,
        simulation_seed=seed,
        **({"budget": BUDGET} | options),
    )
    assert isinstance(policy, Rival)
    return policy


def draw(seed: int, count: int) -> np.ndarray:
    return ENVIRONMENT.draw_contexts(np.random.default_rng([seed, 1]), count)


def play_batch(policy: Rival, seed: int = 0) -> capri.Decisions:
    """All that may be asked for at once."""
    context = draw(seed, policy.remaining)
    decisions = policy.act_many(ENVIRONMENT.contexts[context])
    rng = np.random.default_rng([seed, 2])
    policy.update_many(decisions, ENVIRONMENT.rewards(rng, context, decisions.action_index))
    return decisions


def play_out(policy: Rival) -> list[int]:
    """The actions of the rest of the run."""
    actions: list[int] = []
    while policy.remaining:
        actions += play_batch(policy, seed=len(actions)).action_index.tolist()
    return actions


def test_every_name_is_built_and_once() -> None:
    assert len(set(RIVAL_NAMES)) == len(RIVAL_NAMES) == len(BY_NAME) + 1
    with pytest.raises(capri.ConfigurationError, match=r"one of uniform, gp-ucb.*got 'gp-ubc'"):
        rival("gp-ubc", ENVIRONMENT, kernel=KERNEL, horizon=1, simulation_seed=0)


@every_rival
def test_rival_says_what_it_is(name: str) -> None:
    kind = BY_NAME[name]
    assert isinstance(kind.promise, Promise)
    assert any(character.isdigit() for character in kind.reference), "a year, at least"
    assert "Limits:" in (kind.__doc__ or "")
    assert reach_of(name) >= 1_000
    policy = make(name)
    if kind.promise.model == "none":
        assert promise_of(policy).model == "none"
        assert policy.guarantee == "no privacy: runs without noise"
        return
    assert promise_of(policy) == kind.promise
    assert policy.guarantee.startswith("simulation of ")
    assert policy.guarantee.endswith("no privacy claim"), "a seeded run protects nobody"
    assert kind.promise.protects in policy.guarantee
    assert ("1e-05" in policy.guarantee) == (kind.promise.kind == "approximate")
    without = make(name, budget=None)
    assert promise_of(without).model == "none"
    assert without.guarantee == "no privacy: runs without noise"


@every_rival
def test_the_horizon_is_played_and_no_more(name: str) -> None:
    policy = make(name)
    ids: list[int] = []
    while policy.remaining:
        assert 0 < policy.remaining <= HORIZON - len(ids)
        decisions = play_batch(policy, seed=len(ids))
        ids += decisions.number.tolist()
    assert ids == list(range(HORIZON))
    assert policy.epochs == ()
    with pytest.raises(HorizonError, match="1 decisions were asked for, 0 are possible"):
        policy.act(ENVIRONMENT.contexts[0])


@every_rival
def test_decisions_are_arrays_with_sensible_propensities(name: str) -> None:
    policy = make(name)
    for seed in range(3):
        decisions = play_batch(policy, seed)
        assert decisions.action_index.dtype == np.int64
        assert ((decisions.action_index >= 0) & (decisions.action_index < 5)).all()
        np.testing.assert_array_equal(decisions.action, ENVIRONMENT.actions[decisions.action_index])
        assert ((decisions.propensity > 0) & (decisions.propensity <= 1)).all()


@every_rival
def test_asking_for_too_much_or_for_nothing_changes_nothing(name: str) -> None:
    policy, twin = make(name), make(name)
    left = policy.remaining
    with pytest.raises(HorizonError, match=f"{left + 1} decisions were asked for, {left} are"):
        policy.act_many(ENVIRONMENT.contexts[draw(0, left + 1)])
    assert len(policy.act_many(np.empty((0, 1)))) == 0
    assert policy.remaining == left
    assert play_out(policy) == play_out(twin)


@every_rival
@pytest.mark.parametrize("context", [[[np.nan]], [["a"]], [[123.0]], [[0.0, 0.0]]], ids=str)
def test_bad_context_is_refused_and_changes_nothing(name: str, context: Any) -> None:
    policy, twin = make(name, horizon=20), make(name, horizon=20)
    with pytest.raises(DataError):
        policy.act_many(context)
    assert play_out(policy) == play_out(twin)


@every_rival
@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, None, "1"], ids=str)
def test_reward_that_is_no_number_is_missing_and_may_be_given_again(name: str, reward: Any) -> None:
    """A value that is none is a missing one, whatever its type."""
    policy = make(name)
    decision = policy.act(ENVIRONMENT.contexts[0])
    with pytest.warns(RewardIgnoredWarning, match="invalid"):
        assert policy.update(decision, reward) is RewardStatus.INVALID
    with pytest.raises(ShapeError, match="one reward per decision is needed: 1"):
        policy.update_many([decision], [0.1, 0.2])
    assert policy.update(decision, 0.5) is RewardStatus.ACCEPTED


@every_rival
def test_duplicate_late_and_unknown_rewards_change_nothing(name: str) -> None:
    policy, twin = make(name), make(name)
    for each in (policy, twin):
        late = play_batch(each, seed=1)[0]
        current = each.act_many(ENVIRONMENT.contexts[draw(2, min(3, each.remaining))])
    with pytest.warns(RewardIgnoredWarning, match="late and unknown"):
        codes = policy.update_many([late, "AAAAAAAAAAAAAAAAAAAA"], [1.0, 1.0])
    assert codes.tolist() == [RewardStatus.LATE, RewardStatus.UNKNOWN]
    twice = [current[0], current[0], *list(current)[1:]]
    with pytest.warns(RewardIgnoredWarning, match="duplicate"):
        policy.update_many(twice, np.append([0.4, -1.0], np.full(len(current) - 1, 0.4)))
    twin.update_many(current, np.full(len(current), 0.4))
    assert play_out(policy) == play_out(twin)


@every_rival
def test_order_of_rewards_within_a_batch_does_not_matter(name: str) -> None:
    policy, twin = make(name), make(name)
    for batch in range(3):
        count = policy.remaining
        for each, order in ((policy, 1), (twin, -1)):
            decisions = each.act_many(ENVIRONMENT.contexts[draw(batch, count)])
            rewards = np.linspace(-1, 1, count)
            each.update_many(list(decisions)[::order], rewards[::order])
        if policy.remaining == 0:
            break
    assert play_out(policy) == play_out(twin)


@every_rival
def test_missing_reward_counts_as_zero(name: str) -> None:
    """The next decision closes the batch; the run is the one in which they were 0."""
    missing, zero = make(name), make(name)
    for policy in (missing, zero):
        decisions = policy.act_many(ENVIRONMENT.contexts[draw(1, policy.remaining)])
        rewards = np.full(len(decisions), 0.3)
        rewards[0] = 0.0
        if policy is zero:
            policy.update_many(decisions, rewards)
        elif len(decisions) > 1:
            policy.update_many(list(decisions)[1:], rewards[1:])
    if zero.remaining == 0:
        return
    assert missing.remaining == 1, "one decision may be asked for: it closes the batch"
    for policy in (missing, zero):
        decision = policy.act(ENVIRONMENT.contexts[0])
        policy.update(decision, 0.2)
    assert play_out(missing) == play_out(zero)


@every_rival
def test_rewards_beyond_the_bound_are_cut(name: str) -> None:
    policy, twin = make(name, horizon=60), make(name, horizon=60)
    while policy.remaining:
        played = []
        for each, size in ((policy, 1.0), (twin, 1e6)):
            decisions = each.act_many(ENVIRONMENT.contexts[draw(0, each.remaining)])
            signs = np.where(decisions.action_index % 2 == 0, size, -size)
            each.update_many(decisions, signs)
            played.append(decisions.action_index)
        assert policy.remaining == twin.remaining
        np.testing.assert_array_equal(*played)


@every_rival
def test_seed_fixes_the_run(name: str) -> None:
    first, again = (
        capri.simulate(make(name, seed=4), ENVIRONMENT, HORIZON, seed=9) for _ in range(2)
    )
    np.testing.assert_array_equal(first.regret, again.regret)


@every_rival
def test_without_noise_it_learns(name: str) -> None:
    """Regret over the second half of a run, below that of uniform play."""
    rounds = 2_000
    policy = make(name, horizon=rounds, budget=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = capri.simulate(policy, ENVIRONMENT, rounds, seed=1)
    late = (result.regret[-1] - result.regret[rounds // 2 - 1]) / (rounds - rounds // 2)
    assert late < 0.9 * result.uniform_regret_per_round


@every_rival
def test_it_is_for_simulation_only(name: str) -> None:
    for seed in (None, -1, 1.5, True):
        with pytest.raises(capri.ConfigurationError, match="simulation_seed"):
            make(name, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(capri.ConfigurationError, match="horizon"):
        make(name, horizon=0)


@every_rival
def test_a_budget_is_taken_by_those_who_spend_one_only(name: str) -> None:
    kind = BY_NAME[name]
    settings: dict[str, Any] = {
        "actions": ENVIRONMENT.actions,
        "contexts": capri.ContextPool(ENVIRONMENT.contexts),
        "horizon": 10,
        "simulation_seed": 0,
        "budget": BUDGET if kind.promise.model == "none" else 1.0,
    }
    if kind.needs == "kernel":
        settings["kernel"] = KERNEL
    if kind.needs == "features":
        settings["features"] = np.full((30, 1), 1.0)
    with pytest.raises(capri.ConfigurationError, match="budget"):
        kind(**settings)


@every_rival
def test_params_are_plain_and_fixed(name: str) -> None:
    policy = make(name, seed=4)
    params = policy.params
    assert params["policy"] == name
    assert (params["horizon"], params["simulation_seed"]) == (HORIZON, 4)
    assert json.loads(json.dumps(params)) == params
    spends = BY_NAME[name].promise.model != "none"
    assert params["epsilon"] == (2.0 if spends else None)
    own = set(params) - {"policy", "epsilon", "delta"}
    assert own <= set(inspect.signature(BY_NAME[name]).parameters)
    for setting in (*own, "budget"):
        with pytest.raises(AttributeError, match=f"{setting} is fixed"):
            setattr(policy, setting, 1)
    assert policy.params == params


def test_nothing_is_known_of_a_stranger() -> None:
    with pytest.raises(capri.ConfigurationError, match="no promise is known of object"):
        promise_of(object())
