"""Playing a policy against an environment: regret, reproducibility, limits."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

import capri
from builders import BUDGET, records
from capri.environments import TabularEnvironment, random_rkhs
from capri.errors import ConfigurationError

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)


def world(**changes: Any) -> TabularEnvironment:
    return random_rkhs(KERNEL, **({"contexts": 12, "actions": 6, "seed": 5} | changes))


def policy_for(environment: TabularEnvironment, **changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": environment.actions,
        "contexts": capri.ContextPool(environment.contexts, weights=environment.weights),
        "budget": BUDGET,
        "horizon": 4000,
        "preset": "paper",
        "reward_bound": environment.reward_bound,
        "simulation_seed": 1,
    }
    return capri.Capri(**(settings | changes))


@pytest.mark.parametrize("model", ["joint", "local"])
@pytest.mark.parametrize("budget", [BUDGET, None], ids=["private", "no privacy"])
def test_paper_preset_plays_uniformly(model: str, budget: capri.Budget | None) -> None:
    """Nothing is eliminated at this horizon, so regret per round is that of uniform play.

    Mean of 4000 independent losses against its expectation, five standard errors: false alarm
    6e-7. A policy that drops a third of the worst actions is off by more than that.
    """
    environment = world()
    result = capri.simulate(policy_for(environment, model=model, budget=budget), environment, 4000)
    losses = np.diff(result.regret, prepend=0.0)
    standard_error = losses.std() / np.sqrt(len(losses))
    assert abs(result.regret_per_round - environment.uniform_regret()) < 5 * standard_error
    assert 5 * standard_error < 0.1 * environment.uniform_regret()
    assert result.ratio == result.regret_per_round / environment.uniform_regret()


def test_simulation_repeats_under_its_seeds() -> None:
    environment = world()
    first, again = (
        capri.simulate(policy_for(environment), environment, 1000, seed=3) for _ in range(2)
    )
    np.testing.assert_array_equal(first.regret, again.regret)
    assert records(first) == records(again)  # type: ignore[arg-type]
    for other in (
        capri.simulate(policy_for(environment), environment, 1000, seed=4),
        capri.simulate(policy_for(environment, simulation_seed=2), environment, 1000, seed=3),
    ):
        assert (other.regret != first.regret).any()


class Watching:
    """An environment that notes which contexts it hands out."""

    def __init__(self, inner: TabularEnvironment) -> None:
        self.inner = inner
        self.drawn: list[int] = []

    def draw_contexts(self, rng: np.random.Generator, n: int) -> Any:
        index = self.inner.draw_contexts(rng, n)
        self.drawn += index.tolist()
        return index

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_context_stream_does_not_depend_on_the_policy() -> None:
    """Two policies under one seed meet the same users: studies compare them in pairs."""
    seen = []
    for changes in ({"simulation_seed": 1}, {"simulation_seed": 2, "budget": None}):
        environment = Watching(world())
        capri.simulate(policy_for(environment.inner, **changes), environment, 2000, seed=3)
        seen.append(environment.drawn)
    assert seen[0] == seen[1]
    counts = np.bincount(seen[0], minlength=12)
    # Uniform over 12 contexts, 2000 draws: false alarm below 1e-5.
    assert stats.chisquare(counts).pvalue > 1e-5


def test_result_is_what_playing_by_hand_gives() -> None:
    """Decisions, rewards and regret of ``simulate`` against a loop over single rounds."""
    environment = Watching(world(noise=0.0))
    means = environment.inner.means
    result = capri.simulate(policy_for(environment.inner, horizon=100), environment, 60, seed=9)
    assert len(environment.drawn) == 60
    policy = policy_for(environment.inner, horizon=100)
    regret, curve = 0.0, []
    for context in environment.drawn:
        decision = policy.act(environment.inner.contexts[context])
        policy.update(decision, means[context, decision.action_index])
        regret += means[context].max() - means[context, decision.action_index]
        curve.append(regret)
    np.testing.assert_allclose(result.regret, curve, rtol=1e-12)
    assert records(result) == records(policy)  # type: ignore[arg-type]


def test_a_few_rounds_of_a_long_horizon_may_be_played() -> None:
    environment = world()
    policy = policy_for(environment)
    result = capri.simulate(policy, environment, 70)
    assert result.rounds == len(result.regret) == 70
    assert [record.length for record in result.epochs] == [64]
    assert policy.remaining == 128 - 6


def test_rounds_beyond_the_horizon_are_refused() -> None:
    environment = world()
    with pytest.raises(ConfigurationError, match="done after 100 rounds, 101 were asked for"):
        capri.simulate(policy_for(environment, horizon=100), environment, 101)


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds_are_refused(rounds: int) -> None:
    environment = world()
    with pytest.raises(ConfigurationError, match=f"whole number of 1 or more, got {rounds}"):
        capri.simulate(policy_for(environment), environment, rounds)


def test_progress_is_told_of_rounds_and_mean_regret() -> None:
    environment, told = world(), []
    result = capri.simulate(
        policy_for(environment, horizon=100),
        environment,
        100,
        progress=lambda rounds, regret: told.append((rounds, regret)),
    )
    assert [rounds for rounds, _ in told] == [10, 30, 70, 100]
    for rounds, regret in told:
        assert regret == pytest.approx(result.regret[rounds - 1] / rounds, rel=1e-12)


def test_result_as_plain_numbers() -> None:
    import json

    environment = world()
    result = capri.simulate(policy_for(environment, horizon=100), environment, 100)
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["regret_per_round"] == result.regret[-1] / 100
    assert plain["uniform_regret_per_round"] == environment.uniform_regret()
    assert [epoch["length"] for epoch in plain["epochs"]] == [10, 20, 40, 30]
    assert plain["peak_memory_bytes"] > 10_000_000
    assert plain["seconds"] > 0


def test_one_action_has_a_result() -> None:
    environment = world(actions=1)
    result = capri.simulate(policy_for(environment, horizon=20), environment, 20)
    assert result.regret_per_round == 0.0
    assert result.to_dict()["regret_per_round"] == 0.0
